// Loading a recipe: the text decoded, --set applied over it, what follows from its values filled
// in, everything checked, and all faults told at once.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <limits>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/file.h"
#include "base/status.h"
#include "trainer/recipe.h"
#include "trainer/recipe_decode.h"
#include "trainer/recipe_fields.h"
#include "trainer/recipe_toml.h"

namespace tranche {
namespace {

constexpr size_t kMaxFaults = 100;

// A length or warm-up given by --set replaces the file's, in whichever unit that was given.
void DropOverridden(TomlValue* root, absl::string_view section,
                    const std::vector<std::string>& alternatives) {
  TomlValue* table = root->Find(section);
  if (table == nullptr) return;
  auto& entries = table->entries;
  const auto is_one = [&](const auto& entry) {
    return absl::c_linear_search(alternatives, entry.key);
  };
  if (!absl::c_any_of(entries,
                      [&](const auto& entry) { return is_one(entry) && entry.value.line == 0; }))
    return;
  entries.erase(
      std::remove_if(entries.begin(), entries.end(),
                     [&](const auto& entry) { return is_one(entry) && entry.value.line != 0; }),
      entries.end());
}

// "1ep", "28e9tok", "7121steps" -> max_epochs, max_tokens, max_steps, under the origin of
// `duration`.
void ResolveDuration(Recipe* recipe, RecipeDecoder* decoder) {
  TrainingRecipe& training = recipe->training;
  if (!training.duration) return;
  const std::string origin = recipe->Origin("training.duration");
  const auto fault = [&] {
    decoder->Fault(0, origin, "training.duration",
                   absl::StrCat(TomlString(*training.duration),
                                " is not a length; write a number and its unit: \"7121steps\", "
                                "\"28e9tok\" or \"1ep\""));
  };
  absl::string_view text = absl::StripAsciiWhitespace(*training.duration);
  size_t digits = text.size();
  while (digits > 0 && absl::ascii_isalpha(static_cast<unsigned char>(text[digits - 1]))) --digits;
  const absl::string_view unit = text.substr(digits);
  double number = 0;
  if (!absl::SimpleAtod(text.substr(0, digits), &number) || !(number > 0) || number > 0x1p53)
    return fault();
  const auto whole = [&](std::optional<int64_t>* out) {
    if (number != std::floor(number)) return fault();
    *out = static_cast<int64_t>(number);
  };
  const char* key = "training.max_steps";
  if (unit == "ep" || unit == "epoch" || unit == "epochs") {
    key = "training.max_epochs";
    training.max_epochs = number;
  } else if (unit == "tok" || unit == "token" || unit == "tokens") {
    key = "training.max_tokens";
    whole(&training.max_tokens);
  } else if (unit == "step" || unit == "steps") {
    whole(&training.max_steps);
  } else {
    return fault();
  }
  recipe->origins[key] = origin;
  recipe->origins.erase("training.duration");
  training.duration.reset();
}

void ResolveNames(Recipe* recipe, RecipeDecoder* decoder, bool output_dir_is_default) {
  const char* slurm_job = std::getenv("SLURM_JOB_ID");
  const std::string job = slurm_job != nullptr ? slurm_job : absl::StrCat(getpid());
  std::array<char, 16> date{};
  const std::time_t now = std::time(nullptr);
  std::tm calendar{};
  std::strftime(date.data(), date.size(), "%Y%m%d", localtime_r(&now, &calendar));
  std::string& name = recipe->run.name;
  name = absl::StrReplaceAll(name, {{"%date", date.data()}, {"%jobid", job}});
  const auto allowed = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
           absl::StrContains("-_.+=@", absl::string_view(&c, 1)) ||
           static_cast<unsigned char>(c) >= 0x80;
  };
  if (name.empty() || name[0] == '.' || !absl::c_all_of(name, allowed)) {
    decoder->Fault(
        0, recipe->Origin("run.name"), "run.name",
        absl::StrCat(
            TomlString(name),
            " cannot name a folder; allowed: letters, digits and -_.+=@, not starting with ."));
  }
  std::string& output = recipe->run.output_dir;
  output = absl::StrReplaceAll(output, {{"%name", name}, {"%date", date.data()}, {"%jobid", job}});
  if (output_dir_is_default) output = ResolvePath(output, CurrentFolder());
}

// One line of at most `size` bytes, whatever a hostile recipe put into it.
std::string OneLine(absl::string_view text, size_t size) {
  std::string out;
  for (const char c : text) {
    if (out.size() >= size && (static_cast<unsigned char>(c) & 0xC0) != 0x80) return out + "...";
    out += absl::ascii_iscntrl(static_cast<unsigned char>(c)) ? '?' : c;
  }
  return out;
}

absl::Status JoinFaults(std::vector<RecipeFault> faults) {
  std::stable_sort(faults.begin(), faults.end(), [](const RecipeFault& a, const RecipeFault& b) {
    const auto rank = [](int line) { return line == 0 ? std::numeric_limits<int>::max() : line; };
    return rank(a.line) < rank(b.line);
  });
  const size_t shown = std::min(faults.size(), kMaxFaults);
  std::vector<std::string> lines;
  for (size_t i = 0; i < shown; ++i) {
    const RecipeFault& fault = faults[i];
    const std::string key = fault.key.empty() ? "" : absl::StrCat(OneLine(fault.key, 200), ": ");
    lines.push_back(absl::StrCat(fault.where, ": ", key, OneLine(fault.what, 2000)));
  }
  if (faults.size() > shown)
    lines.push_back(absl::StrCat("and ", faults.size() - shown, " more faults"));
  return absl::InvalidArgumentError(absl::StrJoin(lines, "\n"));
}

// The line at the end of "source:12", for sorting; 0 for "--set" and "default".
int LineOf(const std::string& where) {
  const size_t colon = where.rfind(':');
  int line = 0;
  return colon != std::string::npos && absl::SimpleAtoi(where.substr(colon + 1), &line) ? line : 0;
}

}  // namespace

