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

bool IsTerminal(int fd);
// True where escape codes may be written to fd: a terminal, NO_COLOR unset or empty, TERM not
// "dumb".
bool UseColor(int fd);

}  // namespace tranche
