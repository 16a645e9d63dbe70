// The recipes of the project's recipes/ folder, compiled into the program, so that it needs no
// files beside it.
#pragma once

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tranche {

struct BundledRecipe {
  absl::string_view name;  // "quickstart"
  absl::string_view text;
};

absl::Span<const BundledRecipe> BundledRecipes();  // sorted by name

}  // namespace tranche
