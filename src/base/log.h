// What the program says while it works. Notes and warnings go to stderr, one line each, prefixed by
// their level ("warning: …"); results go to stdout by whoever made them. Colour only on a terminal
// and never with NO_COLOR set.
#pragma once

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace tranche {

void LogNote(absl::string_view message);
void LogWarning(absl::string_view message);
void LogError(absl::string_view message);

// Where lines may be rewritten: a terminal, TERM not "dumb".
bool TakesEscapes(int fd);
bool UseColor(int fd);  // that, and NO_COLOR unset or empty

}  // namespace tranche
