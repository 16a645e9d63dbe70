// The tensors of a model folder, matched to the parameters of a model: old names, a missing body
// prefix, tied copies, and parts that are there without being trained.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/hf_folder.h"
#include "model/param_spec.h"

namespace tranche {

struct WeightsOptions {
  // Parameters of the head (behind the final norm) that the folder lacks are left to the caller to
  // initialise instead of refused.
  bool fresh_head = false;
};

class HfWeights {
 public:
  // Matches `folder` against `specs` (of BuildParamSpecs(config)). InvalidArgument naming every
  // tensor that is missing, has another shape or no float type, stands under two names, or
  // contradicts the tensor it is tied to. `warnings` (may be null) gets what is passed over. The
  // mappings are kept alive; nothing is copied before CopyElements.
  static absl::StatusOr<HfWeights> Match(const HfFolder& folder, const ModelConfig& config,
                                         const std::vector<ParamSpec>& specs,
                                         const WeightsOptions& options,
                                         std::vector<std::string>* warnings);

  // Writes elements [first, first + count) of parameter `spec`, row-major, as `type` (F32, BF16,
  // F16, F64) to `out`. Thread-safe. Must not be called for a fresh parameter.
  void CopyElements(int spec, int64_t first, int64_t count, TensorType type, void* out) const;

  // "BF16", …: how the folder stores what HfPart::name means, whatever it is named there; "" where
  // it lacks it.
  const char* StoredType(const std::string& part) const;

  // Parameters that the folder lacks, where options.fresh_head allows it.
  const std::vector<int>& fresh() const { return fresh_; }
  // Tensors that belong to the architecture but to no parameter (pooler, next-sentence head): to be
  // exported unchanged, under their full names.
  const std::vector<StoredTensor>& carried() const { return carried_; }
  // The type that most elements are stored in, for an export of the same form.
  TensorType dominant_type() const { return dominant_type_; }

 private:
  struct Part {
    absl::string_view bytes;
    TensorType type;
    int64_t elements;
  };
  std::vector<std::vector<Part>> parts_;  // by spec
  std::map<std::string, TensorType> stored_types_;
  std::vector<int> fresh_;
  std::vector<StoredTensor> carried_;
  TensorType dominant_type_ = TensorType::kF32;
  std::shared_ptr<const std::vector<SafetensorsFile>> files_;
};

// Whether a tensor is a buffer that every implementation recomputes (position_ids, inv_freq, …):
// never trained, never counted.
bool IsRecomputedBuffer(absl::string_view name);

}  // namespace tranche
