#include "trainer/run_setup.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "trainer/param_updates.h"

namespace tranche {
namespace {

// Everything but what is wanted of one set.
LoaderOptions CommonLoaderOptions(const Recipe& recipe, const ModelConfig& config,
                                  const Tokenizer* tokenizer) {
  const DataRecipe& data = recipe.data;
  LoaderOptions options;
  options.format = data.format == "megatron" ? TokenFormat::kMegatron
                   : data.format == "tokens" ? TokenFormat::kTokens
                                             : TokenFormat::kAuto;
  if (data.token_dtype != "auto") options.token_dtype = data.token_dtype;
  options.sequence_length = data.sequence_length;
  options.objective = data.objective == "mlm" ? Objective::kMlm : Objective::kClm;
  options.whole_word_mask = data.whole_word_mask;
  options.next_sentence = data.next_sentence;
  options.packing = data.packing == "best_fit" ? Packing::kBestFit
                    : data.packing == "none"   ? Packing::kNone
                                               : Packing::kConcat;
  options.document_mask = data.document_mask;
  options.eod_loss = data.eod_loss;
  options.seed = static_cast<uint64_t>(data.shuffle_seed.value_or(recipe.run.seed));
  options.global_batch_size = recipe.training.global_batch_size;
  options.micro_batch_size = recipe.training.micro_batch_size;
  options.vocab_rows = config.vocab_size;
  options.tokenizer = tokenizer;
  return options;
}

void SetLoaders(RunSetup* setup) {
  const Recipe& recipe = setup->recipe;
  const LoaderOptions common = CommonLoaderOptions(recipe, setup->config, setup->tokenizer.get());

  setup->train = common;
  for (const DataSource& source : recipe.data.sources) {
    setup->train.sources.push_back({source.path, source.weight.value_or(0)});
  }
  setup->train.mlm_probability = recipe.data.mlm_probability;
  setup->train.shuffle = recipe.data.shuffle;
  setup->train.validation_fraction = recipe.data.validation_fraction;
  setup->train.split = recipe.data.validation_fraction > 0 ? DataSplit::kTrain : DataSplit::kAll;

  LoaderOptions evaluation = common;
  evaluation.mlm_probability = recipe.validation.mlm_probability;
  evaluation.shuffle = recipe.data.next_sentence;  // pairs are drawn by the shuffle
  evaluation.epochs = 1;
  setup->validation.clear();
  for (const ValidationSet& set : recipe.validation.sets) {
    setup->validation.push_back({set.name, evaluation});
    setup->validation.back().options.sources = {{set.path, 0}};
  }
  if (recipe.data.validation_fraction > 0) {
    setup->validation.push_back({"held_out", evaluation});
    LoaderOptions& held_out = setup->validation.back().options;
    for (const DataSource& source : recipe.data.sources)
      held_out.sources.push_back({source.path, 0});
    held_out.validation_fraction = recipe.data.validation_fraction;
    held_out.split = DataSplit::kValidation;
  }
}

absl::Status SetTransformer(RunSetup* setup) {
  const TrainingRecipe& training = setup->recipe.training;
  TransformerOptions& options = setup->transformer;
  options.dtype = setup->engine.dtype;
  TRANCHE_ASSIGN_OR_RETURN(options.recompute, ParseRecompute(training.activation_checkpointing));
  const auto grow = [&](const LoaderOptions& loader) {
    const BatchBounds bounds = ComputeBatchBounds(loader);
    options.max_tokens = std::max(options.max_tokens, bounds.tokens);
    options.max_segments = std::max({options.max_segments, bounds.segments, bounds.sequences});
    options.max_predicted = std::max(options.max_predicted, bounds.predicted);
    options.max_length = std::max(options.max_length, bounds.segment_length);
  };
  grow(setup->train);
  for (const NamedLoader& set : setup->validation) grow(set.options);
  return absl::OkStatus();
}

absl::Status Complete(RunSetup* setup) {
  const Recipe& recipe = setup->recipe;
  setup->engine.tied_embeddings = setup->config.tied;
  setup->engine.zero_stage = static_cast<int>(recipe.parallelism.zero_stage);
  setup->engine.overlap = recipe.parallelism.overlap;
  if (recipe.parallelism.bucket_size) {
    setup->engine.bucket_bytes = recipe.parallelism.bucket_size->value;
  }
  if (recipe.parallelism.reshard_after_forward == "false") {
    setup->engine.layer_slots = std::numeric_limits<int>::max();
  }
  setup->engine.dtype = recipe.training.precision == "bf16" ? DType::kBFloat16 : DType::kFloat32;
  setup->engine.update = {.beta1 = static_cast<float>(recipe.optimizer.betas[0]),
                          .beta2 = static_cast<float>(recipe.optimizer.betas[1]),
                          .eps = static_cast<float>(recipe.optimizer.eps),
                          .weight_decay = static_cast<float>(recipe.optimizer.weight_decay),
                          .max_grad_norm = static_cast<float>(recipe.training.max_grad_norm)};
  SetLoaders(setup);
  return SetTransformer(setup);
}

absl::Status CheckObjective(const Recipe& recipe, const ModelConfig& config) {
  const bool masked = config.head == HeadKind::kMasked;
  if (masked != (recipe.data.objective == "mlm")) {
    return absl::InvalidArgumentError(absl::StrCat(
        recipe.Origin("data.objective"), ": data.objective: \"", recipe.data.objective,
        "\" does not fit ", config.architecture, ", which ",
        masked ? "predicts masked tokens: \"mlm\"" : "predicts the next token: \"clm\""));
  }
  if (recipe.data.next_sentence && !config.next_sentence_head) {
    return absl::InvalidArgumentError(absl::StrCat(
        recipe.Origin("data.next_sentence"), ": data.next_sentence: ", config.architecture,
        " has no next-sentence head; BertForPreTraining has"));
  }
  return absl::OkStatus();
}

bool OfNextSentenceHead(ParamRole role) {
  return role == ParamRole::kPoolerWeight || role == ParamRole::kPoolerBias ||
         role == ParamRole::kNextSentenceWeight || role == ParamRole::kNextSentenceBias;
}

bool HoldsTokenizer(const std::string& folder) {
  return FileExists(JoinPath(folder, "tokenizer.json")) ||
         FileExists(JoinPath(folder, "vocab.txt")) || FileExists(JoinPath(folder, "vocab.json"));
}

}  // namespace

namespace {

// The largest micro-batch that divides the batch and leaves every rank one, if there are as many
// sequences.
int64_t RankShare(int64_t global_batch_size, int ranks) {
  int64_t share = std::max<int64_t>(1, global_batch_size / ranks);
  while (global_batch_size % share != 0) --share;
  return share;
}

// How many groups of ranks shard one copy each.
absl::StatusOr<int> Replicas(const ParallelismRecipe& recipe, int ranks) {
  const int64_t replicas = recipe.data_parallel_replicate_degree;
  const int64_t shards = recipe.data_parallel_shard_degree;
  if (ranks == 1 || (replicas == 1 && shards == -1)) return 1;
  if (replicas * (shards == -1 ? ranks / replicas : shards) != ranks || ranks % replicas != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parallelism: data_parallel_replicate_degree = ", replicas,
        " times data_parallel_shard_degree = ", shards, " must be the ", ranks, " ranks"));
  }
  if (replicas == ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("parallelism: with data_parallel_replicate_degree = ", replicas, " for ",
                     ranks, " ranks nothing is sharded; write zero_stage = 0 instead"));
  }
  return static_cast<int>(replicas);
}

}  // namespace

