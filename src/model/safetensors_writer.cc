#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "model/safetensors.h"
#include "nlohmann/json.hpp"

namespace tranche {
namespace {

std::string Quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

absl::StatusOr<SafetensorsWriter> SafetensorsWriter::Create(
    FileSystem& fs, const std::string& path, std::vector<TensorInfo> tensors,
    const std::vector<std::pair<std::string, std::string>>& metadata) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(b.type, a.name) < std::tie(a.type, b.name);
  });
  std::vector<std::string> entries;
  if (!metadata.empty()) {
    std::vector<std::string> pairs;
    for (const auto& [key, value] : metadata)
      pairs.push_back(absl::StrCat(Quoted(key), ":", Quoted(value)));
    entries.push_back(absl::StrCat("\"__metadata__\":{", absl::StrJoin(pairs, ","), "}"));
  }
  int64_t offset = 0;
  for (const TensorInfo& tensor : tensors) {
    const int64_t end = offset + ByteSize(tensor);
    entries.push_back(absl::StrFormat(
        "%s:{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%d,%d]}", Quoted(tensor.name),
        Name(tensor.type), absl::StrJoin(tensor.shape, ","), offset, end));
    offset = end;
  }
  std::string header = absl::StrCat("{", absl::StrJoin(entries, ","), "}");
  header.resize((header.size() + 7) / 8 * 8, ' ');  // the data starts at a multiple of 8
  std::string length(8, '\0');
  for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> (8 * i));

  SafetensorsWriter writer;
  writer.path_ = path;
  writer.order_ = std::move(tensors);
  writer.expected_size_ = static_cast<int64_t>(8 + header.size()) + offset;
  TRANCHE_ASSIGN_OR_RETURN(writer.file_, fs.Create(path));
  TRANCHE_RETURN_IF_ERROR(writer.file_->Append(length));
  TRANCHE_RETURN_IF_ERROR(writer.file_->Append(header));
  return writer;
}

absl::Status SafetensorsWriter::Commit() {
  if (file_->size() != expected_size_) {
    return absl::InternalError(absl::StrFormat("%s: %d bytes were written instead of %d", path_,
                                               file_->size(), expected_size_));
  }
  return file_->Commit();
}

}  // namespace tranche
