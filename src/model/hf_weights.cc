#include "model/hf_weights.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status.h"

namespace tranche {
namespace {

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// Files of the bare body lack this prefix.
std::string BodyPrefix(const ModelConfig& config) {
  if (config.model_type == "bert") return "bert.";
  if (config.model_type == "roberta") return "roberta.";
  return "model.";
}

// BERT's files from before PyTorch 1.0 name the norms' parameters as TensorFlow does.
std::string CurrentName(std::string name) {
  for (const auto& [old_end, end] :
       {std::pair{"LayerNorm.gamma", "LayerNorm.weight"}, {"LayerNorm.beta", "LayerNorm.bias"}}) {
    if (absl::EndsWith(name, old_end))
      return name.substr(0, name.size() - std::strlen(old_end)) + end;
  }
  return name;
}

// Tensors of the architecture that need not be parameters.
bool IsOptional(const ModelConfig& config, absl::string_view name) {
  if (config.model_type != "bert" && config.model_type != "roberta") return false;
  return absl::StartsWith(name, BodyPrefix(config) + "pooler.dense.") ||
         absl::StartsWith(name, "cls.seq_relationship.");
}

// Whether a caller may start this parameter afresh: what stands behind the body.
bool IsHead(const ParamSpec& spec) { return spec.role >= ParamRole::kTransformWeight; }

bool SameValues(const StoredTensor& a, const StoredTensor& b) {
  if (a.shape != b.shape) return false;
  if (a.type == b.type) return a.bytes == b.bytes;
  if (!IsFloat(a.type) || !IsFloat(b.type)) return false;
  constexpr int64_t kBlock = 4096;
  double left[kBlock], right[kBlock];
  const int64_t total = Elements(a);
  for (int64_t i = 0; i < total; i += kBlock) {
    const int64_t n = std::min(kBlock, total - i);
    ConvertElements(a.bytes.data() + i * BitsOf(a.type) / 8, a.type, left, TensorType::kF64, n);
    ConvertElements(b.bytes.data() + i * BitsOf(b.type) / 8, b.type, right, TensorType::kF64, n);
    if (std::memcmp(left, right, n * sizeof(double)) != 0) return false;
  }
  return true;
}

class Matcher {
 public:
  Matcher(const HfFolder& folder, const ModelConfig& config, const std::vector<ParamSpec>& specs)
      : folder_(folder), config_(config), prefix_(BodyPrefix(config)) {
    for (const ParamSpec& spec : specs) {
      for (const HfPart& part : spec.parts) {
        if (absl::StartsWith(part.name, prefix_)) body_names_.insert(part.name);
      }
    }
  }

  // Full names as the specs have them -> tensors; faults where a folder mixes namings.
  absl::Status NameTensors() {
    if (IsOldPhi()) {
      return absl::InvalidArgumentError(
          absl::StrCat(folder_.path(),
                       ": these are phi weights in the old format with remote code (Wqkv, mixer); "
                       "take the newer files"));
    }
    TRANCHE_RETURN_IF_ERROR(DecidePrefix());
    std::vector<std::string> twice;
    for (const StoredTensor& tensor : folder_.tensors()) {
      const std::string name = CurrentName(
          unprefixed_ && IsBodyName(prefix_ + tensor.name) ? prefix_ + tensor.name : tensor.name);
      const auto [other, fresh] = tensors_.emplace(name, &tensor);
      if (!fresh) twice.push_back(absl::StrCat(other->second->name, " and ", tensor.name));
    }
    if (twice.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(folder_.path(), ": one tensor under two names: ", absl::StrJoin(twice, ", "),
                     "; keep one of each"));
  }

