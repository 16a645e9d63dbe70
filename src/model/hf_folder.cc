#include "model/hf_folder.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "model/config_reader.h"

namespace tranche {
namespace {

constexpr char kSingle[] = "model.safetensors";
constexpr char kOnlyShard[] = "model-00001-of-00001.safetensors";
constexpr char kIndex[] = "model.safetensors.index.json";
// An index of the largest models known is a few MB.
constexpr int64_t kMaxTextBytes = int64_t{256} << 20;

bool IsSafetensors(const std::string& name) { return absl::EndsWith(name, ".safetensors"); }

bool IsPickle(const std::string& name) {
  return absl::EndsWith(name, ".bin") || absl::EndsWith(name, ".pt") ||
         absl::EndsWith(name, ".pth");
}

void Warn(std::vector<std::string>* warnings, std::string text) {
  if (warnings != nullptr) warnings->push_back(std::move(text));
}

}  // namespace

absl::StatusOr<std::string> ReadModelText(const std::string& path) {
  TRANCHE_ASSIGN_OR_RETURN(const int64_t size, FileSize(path));
  if (size > kMaxTextBytes)
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", size, " bytes are too many for this file"));
  TRANCHE_ASSIGN_OR_RETURN(std::string text, ReadFile(path));
  if (const std::string foreign = ForeignContent(text); !foreign.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", foreign));
  }
  return text;
}

bool HfFolder::HoldsWeights(const std::string& path) {
  if (FileExists(JoinPath(path, kIndex))) return true;
  const auto names = ListDir(path);
  return names.ok() && std::any_of(names->begin(), names->end(), [](const std::string& name) {
           return IsSafetensors(name) || IsPickle(name);
         });
}

absl::StatusOr<HfFolder> HfFolder::Open(const std::string& path,
                                        std::vector<std::string>* warnings) {
  if (!FileExists(path)) return absl::NotFoundError(absl::StrCat(path, ": no such model folder"));
  if (!IsDirectory(path))
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": is a file; give the folder that holds config.json"));
  HfFolder folder;
  folder.path_ = path;
  const std::string config_path = JoinPath(path, "config.json");
  if (!FileExists(config_path)) {
    return absl::NotFoundError(absl::StrCat(
        path, ": has no config.json; a model folder holds config.json and *.safetensors"));
  }
  TRANCHE_ASSIGN_OR_RETURN(const std::string text, ReadModelText(config_path));
  TRANCHE_ASSIGN_OR_RETURN(folder.config_json_, ParseOrderedJson(text, config_path));
  TRANCHE_ASSIGN_OR_RETURN(folder.config_, ParseModelConfig(folder.config_json_, config_path));
  TRANCHE_RETURN_IF_ERROR(folder.OpenWeights(warnings));
  if (warnings != nullptr) TRANCHE_RETURN_IF_ERROR(folder.WarnOfStrayFiles(warnings));
  std::sort(folder.tensors_.begin(), folder.tensors_.end(),
            [](const StoredTensor& a, const StoredTensor& b) { return a.name < b.name; });
  return folder;
}

absl::Status HfFolder::OpenWeights(std::vector<std::string>* warnings) {
  const std::string index_path = JoinPath(path_, kIndex);
  if (FileExists(index_path)) return OpenIndexed(index_path, warnings);

  TRANCHE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDir(path_));
  std::vector<std::string> weights, pickles;
  for (const std::string& name : names) {
    if (IsSafetensors(name)) weights.push_back(name);
    if (IsPickle(name)) pickles.push_back(name);
  }
  const auto has = [&](const char* name) {
    return std::find(weights.begin(), weights.end(), name) != weights.end();
  };
  // One shard that is all of them needs no index.
  const bool only_shard = weights.size() == 1 && has(kOnlyShard);
  if (!has(kSingle) && !only_shard) {
    const std::string advice =
        !weights.empty()
            ? absl::StrCat("; it has ", absl::StrJoin(weights, ", "),
                           ": download the index of shards too, or name a whole file ", kSingle)
        : !pickles.empty()
            ? absl::StrCat("; ", pickles[0], " is a PyTorch file, convert it to safetensors")
            : std::string();
    return absl::NotFoundError(
        absl::StrCat(path_, ": has no weights: neither ", kSingle, " nor ", kIndex, advice));
  }
  TRANCHE_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(JoinPath(
                                                     path_, only_shard ? kOnlyShard : kSingle)));
  tensors_ = file.tensors();
  files_->push_back(std::move(file));
  return absl::OkStatus();
}

