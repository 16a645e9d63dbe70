#include "optim/update_rule.h"

#include "base/check.h"

namespace tranche {
namespace {

class AdamWRule : public UpdateRule {
 public:
  explicit AdamWRule(const UpdateOptions& options) : options_(options) {}

  const std::vector<StateArray>& state() const override { return state_; }

  void Apply(Backend& backend, Stream& stream, const UpdateSlice& slice, Tensor control,
             float learning_rate, int64_t step) const override {
    TRANCHE_CHECK_EQ(slice.state.size(), state_.size());
    backend.AdamW(stream, {.master = slice.master,
                           .weights = slice.weights,
                           .gradients = slice.gradients,
                           .m = slice.state[0],
                           .v = slice.state[1],
                           .control = control,
                           .learning_rate = learning_rate * slice.lr_scale,
                           .beta1 = options_.beta1,
                           .beta2 = options_.beta2,
                           .eps = options_.eps,
                           .weight_decay = slice.weight_decay,
                           .step = step});
  }

 private:
  const UpdateOptions options_;
  const std::vector<StateArray> state_ = {{"m", DType::kFloat32}, {"v", DType::kFloat32}};
};

}  // namespace

int64_t UpdateRule::state_bytes_per_parameter() const {
  int64_t bytes = 0;
  for (const StateArray& array : state()) bytes += SizeOf(array.dtype);
  return bytes;
}

std::unique_ptr<UpdateRule> CreateAdamW(const UpdateOptions& options) {
  return std::make_unique<AdamWRule>(options);
}

}  // namespace tranche