  // The tensor of a part, or nullptr; checks it, and that its aliases agree.
  const StoredTensor* Take(const HfPart& part) {
    const StoredTensor* found = nullptr;
    for (const std::string* name : AllNames(part)) {
      const auto entry = tensors_.find(*name);
      if (entry == tensors_.end()) continue;
      const StoredTensor* tensor = entry->second;
      tensors_.erase(entry);
      old_norm_names_ |=
          absl::EndsWith(tensor->name, ".gamma") || absl::EndsWith(tensor->name, ".beta");
      if (tensor->shape != part.shape) {
        faults_.push_back(absl::StrCat(folder_.FileOf(*tensor), ": ", tensor->name, " has shape ",
                                       ShapeText(tensor->shape), ", config.json makes it ",
                                       ShapeText(part.shape)));
      } else if (!IsFloat(tensor->type)) {
        faults_.push_back(absl::StrCat(folder_.FileOf(*tensor), ": ", tensor->name, " has type ",
                                       Name(tensor->type),
                                       "; weights of type F32, BF16, F16 and F64 are supported"));
      } else if (found != nullptr && !SameValues(*found, *tensor)) {
        faults_.push_back(absl::StrCat(
            folder_.path(), ": ", tensor->name, " and ", found->name,
            " hold different values although they are one tensor (tie_word_embeddings)"));
      }
      if (found == nullptr) found = tensor;
    }
    return found;
  }

  // What no parameter took, under full names.
  const std::map<std::string, const StoredTensor*>& rest() const { return tensors_; }
  std::vector<std::string>& faults() { return faults_; }
  bool unprefixed() const { return unprefixed_; }
  bool old_norm_names() const { return old_norm_names_; }

 private:
  static std::vector<const std::string*> AllNames(const HfPart& part) {
    std::vector<const std::string*> names = {&part.name};
    for (const std::string& alias : part.aliases) names.push_back(&alias);
    return names;
  }

  bool IsOldPhi() const {
    return config_.model_type == "phi" &&
           std::any_of(folder_.tensors().begin(), folder_.tensors().end(),
                       [](const StoredTensor& tensor) {
                         return absl::StrContains(tensor.name, "Wqkv") ||
                                absl::StrContains(tensor.name, ".mixer.");
                       });
  }

  bool IsBodyName(const std::string& name) const {
    const std::string current = CurrentName(name);
    return body_names_.count(current) > 0 ||
           (absl::StartsWith(current, prefix_) && IsOptional(config_, current));
  }

  absl::Status DecidePrefix() {
    std::string with, without;
    int64_t with_count = 0, without_count = 0;
    for (const StoredTensor& tensor : folder_.tensors()) {
      if (IsBodyName(tensor.name)) {
        with = tensor.name, ++with_count;
      } else if (IsBodyName(prefix_ + tensor.name)) {
        without = tensor.name, ++without_count;
      }
    }
    if (with_count > 0 && without_count > 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: %d tensors have the prefix \"%s\" (%s) and %d lack it (%s); the "
                          "folder mixes two models or was renamed by halves",
                          folder_.path(), with_count, prefix_, with, without_count, without));
    }
    unprefixed_ = without_count > 0;
    return absl::OkStatus();
  }

  const HfFolder& folder_;
  const ModelConfig& config_;
  const std::string prefix_;
  std::set<std::string> body_names_;
  std::map<std::string, const StoredTensor*> tensors_;
  std::vector<std::string> faults_;
  bool unprefixed_ = false, old_norm_names_ = false;
};

}  // namespace

bool IsRecomputedBuffer(absl::string_view name) {
  for (const absl::string_view end :
       {"position_ids", "inv_freq", "token_type_ids", "cos_cached", "sin_cached"}) {
    if (name == end || absl::EndsWith(name, absl::StrCat(".", end))) return true;
  }
  return false;
}