absl::StatusOr<RunSetup> SetUpRun(const Recipe& recipe, bool with_tokenizer, int ranks) {
  RunSetup setup;
  setup.ranks = ranks;
  TRANCHE_ASSIGN_OR_RETURN(setup.replicas, Replicas(recipe.parallelism, ranks));
  setup.recipe = recipe;
  TrainingRecipe& training = setup.recipe.training;
  if (training.micro_batch_size == 0) {
    training.micro_batch_size = RankShare(training.global_batch_size, ranks);
  }
  TRANCHE_ASSIGN_OR_RETURN(setup.config_json, RecipeModelConfig(recipe));
  const std::string source =
      recipe.model.path.empty() ? "[model]" : JoinPath(recipe.model.path, "config.json");
  TRANCHE_ASSIGN_OR_RETURN(setup.config, ParseModelConfig(setup.config_json, source));
  TRANCHE_RETURN_IF_ERROR(CheckObjective(recipe, setup.config));
  setup.specs = BuildParamSpecs(setup.config);
  SetParamUpdates(recipe.optimizer, &setup.specs);
  if (!recipe.data.next_sentence) {
    // A head that is not trained gets no gradient; without decay it stays as it is to the bit.
    setup.config.next_sentence_head = false;
    for (ParamSpec& spec : setup.specs) {
      if (OfNextSentenceHead(spec.role)) spec.decay = false;
    }
  }
  const std::string& tokenizer_path =
      recipe.tokenizer.path.empty() ? recipe.model.path : recipe.tokenizer.path;
  // A model folder without a tokenizer is fine for a model that predicts the next id.
  const bool optional = tokenizer_path == recipe.model.path && recipe.data.objective == "clm";
  if (with_tokenizer && !tokenizer_path.empty() && !(optional && !HoldsTokenizer(tokenizer_path))) {
    TRANCHE_ASSIGN_OR_RETURN(setup.tokenizer, Tokenizer::Load(tokenizer_path));
    for (const std::string& warning : setup.tokenizer->warnings()) LogWarning(warning);
  }
  TRANCHE_RETURN_IF_ERROR(Complete(&setup));
  return setup;
}

