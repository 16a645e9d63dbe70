// `tranche inspect` pointed at a checkpoint.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace tranche {

// What the checkpoint at `path` holds, as text or JSON, after comparing every checksum. A damaged
// file is an error that names it.
absl::StatusOr<std::string> InspectCheckpoint(const std::string& path, bool json);

}  // namespace tranche
