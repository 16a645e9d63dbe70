// What follows from a recipe before any data is opened or memory taken: the model, its parameters,
// the largest micro-batch, the loaders' options.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "data/loader.h"
#include "data/tokenizer.h"
#include "model/model_config.h"
#include "model/param_spec.h"
#include "model/transformer_options.h"
#include "nlohmann/json.hpp"
#include "optim/schedule.h"
#include "trainer/recipe.h"
#include "zero/engine.h"

namespace tranche {

struct NamedLoader {
  std::string name;
  LoaderOptions options;
};

struct RunSetup {
  Recipe recipe;                       // its micro_batch_size is never 0
  int ranks = 1;                       // that train together
  int replicas = 1;                    // groups of ranks that each shard one copy
  nlohmann::ordered_json config_json;  // what an export's config.json is made from
  // As the transformer runs it: with the next-sentence head only where the recipe trains it. Its
  // tensors are in `specs` wherever the model has them; untrained, they stay as they are.
  ModelConfig config;
  std::vector<ParamSpec> specs;
  std::unique_ptr<Tokenizer> tokenizer;  // null where the recipe has none
  EngineOptions engine;
  TransformerOptions transformer;
  LoaderOptions train;
  std::vector<NamedLoader> validation;  // the sets, then "held_out"

  int64_t micro_batches() const {
    return recipe.training.global_batch_size / recipe.training.micro_batch_size;
  }
};

// `with_tokenizer`: also load the tokenizer (training needs it, a plan does not).
absl::StatusOr<RunSetup> SetUpRun(const Recipe& recipe, bool with_tokenizer, int ranks = 1);

// The same with another precision, recompute level or micro-batch: for comparing plans. What was
// settled of the sharding stays. The tokenizer is left out.
absl::StatusOr<RunSetup> SetUpVariant(const RunSetup& setup, const TrainingRecipe& training);

// The run's length in steps. samples_per_epoch: of the training data, or 0 where it is not known,
// which is an error only for a length in epochs.
absl::StatusOr<int64_t> TotalSteps(const Recipe& recipe, int64_t samples_per_epoch);
absl::StatusOr<Schedule> MakeSchedule(const Recipe& recipe, int64_t total_steps);

}  // namespace tranche
