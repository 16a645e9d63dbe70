// Who holds the parameters, their gradients and their optimizer state: flat padded buffers, one per group, in the arena. Here every
// group is whole on its one rank; sharded placements plug in behind the same verbs (Prefetch, Acquire, Release, Reduce, Step).
//
// Inside a group, parameters start on 64-element lines (256 bytes of fp32), those with weight decay first, so that the update of a
// group is at most two flat slices.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/group_access.h"
#include "model/param_spec.h"
#include "tensor/backend.h"

namespace tranche {

struct UpdateOptions {
  float beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f, weight_decay = 0;
  float max_grad_norm = 1.0f;  // 0: no clipping
};

struct EngineOptions {
  DType dtype = DType::kFloat32;  // of the weights the model sees
  bool training = true;           // false: weights only
  UpdateOptions update;
};

class Engine : public GroupAccess {
 public:
  // Takes all of its memory from the arena. Weights, gradients and optimizer state start as zeros.
  static std::unique_ptr<Engine> Create(std::vector<ParamSpec> specs, const EngineOptions& options, Backend& backend, Arena& arena);

  virtual const std::vector<ParamSpec>& specs() const = 0;

  // Clears gradients before the first micro-batch of a step.
  virtual void BeginStep(Stream& stream) = 0;
  // After the last micro-batch: norm, clipping, update of every group in forward order. Where a gradient or loss_sum is not finite the
  // update is skipped, decided on the device. `step` counts from 1 (skipped ones too). control() holds norm and outcome afterwards.
  virtual void Step(Stream& stream, float learning_rate, int64_t step, Tensor loss_sum) = 0;
  virtual Tensor control() const = 0;  // see Backend::FinishNorm

  // The arrays of state of a parameter, by name: "master" (fp32 weights; with fp32 the weights themselves), "m", "v". For loading,
  // saving and export: [rows, cols] fp32.
  virtual std::vector<std::string> state_names() const = 0;
  virtual Tensor State(int param, absl::string_view name) const = 0;
  // After "master" was written: refreshes the weights the model sees.
  virtual void MasterChanged(Stream& stream) = 0;
};

}  // namespace tranche
