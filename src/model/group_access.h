// What a model asks of whoever holds its parameters (zero/engine.h). A group is the parameters of
// one block: 0 the embeddings, 1..L the layers, L+1 the head (ParamSpec::group). The model walks
// the groups and never knows where they live or who else holds them.
//
// A group may be acquired several times at once (a tied embedding serves the first and the last
// block); each Acquire has its Release.
#pragma once

#include "tensor/backend.h"

namespace tranche {

class GroupAccess {
 public:
  virtual ~GroupAccess() = default;

  // The group will be acquired soon: its gather may start.
  virtual void Prefetch(int group) = 0;
  // From here to Release, work enqueued on `stream` may read the group's weights.
  virtual void Acquire(Stream& stream, int group) = 0;
  virtual void Release(Stream& stream, int group) = 0;
  // This micro-batch will add nothing more to the group's gradients: work enqueued on `stream` so
  // far completes them.
  virtual void Reduce(Stream& stream, int group) = 0;

  // By index into the list of ParamSpecs; [rows, cols] contiguous. Weights are in the compute
  // dtype, gradients fp32.
  virtual Tensor Weight(int param) const = 0;
  virtual Tensor Gradient(int param) const = 0;
};

}  // namespace tranche
