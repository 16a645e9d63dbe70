// What each ZeRO stage shards over the ranks. A stage is a row of this table; nothing else in the
// house asks for its number. (Rajbhandari et al., "ZeRO: memory optimizations toward training
// trillion parameter models", SC 2020.)
#pragma once

namespace tranche {

struct Placement {
  bool weights_sharded = false;    // gathered group by group where they are used
  bool gradients_sharded = false;  // reduced after every micro-batch, into the shards
  bool optimizer_sharded = false;  // master weights and the rule's state

  static constexpr int kStages = 4;
  static constexpr Placement OfStage(int stage) {
    return {.weights_sharded = stage >= 3,
            .gradients_sharded = stage >= 2,
            .optimizer_sharded = stage >= 1};
  }
};

}  // namespace tranche
