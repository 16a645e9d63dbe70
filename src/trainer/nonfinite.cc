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
  // Of a parameter, in what this rank owns of it; -1 where all is finite.
  const auto first_in = [&](size_t param, const char* array) -> int64_t {
    for (const Engine::Stretch& stretch : session.engine().Owned(static_cast<int>(param), array)) {
      const int64_t at = FirstNonFinite(transfer, stretch.values);
      if (at >= 0) return stretch.begin + at;
    }
    return -1;
  };
  for (size_t i = 0; i < specs.size(); ++i) {
    const int64_t at = first_in(i, "master");
    if (at >= 0) return absl::StrCat("the weights of ", Place(specs, i, at));
  }
  session.BeginStep();
  for (int64_t round = 0; round < session.Rounds(loader.slots()); ++round) {
    TRANCHE_ASSIGN_OR_RETURN(MicroBatch batch, session.BatchOf(loader, step - 1, round));
    session.ForwardBackward(std::move(batch), scale);
  }
  session.engine().AwaitCommunication(session.stream());
  for (size_t i = specs.size(); i-- > 0;) {
    const int64_t at = first_in(i, "gradients");
    if (at >= 0) return absl::StrCat("the gradient of ", Place(specs, i, at));
  }
  return std::string();
}

}  // namespace tranche
