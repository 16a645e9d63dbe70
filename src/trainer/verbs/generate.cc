// `tranche generate`.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/status.h"
#include "base/text.h"
#include "model/generate.h"
#include "nlohmann/json.hpp"
#include "tensor/plan_backend.h"
#include "trainer/exit_codes.h"
#include "trainer/run_setup.h"
#include "trainer/saved_model.h"
#include "trainer/verbs/verbs.h"

namespace tranche {
namespace {

struct Prompt {
  std::string text;
  std::vector<int32_t> ids;
};

absl::StatusOr<SamplingOptions> ReadSampling(const Arguments& arguments) {
  SamplingOptions sampling;
  constexpr int64_t kMany = int64_t{1} << 30;
  TRANCHE_ASSIGN_OR_RETURN(sampling.max_new_tokens,
                           arguments.GetInt("max-new-tokens", 128, 1, kMany));
  TRANCHE_ASSIGN_OR_RETURN(sampling.temperature, arguments.GetDouble("temperature", 0, 0, 1e6));
  TRANCHE_ASSIGN_OR_RETURN(sampling.top_k, arguments.GetInt("top-k", 0, 0, kMany));
  TRANCHE_ASSIGN_OR_RETURN(sampling.top_p, arguments.GetDouble("top-p", 1, 0, 1));
  TRANCHE_ASSIGN_OR_RETURN(const int64_t seed, arguments.GetInt("seed", 0, 0, INT64_MAX));
  sampling.seed = static_cast<uint64_t>(seed);
  if (sampling.temperature == 0) {
    for (const char* flag : {"top-k", "top-p", "seed"}) {
      if (!arguments.Has(flag)) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "--", flag, " has no effect without --temperature: the likeliest token is always taken"));
    }
  }
  return sampling;
}

absl::StatusOr<std::vector<std::string>> ReadPrompts(const Arguments& arguments) {
  std::vector<std::string> prompts = arguments.GetAll("prompt");
  for (const std::string& path : arguments.GetAll("prompt-file")) {
    TRANCHE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
    std::vector<std::string> lines = absl::StrSplit(text, '\n');
    if (lines.back().empty()) lines.pop_back();
    prompts.insert(prompts.end(), lines.begin(), lines.end());
  }
  if (prompts.empty()) {
    return absl::InvalidArgumentError("nothing to continue: give --prompt TEXT or --prompt-file");
  }
  int64_t replaced = 0;
  for (const std::string& prompt : prompts) {
    if (const auto offset = FindInvalidUtf8(prompt); offset.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("prompt \"",
                                                     ReplaceInvalidUtf8(prompt, &replaced),
                                                     "\": byte ", *offset, " is not valid UTF-8"));
    }
  }
  return prompts;
}

