// `tranche eval`.
#include <cstdio>
#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"
#include "data/tokenize.h"
#include "nlohmann/json.hpp"
#include "trainer/cli.h"
#include "trainer/evaluate.h"
#include "trainer/exit_codes.h"
#include "trainer/rehearsal.h"
#include "trainer/run_setup.h"
#include "trainer/saved_model.h"
#include "trainer/session.h"
#include "trainer/signals.h"
#include "trainer/verbs/verbs.h"

namespace tranche {
namespace {

// A folder of its own that goes away with it.
class ScratchFolder {
 public:
  static absl::StatusOr<std::unique_ptr<ScratchFolder>> Create() {
    std::string path = (std::filesystem::temp_directory_path() / "tranche-eval-XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) return ErrnoStatus(path, "cannot make folder");
    return std::unique_ptr<ScratchFolder>(new ScratchFolder(std::move(path)));
  }
  ~ScratchFolder() { FileSystem::Real().RemoveAll(path_).IgnoreError(); }
  const std::string& path() const { return path_; }

 private:
  explicit ScratchFolder(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

absl::StatusOr<ValidationSet> TokenizeText(const std::string& file, const RunSetup& setup,
                                           const ScratchFolder& scratch) {
  if (setup.tokenizer == nullptr) {
    return absl::FailedPreconditionError(
        "--text: the model has no tokenizer; name one with --set tokenizer.path=FOLDER");
  }
  TokenizeOptions options;
  options.inputs = {file};
  options.output = JoinPath(scratch.path(), "text");
  options.append_eos =
      setup.config.head == HeadKind::kCausal && setup.tokenizer->specials().eos >= 0;
  TRANCHE_RETURN_IF_ERROR(TokenizeCorpus(*setup.tokenizer, options).status());
  return ValidationSet{BaseName(file), options.output};
}

absl::Status Evaluate(const Arguments& arguments) {
  std::vector<std::string> sets = arguments.GetAll("set");
  TRANCHE_ASSIGN_OR_RETURN(SavedModel model, OpenSavedModel(arguments.positionals()[0], sets));
  TRANCHE_ASSIGN_OR_RETURN(const int64_t steps,
                           arguments.GetInt("steps", model.recipe.validation.steps, 0, INT64_MAX));
  std::unique_ptr<ScratchFolder> scratch;
  if (arguments.Has("data") || arguments.Has("text")) {
    // Sets given here replace those of the recipe.
    model.recipe.data.validation_fraction = 0;
    model.recipe.validation.sets.clear();
    for (const std::string& path : arguments.GetAll("data")) {
      model.recipe.validation.sets.push_back({BaseName(path), path});
    }
    if (arguments.Has("text")) {
      TRANCHE_ASSIGN_OR_RETURN(const RunSetup setup, SetUpRun(model.recipe, true));
      TRANCHE_ASSIGN_OR_RETURN(scratch, ScratchFolder::Create());
      TRANCHE_ASSIGN_OR_RETURN(ValidationSet set,
                               TokenizeText(arguments.Get("text"), setup, *scratch));
      model.recipe.validation.sets.push_back(std::move(set));
    }
  }
  TRANCHE_ASSIGN_OR_RETURN(const RunSetup setup, SetUpRun(model.recipe, true));
  if (setup.validation.empty()) {
    return absl::InvalidArgumentError(
        "there is nothing to evaluate on: the recipe has no [validation] sets; give --data PREFIX "
        "or --text FILE");
  }
  std::vector<std::unique_ptr<Loader>> loaders;
  for (const NamedLoader& set : setup.validation) {
    TRANCHE_ASSIGN_OR_RETURN(loaders.emplace_back(), Loader::Create(set.options));
  }

  const int threads = UsableThreads();
  TRANCHE_ASSIGN_OR_RETURN(const Rehearsal plan, Rehearse(setup, /*training=*/false, threads));
  TRANCHE_ASSIGN_OR_RETURN(Arena arena, Arena::OnHost(plan.peak_bytes));
  const std::unique_ptr<Backend> backend = CreateCpuBackend(threads);
  TRANCHE_ASSIGN_OR_RETURN(const auto session,
                           Session::Create(setup, /*training=*/false, *backend, arena));
  TRANCHE_RETURN_IF_ERROR(
      LoadSavedWeights(model, setup, session->engine(), *backend, session->stream()));
  CatchStopSignals();
  for (size_t i = 0; i < loaders.size(); ++i) {
    TRANCHE_ASSIGN_OR_RETURN(const EvaluationResult result,
                             EvaluateSet(*session, setup.validation[i].name, *loaders[i], steps,
                                         [] { return StopSignal() != nullptr; }));
    const std::string line =
        arguments.Has("json") ? EvaluationJson(result, 0) : EvaluationLine(result);
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

int Run(const Arguments& arguments) {
  const absl::Status status = Evaluate(arguments);
  return status.ok() ? kExitDone : ReportError(status);
}

}  // namespace

Verb EvalVerb() {
  return {
      .name = "eval",
      .summary = "The loss, perplexity and bits per byte of a model on validation sets or text.",
      .usage = "CHECKPOINT|RUN_DIRECTORY|MODEL_FOLDER [flags]",
      .example = "tranche eval runs/quickstart --text held-out.txt",
      .flags = {{"data", "PREFIX", "Evaluates on this tokenized dataset; may be repeated.", true},
                {"text", "FILE", "Evaluates on this text, cut into documents at blank lines."},
                {"steps", "N", "Global batches of each set; default: what the recipe says."},
                SetFlag(),
                {"json", "", "Prints one JSON object a set."}},
      .min_positionals = 1,
      .max_positionals = 1,
      .run = Run};
}

}  // namespace tranche
