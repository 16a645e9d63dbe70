#include "trainer/nonfinite.h"

#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "trainer/tensor_transfer.h"
#include "zero/group_layout.h"

namespace tranche {
namespace {

// The index of the first element that is not finite, or -1.
int64_t FirstNonFinite(TensorTransfer& transfer, Tensor tensor) {
  int64_t seen = 0, found = -1;
  const absl::Status status =
      transfer.ToHost(tensor, TensorType::kF32, [&](absl::string_view bytes) {
        for (size_t i = 0; i < bytes.size() / 4 && found < 0; ++i, ++seen) {
          float value;
          std::memcpy(&value, bytes.data() + 4 * i, 4);
          if (!std::isfinite(value)) found = seen;
        }
        return found < 0 ? absl::OkStatus() : absl::CancelledError();
      });
  return status.ok() ? -1 : found;
}

std::string Place(const std::vector<ParamSpec>& specs, size_t param, int64_t element) {
  const ParamSpec& spec = specs[param];
  const std::string group = GroupName(spec.group, specs.back().group + 1);
  return absl::StrCat(spec.name, " (", group, "), element [", element / spec.cols, ", ",
                      element % spec.cols, "]");
}

}  // namespace

absl::StatusOr<std::string> FindNonFinite(Session& session, const Loader& loader, int64_t step,
                                          const StepScale& scale) {
  const std::vector<ParamSpec>& specs = session.engine().specs();
  TensorTransfer transfer(session.backend(), session.stream());
  for (size_t i = 0; i < specs.size(); ++i) {
    const int64_t at = FirstNonFinite(transfer, session.engine().Weight(static_cast<int>(i)));
    if (at >= 0) return absl::StrCat("the weights of ", Place(specs, i, at));
  }
  session.BeginStep();
  for (int64_t slot = 0; slot < loader.slots(); ++slot) {
    TRANCHE_ASSIGN_OR_RETURN(MicroBatch batch, loader.Get(step - 1, slot));
    session.ForwardBackward(std::move(batch), scale);
  }
  for (size_t i = specs.size(); i-- > 0;) {
    const int64_t at = FirstNonFinite(transfer, session.engine().Gradient(static_cast<int>(i)));
    if (at >= 0) return absl::StrCat("the gradient of ", Place(specs, i, at));
  }
  return std::string("no tensor at the weights after the next update");
}

}  // namespace tranche
