// Slurm's short forms of lists: "node[0-3,7],gpu01" and "2(x3),1".
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace tranche {

// The first host of a list ("rack[2-3]n[01-04]-ib,x" -> "rack2n01-ib"), or nothing where it is
// malformed.
std::optional<std::string> FirstHost(absl::string_view hostlist);

// Entry `index` of counts per node ("2(x3),1": 2, 2, 2, 1), or nothing where there is none.
std::optional<int> NthCount(absl::string_view counts, int index);

}  // namespace tranche
