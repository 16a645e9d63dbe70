// Where a loss or gradient that is not finite comes from.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "data/loader.h"
#include "trainer/session.h"

namespace tranche {

// Names the first tensor that is not finite, and its layer: of the weights in forward order, else
// of the gradients in the order in which backward reaches them, computed again for the global batch
// of `step` (from 1) at the present weights. Waits for the stream; leaves weights and state
// untouched and the gradients undefined.
absl::StatusOr<std::string> FindNonFinite(Session& session, const Loader& loader, int64_t step,
                                          const StepScale& scale);

}  // namespace tranche