absl::Status HfFolder::OpenIndexed(const std::string& index_path,
                                   std::vector<std::string>* warnings) {
  TRANCHE_ASSIGN_OR_RETURN(const std::string text, ReadModelText(index_path));
  TRANCHE_ASSIGN_OR_RETURN(const nlohmann::ordered_json index, ParseOrderedJson(text, index_path));
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || map == index.end() || !map->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(index_path, ": has no object weight_map"));
  }
  std::map<std::string, std::set<std::string>> tensors_of;  // by file
  for (const auto& [tensor, value] : map->items()) {
    const std::string file = value.is_string() ? value.get<std::string>() : "";
    if (file.empty() || file == "." || absl::StrContains(file, "..") ||
        file.find_first_of(std::string("/\\\0", 3)) != file.npos) {
      return absl::InvalidArgumentError(absl::StrCat(index_path, ": weight_map.", tensor, ": ",
                                                     ShortJson(value),
                                                     " is not the name of a file in this folder"));
    }
    tensors_of[file].insert(tensor);
  }

  std::map<std::string, std::string> holder;  // of every tensor in a listed file
  std::vector<std::string> missing_files, missing, twice;
  for (const auto& [name, tensors] : tensors_of) {
    if (!FileExists(JoinPath(path_, name))) {
      missing_files.push_back(absl::StrCat(name, " (", absl::StrJoin(tensors, ", "), ")"));
      continue;
    }
    TRANCHE_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(JoinPath(path_, name)));
    for (const std::string& tensor : tensors) {
      if (file.Find(tensor) == nullptr) missing.push_back(absl::StrCat(tensor, " (in ", name, ")"));
    }
    std::vector<std::string> unlisted;
    for (const StoredTensor& tensor : file.tensors()) {
      const auto [other, fresh] = holder.emplace(tensor.name, name);
      if (!fresh) twice.push_back(absl::StrCat(tensor.name, " (", other->second, ", ", name, ")"));
      if (tensors.count(tensor.name) > 0) {
        tensors_.push_back(tensor);
      } else if (fresh && !map->contains(tensor.name)) {
        unlisted.push_back(tensor.name);
      }
    }
    if (!unlisted.empty()) {
      Warn(warnings,
           absl::StrCat(file.path(), ": tensors that the index does not list are passed over: ",
                        absl::StrJoin(unlisted, ", ")));
    }
    files_->push_back(std::move(file));
  }
  std::vector<std::string> faults;
  const auto fault = [&](const std::string& where, const char* what,
                         const std::vector<std::string>& names, const char* advice) {
    if (names.empty()) return;
    faults.push_back(absl::StrCat(where, ": ", what, ": ", absl::StrJoin(names, ", "), advice));
  };
  fault(index_path, "names files that are missing", missing_files, "; download them");
  fault(index_path, "names tensors that their files lack", missing,
        "; download index and files together");
  fault(path_, "tensors that stand in two files", twice, "; take index and shards from one place");
  return faults.empty() ? absl::OkStatus()
                        : absl::InvalidArgumentError(absl::StrJoin(faults, "\n"));
}

absl::Status HfFolder::WarnOfStrayFiles(std::vector<std::string>* warnings) const {
  std::set<std::string> used, tensors;
  for (const SafetensorsFile& file : *files_) used.insert(file.path());
  for (const StoredTensor& tensor : tensors_) tensors.insert(tensor.name);
  TRANCHE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDir(path_));
  for (const std::string& name : names) {
    const std::string path = JoinPath(path_, name);
    if (!IsSafetensors(name) || used.count(path) > 0) continue;
    // By its name or by its tensors someone may think that it is read.
    if (!absl::StartsWith(name, "model")) {
      const auto file = SafetensorsFile::Open(path);
      if (file.ok() &&
          std::none_of(file->tensors().begin(), file->tensors().end(),
                       [&](const StoredTensor& tensor) { return tensors.count(tensor.name) > 0; }))
        continue;
    }
    const bool indexed = FileExists(JoinPath(path_, kIndex));
    warnings->push_back(
        absl::StrCat(path, ": passed over, ",
                     indexed ? absl::StrCat(kIndex, " does not name it")
                             : absl::StrCat(BaseName(files_->front().path()), " is read")));
  }
  return absl::OkStatus();
}

const StoredTensor* HfFolder::Find(absl::string_view name) const {
  const auto found = std::lower_bound(
      tensors_.begin(), tensors_.end(), name,
      [](const StoredTensor& tensor, absl::string_view wanted) { return tensor.name < wanted; });
  return found == tensors_.end() || found->name != name ? nullptr : &*found;
}

const std::string& HfFolder::FileOf(const StoredTensor& tensor) const {
  for (const SafetensorsFile& file : *files_) {
    if (const StoredTensor* same = file.Find(tensor.name);
        same != nullptr && same->bytes.data() == tensor.bytes.data()) {
      return file.path();
    }
  }
  return path_;
}

}  // namespace tranche