absl::StatusOr<RunSetup> SetUpVariant(const RunSetup& setup, const TrainingRecipe& training) {
  RunSetup variant;
  variant.recipe = setup.recipe;
  variant.recipe.training = training;
  variant.config_json = setup.config_json;
  variant.config = setup.config;
  variant.specs = setup.specs;
  variant.ranks = setup.ranks;
  variant.replicas = setup.replicas;
  TRANCHE_RETURN_IF_ERROR(Complete(&variant));
  variant.engine.zero_stage = setup.engine.zero_stage;
  variant.engine.bucket_bytes = setup.engine.bucket_bytes;
  variant.engine.layer_slots = setup.engine.layer_slots;
  return variant;
}

absl::StatusOr<int64_t> TotalSteps(const Recipe& recipe, int64_t samples_per_epoch) {
  const TrainingRecipe& training = recipe.training;
  if (training.max_steps) return *training.max_steps;
  const auto batch = static_cast<double>(training.global_batch_size);
  if (training.max_tokens) {
    const int64_t step_tokens = training.global_batch_size * recipe.data.sequence_length;
    return (*training.max_tokens + step_tokens - 1) / step_tokens;
  }
  if (!training.max_epochs) return absl::InvalidArgumentError("training: the run has no length");
  if (samples_per_epoch <= 0) {
    return absl::FailedPreconditionError(
        "training.max_epochs: the number of steps is known when the data is there");
  }
  return std::max<int64_t>(
      1, static_cast<int64_t>(
             std::ceil(*training.max_epochs * static_cast<double>(samples_per_epoch) / batch)));
}

absl::StatusOr<Schedule> MakeSchedule(const Recipe& recipe, int64_t total_steps) {
  const LrSchedulerRecipe& lr = recipe.lr_scheduler;
  Schedule schedule;
  TRANCHE_ASSIGN_OR_RETURN(schedule.kind, ParseScheduleKind(lr.name));
  schedule.peak = recipe.optimizer.lr;
  schedule.total_steps = total_steps;
  schedule.warmup_steps = lr.warmup_steps.value_or(static_cast<int64_t>(
      std::llround(lr.warmup_ratio.value_or(0) * static_cast<double>(total_steps))));
  schedule.min_ratio = lr.min_lr_ratio;
  schedule.decay_ratio = lr.decay_ratio;
  const absl::Status status = schedule.Check();
  if (!status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(recipe.Origin("lr_scheduler.warmup_steps"), ": ", status.message()));
  }
  return schedule;
}

}  // namespace tranche
