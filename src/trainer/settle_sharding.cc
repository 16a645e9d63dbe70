#include "trainer/settle_sharding.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/units.h"
#include "trainer/known_rates.h"
#include "trainer/rehearsal.h"
#include "trainer/tuning.h"
#include "zero/placement.h"

namespace tranche {

absl::StatusOr<std::string> SettleSharding(World& world, Comm& shards, Backend& backend,
                                           int threads, RunSetup* setup) {
  const ParallelismRecipe& recipe = setup->recipe.parallelism;
  if (recipe.reshard_after_forward == "auto") {
    const auto settle = [&]() -> absl::StatusOr<std::string> {
      TRANCHE_RETURN_IF_ERROR(SettleResidency(world.local_size(), threads, setup));
      return absl::StrCat(setup->engine.layer_slots);
    };
    TRANCHE_ASSIGN_OR_RETURN(const std::string slots, world.FromFirst("residency", settle));
    if (!absl::SimpleAtoi(slots, &setup->engine.layer_slots)) {
      return absl::InternalError("rank 0 sent no number of layers");
    }
  }
  std::string bucket = "as the recipe says";
  if (!recipe.bucket_size) {
    TRANCHE_ASSIGN_OR_RETURN(const KnownRates known,
                             KnownOrMeasuredRates(*setup, world, shards, backend, threads));
    TRANCHE_ASSIGN_OR_RETURN(const auto choices, PredictBuckets(*setup, threads, known.rates));
    setup->engine.bucket_bytes = BestBucket(choices).bucket_bytes;
    const CollectiveCost& gather =
        known.rates.collectives[static_cast<size_t>(Collective::kAllGather)];
    bucket = absl::StrFormat("chosen: all-gather %.0f us + %.2f ms per MiB, %s", 1e6 * gather.alpha,
                             1e3 * gather.beta * 0x1p20, known.source);
  }
  std::string text = absl::StrFormat(
      "%d%s, ZeRO stage %d, buckets of %s (%s)", world.size(),
      setup->replicas > 1 ? absl::StrFormat(" in %d replicas", setup->replicas) : "",
      setup->engine.zero_stage, FormatBytes(setup->engine.bucket_bytes), bucket);
  if (Placement::OfStage(setup->engine.zero_stage).weights_sharded) {
    absl::StrAppend(&text, ", ",
                    std::min<int64_t>(setup->engine.layer_slots, setup->config.num_layers),
                    " layers stay gathered");
  }
  return text;
}

}  // namespace tranche