absl::StatusOr<Recipe> ParseRecipe(absl::string_view text, const std::string& source,
                                   absl::Span<const std::string> sets, RecipeFiles files) {
  TRANCHE_ASSIGN_OR_RETURN(TomlValue root, ParseToml(text, source));
  Recipe recipe;
  RecipeDecoder decoder(root, source, &recipe);
  for (const std::string& set : sets) {
    const absl::Status status = ApplySet(set, &root);
    if (!status.ok()) decoder.Fault(0, "--set", "", status.message());
  }
  DropOverridden(&root, "training", {"max_steps", "max_tokens", "max_epochs", "duration"});
  DropOverridden(&root, "lr_scheduler", {"warmup_steps", "warmup_ratio"});
  Recipe::VisitFields(recipe, decoder);
  decoder.ReportUnknownSections();
  ResolveDuration(&recipe, &decoder);
  ResolveNames(&recipe, &decoder, recipe.origins.count("run.output_dir") == 0);
  if (recipe.tokenizer.path.empty()) recipe.tokenizer.path = recipe.model.path;
  std::vector<std::string> faulty;
  for (const RecipeFault& fault : decoder.faults()) faulty.push_back(fault.key);
  CheckRecipe(recipe, files, faulty, &decoder.faults());
  if (decoder.faults().empty()) return recipe;
  for (RecipeFault& fault : decoder.faults()) {
    if (fault.where == "default") {  // what is not there is missed in its section
      const TomlValue* section = root.Find(fault.key.substr(0, fault.key.find('.')));
      fault.where = section == nullptr ? absl::StrCat(source, ":1") : section->where;
    }
    if (fault.line == 0) fault.line = LineOf(fault.where);
  }
  return JoinFaults(std::move(decoder.faults()));
}

absl::StatusOr<Recipe> LoadRecipe(const std::string& path, absl::Span<const std::string> sets,
                                  RecipeFiles files) {
  TRANCHE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  return ParseRecipe(file.data(), path, sets, files);
}

bool SameValues(const Recipe& a, const Recipe& b) {
  return a.run == b.run && a.model == b.model && a.tokenizer == b.tokenizer && a.data == b.data &&
         a.validation == b.validation && a.training == b.training &&
         a.parallelism == b.parallelism && a.optimizer == b.optimizer &&
         a.lr_scheduler == b.lr_scheduler && a.checkpoint == b.checkpoint &&
         a.metrics == b.metrics && a.launch == b.launch && a.profiler == b.profiler &&
         a.fault_tolerance == b.fault_tolerance;
}

}  // namespace tranche
