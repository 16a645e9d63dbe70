// `tranche inspect` pointed at the directory of a run.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace tranche {

bool IsRunDirectory(const std::string& path);

// How far the run is, its checkpoints (sizes compared with their manifests; checksums are compared
// by pointing at one of them), its model and its recipe, as text or JSON. A damaged checkpoint is
// named in its row and is no error.
absl::StatusOr<std::string> InspectRun(const std::string& path, bool json);

}  // namespace tranche