absl::StatusOr<HfWeights> HfWeights::Match(const HfFolder& folder, const ModelConfig& config,
                                           const std::vector<ParamSpec>& specs,
                                           const WeightsOptions& options,
                                           std::vector<std::string>* warnings) {
  Matcher matcher(folder, config, specs);
  TRANCHE_RETURN_IF_ERROR(matcher.NameTensors());
  HfWeights weights;
  weights.files_ = folder.files();
  std::vector<std::string> missing;
  bool head_missing = false, body_missing = false;
  int64_t elements_of[256] = {};
  for (size_t i = 0; i < specs.size(); ++i) {
    std::vector<Part> parts;
    std::vector<std::string> absent;
    for (const HfPart& part : specs[i].parts) {
      const StoredTensor* tensor = matcher.Take(part);
      if (tensor == nullptr) {
        absent.push_back(part.name);
      } else {
        parts.push_back({tensor->bytes, tensor->type, part.elements()});
        weights.stored_types_.emplace(part.name, tensor->type);
        elements_of[static_cast<size_t>(tensor->type)] += part.elements();
      }
    }
    if (!absent.empty() && options.fresh_head && IsHead(specs[i])) {
      weights.fresh_.push_back(static_cast<int>(i));
      parts.clear();
    } else if (!absent.empty()) {
      (IsHead(specs[i]) ? head_missing : body_missing) = true;
      missing.insert(missing.end(), absent.begin(), absent.end());
    }
    weights.parts_.push_back(std::move(parts));
  }
  for (const TensorType type :
       {TensorType::kF64, TensorType::kF16, TensorType::kBF16, TensorType::kF32}) {
    if (elements_of[static_cast<size_t>(type)] >=
        elements_of[static_cast<size_t>(weights.dominant_type_)]) {
      weights.dominant_type_ = type;
    }
  }

  std::vector<std::string> unused;
  for (const auto& [name, tensor] : matcher.rest()) {
    if (IsRecomputedBuffer(name)) continue;
    if (IsOptional(config, name)) {
      weights.carried_.push_back(*tensor);
      weights.carried_.back().name = name;
    } else {
      unused.push_back(tensor->name);
    }
  }
  std::vector<std::string>& faults = matcher.faults();
  if (!missing.empty()) {
    std::string text =
        absl::StrCat(folder.path(), ": ", missing.size(),
                     missing.size() == 1 ? " tensor is missing: " : " tensors are missing: ",
                     absl::StrJoin(missing, ", "));
    if (head_missing && !body_missing) {
      absl::StrAppend(&text,
                      "; the folder holds no complete head: ask for a fresh one (fresh_head = "
                      "true) to have these initialised");
    }
    if (!unused.empty())
      absl::StrAppend(&text, "; and these belong to no parameter: ", absl::StrJoin(unused, ", "));
    faults.push_back(std::move(text));
  }
  if (!faults.empty()) return absl::InvalidArgumentError(absl::StrJoin(faults, "\n"));
  if (warnings != nullptr) {
    if (!unused.empty()) {
      warnings->push_back(absl::StrCat(
          folder.path(), ": tensors without use are passed over: ", absl::StrJoin(unused, ", ")));
    }
    if (matcher.unprefixed()) {
      warnings->push_back(absl::StrCat(folder.path(), ": tensor names lack the prefix \"",
                                       BodyPrefix(config), "\"; an export writes them with it"));
    }
    if (matcher.old_norm_names()) {
      warnings->push_back(absl::StrCat(
          folder.path(), ": norms are named gamma and beta; an export writes weight and bias"));
    }
  }
  return weights;
}

const char* HfWeights::StoredType(const std::string& part) const {
  const auto found = stored_types_.find(part);
  return found == stored_types_.end() ? "" : Name(found->second);
}

void HfWeights::CopyElements(int spec, int64_t first, int64_t count, TensorType type,
                             void* out) const {
  TRANCHE_CHECK(!parts_[spec].empty()) << "parameter " << spec << " is fresh";
  char* to = static_cast<char*>(out);
  int64_t start = 0;
  for (const Part& part : parts_[spec]) {
    const int64_t begin = std::max(first, start),
                  end = std::min(first + count, start + part.elements);
    if (begin < end) {
      ConvertElements(part.bytes.data() + (begin - start) * BitsOf(part.type) / 8, part.type, to,
                      type, end - begin);
      to += (end - begin) * BitsOf(type) / 8;
    }
    start += part.elements;
  }
  TRANCHE_CHECK(first >= 0 && first + count <= start) << "elements beyond parameter " << spec;
}

}  // namespace tranche
