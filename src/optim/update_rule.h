// The rule that turns gradients into new weights, on flat slices: it knows nothing of layers, ranks
// or where a slice lives.
//
// Which arrays of state a rule keeps beside the fp32 master weights is its own choice and told by
// name, so that placement, checkpoints and plans carry any rule's state.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tensor/backend.h"

namespace tranche {

struct UpdateOptions {
  float beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f;
  float weight_decay = 0;      // of the parameters that decay and say no other
  float max_grad_norm = 1.0f;  // 0: no clipping
};

struct StateArray {
  std::string name;
  DType dtype = DType::kFloat32;
};

// A stretch of one group's flat buffers, [1, n] each.
struct UpdateSlice {
  Tensor master;     // fp32
  Tensor weights;    // in the compute dtype; undefined in fp32, where master is the weights
  Tensor gradients;  // fp32
  std::vector<Tensor> state;  // in the order of UpdateRule::state()
  float weight_decay = 0;
  float lr_scale = 1;  // of the learning rate
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;

  virtual const std::vector<StateArray>& state() const = 0;
  // Enqueues the update. `control` is that of Backend::FinishNorm; `step` counts from 1.
  virtual void Apply(Backend& backend, Stream& stream, const UpdateSlice& slice, Tensor control,
                     float learning_rate, int64_t step) const = 0;

  // Of the arrays of state, without the master weights.
  int64_t state_bytes_per_parameter() const;
};

// State "m" and "v", both fp32. Formula: see Backend::AdamW.
std::unique_ptr<UpdateRule> CreateAdamW(const UpdateOptions& options);

}  // namespace tranche
