// Who holds the parameters, their gradients and their optimizer state: flat padded buffers, one per
// group (zero/group_layout.h), in the arena. Here every group is whole on its one rank; sharded
// placements plug in behind the same verbs (Prefetch, Acquire, Release, Reduce, Step).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "model/group_access.h"
#include "model/param_spec.h"
#include "optim/update_rule.h"
#include "tensor/backend.h"

namespace tranche {

struct EngineOptions {
  DType dtype = DType::kFloat32;  // of the weights the model sees
  bool training = true;           // false: weights only
  UpdateOptions update;
};

class Engine : public GroupAccess {
 public:
  // Takes all of its memory from the arena. Weights, gradients and optimizer state start as zeros.
  static std::unique_ptr<Engine> Create(std::vector<ParamSpec> specs, const EngineOptions& options,
                                        Backend& backend, Arena& arena);

  virtual const std::vector<ParamSpec>& specs() const = 0;
  virtual const EngineOptions& options() const = 0;

  // Clears gradients before the first micro-batch of a step.
  virtual void BeginStep(Stream& stream) = 0;
  // After the last micro-batch: norm, clipping, update of every group in forward order. Where a
  // gradient or loss_sum is not finite the update is skipped, decided on the device. `step` counts
  // from 1 (skipped ones too: the bias corrections are those of the step's number). control() holds
  // norm and outcome afterwards.
  virtual void Step(Stream& stream, float learning_rate, int64_t step, Tensor loss_sum) = 0;
  virtual Tensor control() const = 0;  // see Backend::FinishNorm

  // The arrays of state of a parameter, by name: "master" (fp32 weights; with fp32 the weights
  // themselves), then those of the update rule ("m", "v"). For loading, saving and export:
  // [rows, cols] of their type. Without training: "master" in fp32, nothing in bf16, where Weight
  // is all there is.
  virtual std::vector<std::string> state_names() const = 0;
  virtual Tensor State(int param, absl::string_view name) const = 0;
  // After "master" was written: refreshes the weights the model sees.
  virtual void MasterChanged(Stream& stream) = 0;
};

}  // namespace tranche
