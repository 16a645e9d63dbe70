// `tranche recipes list|show|copy|reference`: the recipes of the project's recipes/ folder travel
// inside the program.
#include <cerrno>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/status.h"
#include "base/text.h"
#include "trainer/bundled_recipes.h"
#include "trainer/cli.h"
#include "trainer/exit_codes.h"
#include "trainer/recipe.h"
#include "trainer/verbs/verbs.h"

namespace tranche {
namespace {

absl::StatusOr<BundledRecipe> Find(absl::string_view word) {
  const absl::string_view name = absl::StripSuffix(word, ".toml");
  std::vector<std::string> names;
  for (const BundledRecipe& recipe : BundledRecipes()) {
    if (recipe.name == name) return recipe;
    names.emplace_back(recipe.name);
  }
  const std::string hint = DidYouMean(name, names);
  return absl::NotFoundError(absl::StrCat(
      "no recipe \"", name, "\"", hint.empty() ? "; `tranche recipes list` shows them" : hint));
}

// The first comment line says what a recipe is for.
absl::string_view Summary(absl::string_view text) {
  return absl::StripPrefix(text.substr(0, text.find('\n')), "# ");
}

int List(const Arguments&) {
  for (const BundledRecipe& recipe : BundledRecipes()) {
    absl::PrintF("%-18s %s\n", recipe.name, Summary(recipe.text));
  }
  return kExitDone;
}

int Show(const Arguments& arguments) {
  const auto recipe = Find(arguments.positionals()[0]);
  if (!recipe.ok()) return ReportError(recipe.status());
  absl::PrintF("%s", recipe->text);
  return kExitDone;
}

int Reference(const Arguments&) {
  absl::PrintF("%s", RecipeReference());
  return kExitDone;
}

absl::Status CopyTo(const BundledRecipe& recipe, const std::string& path) {
  // "x": fails where the file exists, so that a recipe someone has edited is never lost.
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "wx"),
                                                             std::fclose);
  if (file == nullptr) {
    if (errno == EEXIST) {
      return absl::AlreadyExistsError(
          absl::StrCat(path, ": exists already and is left as it is; give another name"));
    }
    return ErrnoStatus(path, "cannot create");
  }
  if (std::fwrite(recipe.text.data(), 1, recipe.text.size(), file.get()) != recipe.text.size() ||
      std::fflush(file.get()) != 0) {
    absl::Status status = ErrnoStatus(path, "cannot write");
    std::remove(path.c_str());
    return status;
  }
  return absl::OkStatus();
}

int Copy(const Arguments& arguments) {
  const auto recipe = Find(arguments.positionals()[0]);
  if (!recipe.ok()) return ReportError(recipe.status());
  const std::string file_name = absl::StrCat(recipe->name, ".toml");
  std::string path = arguments.positionals().size() > 1 ? arguments.positionals()[1] : file_name;
  if (IsDirectory(path)) path = JoinPath(path, file_name);
  if (const absl::Status status = CopyTo(*recipe, path); !status.ok()) return ReportError(status);
  absl::PrintF("%s\n", path);
  return kExitDone;
}

}  // namespace

Verb RecipesListVerb() {
  return {.name = "recipes list",
          .summary = "Lists the recipes that come with Tranche.",
          .usage = "",
          .example = "tranche recipes list",
          .run = List};
}

Verb RecipesShowVerb() {
  return {.name = "recipes show",
          .summary = "Prints a recipe that comes with Tranche.",
          .usage = "NAME",
          .example = "tranche recipes show quickstart",
          .min_positionals = 1,
          .max_positionals = 1,
          .run = Show};
}

Verb RecipesCopyVerb() {
  return {.name = "recipes copy",
          .summary = "Copies a recipe to a file or folder, to be edited; never overwrites.",
          .usage = "NAME [PATH]",
          .example = "tranche recipes copy quickstart my.toml",
          .min_positionals = 1,
          .max_positionals = 2,
          .run = Copy};
}

Verb RecipesReferenceVerb() {
  return {.name = "recipes reference",
          .summary = "Prints every key that a recipe may hold, with its meaning and default.",
          .usage = "",
          .example = "tranche recipes reference > docs/recipe.md",
          .run = Reference};
}

}  // namespace tranche