absl::StatusOr<std::vector<Prompt>> EncodePrompts(const std::vector<std::string>& texts,
                                                  const RunSetup& setup) {
  std::vector<Prompt> prompts;
  for (const std::string& text : texts) {
    Prompt prompt{text, {}};
    setup.tokenizer->Encode(text, /*add_special=*/true, &prompt.ids);
    // An empty text of a tokenizer that adds nothing: start as documents start.
    if (prompt.ids.empty() && setup.config.bos_token_id >= 0) {
      prompt.ids.push_back(static_cast<int32_t>(setup.config.bos_token_id));
    }
    if (prompt.ids.empty()) {
      return absl::InvalidArgumentError(
          "an empty prompt, and the model has no token to begin with: give some text");
    }
    for (const int32_t id : prompt.ids) {
      if (id < setup.config.vocab_size) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("prompt \"", text, "\" holds token ", id, " (",
                       setup.tokenizer->IdToToken(id), "), but the model has only ",
                       setup.config.vocab_size, " rows: the tokenizer is of another model"));
    }
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

// generation_config.json decides where it speaks, then config.json, then the tokenizer.
absl::StatusOr<std::vector<int64_t>> StopIds(const std::string& folder, const RunSetup& setup) {
  const std::string path = JoinPath(folder, "generation_config.json");
  if (FileExists(path)) {
    TRANCHE_ASSIGN_OR_RETURN(const nlohmann::json json, ReadJsonFile(path));
    const auto found = json.find("eos_token_id");
    if (json.is_object() && found != json.end() && !found->is_null()) {
      std::vector<int64_t> ids;
      for (const nlohmann::json& id : found->is_array() ? *found : nlohmann::json{*found}) {
        if (!id.is_number_integer()) {
          return absl::InvalidArgumentError(
              absl::StrCat(path, ": eos_token_id must be an integer or a list of integers"));
        }
        ids.push_back(id.get<int64_t>());
      }
      return ids;
    }
  }
  if (!setup.config.eos_token_ids.empty()) return setup.config.eos_token_ids;
  std::vector<int64_t> ids;
  if (setup.tokenizer->specials().eos >= 0) ids.push_back(setup.tokenizer->specials().eos);
  return ids;
}

// The engine and the generator of one run; on a rehearsal arena, their plan.
struct GenerateRun {
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Generator> generator;

  static absl::StatusOr<GenerateRun> Create(const RunSetup& setup, int64_t max_length,
                                            Backend& backend, Arena& arena) {
    GenerateRun run;
    EngineOptions options = setup.engine;
    options.training = false;
    run.engine = Engine::Create(setup.specs, options, backend, arena);
    TRANCHE_ASSIGN_OR_RETURN(run.generator,
                             Generator::Create(setup.config, setup.specs,
                                               {.dtype = options.dtype, .max_length = max_length},
                                               backend, arena, *run.engine));
    arena.Seal();
    return run;
  }
};

absl::Status Generate(const Arguments& arguments) {
  TRANCHE_ASSIGN_OR_RETURN(SamplingOptions sampling, ReadSampling(arguments));
  TRANCHE_ASSIGN_OR_RETURN(const std::vector<std::string> texts, ReadPrompts(arguments));
  TRANCHE_ASSIGN_OR_RETURN(const int64_t threads, arguments.GetInt("threads", 0, 0, 4096));
  const std::string& path = arguments.positionals()[0];
  TRANCHE_ASSIGN_OR_RETURN(const SavedModel model, OpenSavedModel(path, {}));
  TRANCHE_ASSIGN_OR_RETURN(const RunSetup setup, SetUpRun(model.recipe, /*with_tokenizer=*/true));
  if (setup.tokenizer == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, ": no tokenizer (tokenizer.json, vocab.txt, or vocab.json + merges.txt)"));
  }
  TRANCHE_ASSIGN_OR_RETURN(const std::vector<Prompt> prompts, EncodePrompts(texts, setup));
  TRANCHE_ASSIGN_OR_RETURN(
      sampling.stop_ids, StopIds(model.checkpoint.empty() ? path : model.recipe.model.path, setup));

  int64_t longest = 0;
  for (const Prompt& prompt : prompts) {
    longest = std::max<int64_t>(longest, static_cast<int64_t>(prompt.ids.size()));
  }
  const int64_t positions = setup.config.max_positions;
  if (longest >= positions) {
    return absl::InvalidArgumentError(absl::StrCat("a prompt has ", longest,
                                                   " tokens, but the model was made for ",
                                                   positions, " together with what it writes"));
  }
  if (longest + sampling.max_new_tokens > positions && arguments.Has("max-new-tokens")) {
    LogNote(absl::StrCat("the model was made for ", positions,
                         " tokens: it stops there, before --max-new-tokens"));
  }
  const int64_t max_length = std::min(longest + sampling.max_new_tokens, positions);

  const std::unique_ptr<PlanBackend> plan = CreatePlanBackend(static_cast<int>(threads));
  Arena rehearsal = Arena::Rehearsal();
  TRANCHE_RETURN_IF_ERROR(GenerateRun::Create(setup, max_length, *plan, rehearsal).status());
  const std::unique_ptr<Backend> backend = CreateCpuBackend(static_cast<int>(threads));
  TRANCHE_ASSIGN_OR_RETURN(Arena arena, Arena::OnHost(rehearsal.peak()));
  TRANCHE_ASSIGN_OR_RETURN(const GenerateRun run,
                           GenerateRun::Create(setup, max_length, *backend, arena));
  const std::unique_ptr<Stream> stream = backend->CreateStream("load");
  TRANCHE_RETURN_IF_ERROR(LoadSavedWeights(model, setup, *run.engine, *backend, *stream));

  for (size_t i = 0; i < prompts.size(); ++i) {
    std::vector<int32_t> ids = prompts[i].ids;
    const std::vector<int32_t> generated = run.generator->Generate(ids, sampling, i);
    ids.insert(ids.end(), generated.begin(), generated.end());
    absl::PrintF("%s%s\n", i == 0 ? "" : "\n", setup.tokenizer->Decode(ids, /*skip_special=*/true));
  }
  return absl::OkStatus();
}

int Run(const Arguments& arguments) {
  const absl::Status status = Generate(arguments);
  return status.ok() ? kExitDone : ReportError(status);
}

}  // namespace

Verb GenerateVerb() {
  return {
      .name = "generate",
      .summary = "Continues a text with a causal model.",
      .usage = "MODEL --prompt TEXT [flags]",
      .example = "tranche generate runs/quickstart --prompt \"Once upon a time\" --temperature 0.8",
      .flags = {{"prompt", "TEXT", "Text to continue; may be repeated.", true},
                {"prompt-file", "FILE", "One prompt per line; may be repeated.", true},
                {"max-new-tokens", "N", "Tokens to write at most, 128 by default."},
                {"temperature", "T", "Spread of the choice; 0, the default, takes the likeliest."},
                {"top-k", "K", "Choose among the K likeliest tokens only."},
                {"top-p", "P", "Choose among the likeliest that together reach P only."},
                {"seed", "S", "Of the choices; the same seed writes the same text."},
                {"threads", "N", "Threads to compute with; 0 takes all there are."}},
      .min_positionals = 1,
      .max_positionals = 1,
      .run = Run,
  };
}

}  // namespace tranche
