// Strict JSON for untrusted files: one value, UTF-8, no byte-order mark, no duplicate keys, no
// trailing commas, nesting at most 64 deep. Errors carry file:line:column.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace tranche {

// `source` names the text in errors (usually a path). Object keys keep no order (sorted); use
// ParseOrderedJson to keep it.
absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text, const std::string& source);
absl::StatusOr<nlohmann::ordered_json> ParseOrderedJson(absl::string_view text,
                                                        const std::string& source);
absl::StatusOr<nlohmann::json> ReadJsonFile(const std::string& path);

}  // namespace tranche
