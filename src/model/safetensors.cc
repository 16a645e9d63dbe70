#include "model/safetensors.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "nlohmann/json.hpp"

namespace tranche {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr char kAdvice[] = "; download it again, or write it again with a safetensors library";

struct TypeRow {
  const char* name;
  int bits;
};
// Indexed by TensorType.
constexpr std::array<TypeRow, 22> kTypes = {
    {{"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
     {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
     {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
     {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
     {"I64", 64},        {"U64", 64}}};

uint64_t LittleEndian64(const char* bytes) {
  uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

}  // namespace

const char* Name(TensorType type) { return kTypes[static_cast<size_t>(type)].name; }
int BitsOf(TensorType type) { return kTypes[static_cast<size_t>(type)].bits; }

bool IsFloat(TensorType type) {
  return type == TensorType::kF32 || type == TensorType::kBF16 || type == TensorType::kF16 ||
         type == TensorType::kF64;
}

absl::StatusOr<TensorType> TypeOfDtypeName(absl::string_view dtype) {
  for (const TensorType type :
       {TensorType::kF32, TensorType::kBF16, TensorType::kF16, TensorType::kF64}) {
    if (dtype == DtypeName(type)) return type;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", dtype, "\" is no float type; known: float32, bfloat16, float16, float64"));
}

const char* DtypeName(TensorType type) {
  switch (type) {
    case TensorType::kF32:
      return "float32";
    case TensorType::kBF16:
      return "bfloat16";
    case TensorType::kF16:
      return "float16";
    case TensorType::kF64:
      return "float64";
    default:
      return Name(type);
  }
}

int64_t Elements(const TensorInfo& info) {
  int64_t product = 1;
  for (const int64_t size : info.shape) product *= size;
  return product;
}

int64_t ByteSize(const TensorInfo& info) { return Elements(info) * BitsOf(info.type) / 8; }

namespace {

// Receives the header's JSON event by event, so that memory stays proportional to the tensors,
// however deep or long what surrounds them is. Depth 1 is the header, 2 one tensor or the metadata,
// 3 shape or data_offsets. Unknown fields of a tensor are legal: everything up to the next field is
// passed over.
class HeaderEvents {
 public:
  using Json = nlohmann::json;
  static constexpr size_t kMaxRank = 64;

  explicit HeaderEvents(SafetensorsHeader* header) : header_(header) {}
  const std::string& fault() const { return fault_; }

  bool null() {
    return skipping_ || (depth_ == 1 && key_ == "__metadata__") ||
           Fail("holds null where a value is needed");
  }
  bool boolean(bool) { return skipping_ || Fail("holds true or false where it may not"); }
  bool binary(Json::binary_t&) { return Fail("holds binary data"); }
  bool number_integer(Json::number_integer_t value) {
    return skipping_ || Fail(absl::StrCat("holds the negative number ", value));
  }
  bool number_float(Json::number_float_t, const std::string& text) {
    return skipping_ || Fail(absl::StrCat("holds ", text.substr(0, 40),
                                          ", which is not a whole number of 64 bits"));
  }
  bool number_unsigned(Json::number_unsigned_t value) {
    if (skipping_) return true;
    if (depth_ != 3) return Fail(absl::StrCat("holds the number ", value, " where it may not"));
    if (list_.size() == kMaxRank)
      return Fail(absl::StrCat("has a ", key_, " of more than ", kMaxRank, " numbers"));
    list_.push_back(value);
    return true;
  }
  bool string(std::string& value) {
    if (skipping_) return true;
    if (depth_ == 2 && in_metadata_) {
      header_->metadata.emplace_back(key_, std::move(value));
      return true;
    }
    if (depth_ != 2 || key_ != "dtype") return Fail("holds a string where it may not");
    if (has_type_) return Fail("has dtype twice");
    for (size_t i = 0; i < kTypes.size(); ++i) {
      if (value == kTypes[i].name)
        header_->tensors.back().type = static_cast<TensorType>(i), has_type_ = true;
    }
    return has_type_ || Fail(absl::StrCat("has the unknown dtype \"", value.substr(0, 40), "\""));
  }

  bool start_object(size_t) {
    ++depth_;
    if (skipping_ || depth_ == 1) return true;
    if (depth_ > 2) return Fail("holds an object where it may not");
    in_metadata_ = key_ == "__metadata__";
    if (in_metadata_) return !std::exchange(seen_metadata_, true) || Fail("stands twice");
    header_->tensors.emplace_back();
    header_->tensors.back().name = key_;
    has_type_ = has_shape_ = has_offsets_ = false;
    return true;
  }
  bool end_object() {
    --depth_;
    if (skipping_ && depth_ >= 2) return true;
    skipping_ = false;
    if (depth_ != 1 || std::exchange(in_metadata_, false)) return true;
    if (!has_type_) return FailTensor("has no dtype");
    if (!has_shape_) return FailTensor("has no shape");
    return has_offsets_ || FailTensor("has no data_offsets");
  }
  bool start_array(size_t) {
    ++depth_;
    if (skipping_) return true;
    if (depth_ != 3 || in_metadata_ || key_ == "dtype")
      return Fail("holds a list where it may not");
    list_.clear();
    return !std::exchange(key_ == "shape" ? has_shape_ : has_offsets_, true) ||
           Fail(absl::StrCat("has ", key_, " twice"));
  }
  bool end_array() {
    --depth_;
    if (skipping_) return true;
    if (key_ == "data_offsets") {
      if (list_.size() != 2)
        return Fail(absl::StrCat("has ", list_.size(), " data_offsets instead of 2"));
      header_->ranges.emplace_back(list_[0], list_[1]);
      return true;
    }
    for (const uint64_t size : list_) {
      if (size > static_cast<uint64_t>(INT64_MAX)) return Fail("has a dimension beyond 63 bits");
      header_->tensors.back().shape.push_back(static_cast<int64_t>(size));
    }
    return true;
  }
  bool key(std::string& name) {
    if (skipping_ && depth_ > 2) return true;
    key_ = std::move(name);
    skipping_ = depth_ == 2 && !in_metadata_ && key_ != "dtype" && key_ != "shape" &&
                key_ != "data_offsets";
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) {
    absl::string_view what = error.what();
    if (const size_t colon = what.find(": "); colon != absl::string_view::npos)
      what.remove_prefix(colon + 2);
    fault_ = absl::StrCat("the header is not valid JSON (file offset ",
                          8 + (position > 0 ? position - 1 : 0), "): ", what.substr(0, 200));
    return false;
  }

 private:
  bool Fail(absl::string_view what) {
    if (depth_ >= 2 && !in_metadata_ && !header_->tensors.empty()) return FailTensor(what);
    fault_ = depth_ == 0 ? absl::StrCat("the header ", what)
                         : absl::StrCat("\"", key_.substr(0, 200), "\" ", what);
    return false;
  }
  bool FailTensor(absl::string_view what) {
    fault_ = absl::StrCat("tensor \"", header_->tensors.back().name.substr(0, 200), "\" ", what);
    return false;
  }

  SafetensorsHeader* header_;
  std::string fault_, key_;
  int64_t depth_ = 0;
  bool skipping_ = false;
  bool in_metadata_ = false, seen_metadata_ = false;
  bool has_type_ = false, has_shape_ = false, has_offsets_ = false;
  std::vector<uint64_t> list_;
};

// Sizes of one tensor against its range.
absl::Status CheckSize(const TensorInfo& info, std::pair<uint64_t, uint64_t> range,
                       const std::string& source) {
  uint64_t bits = static_cast<uint64_t>(BitsOf(info.type));
  uint64_t elements = 1;
  for (const int64_t size : info.shape) {
    if (__builtin_mul_overflow(elements, static_cast<uint64_t>(size), &elements)) bits = 0;
  }
  if (bits == 0 || __builtin_mul_overflow(elements, bits, &bits) ||
      elements > static_cast<uint64_t>(INT64_MAX)) {
    return absl::InvalidArgumentError(
        absl::StrCat(source, ": tensor \"", info.name, "\" has shape [",
                     absl::StrJoin(info.shape, ", "), "], which overflows"));
  }
  if (range.second < range.first || bits % 8 != 0 || bits / 8 != range.second - range.first) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: tensor \"%s\" of type %s and shape [%s] needs %d bits, its data_offsets are %d to %d",
        source, info.name, Name(info.type), absl::StrJoin(info.shape, ", "), bits, range.first,
        range.second));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view text,
                                                         uint64_t data_bytes,
                                                         const std::string& source) {
  // The JSON library takes a NUL for the end and passes over a byte-order mark.
  if (const size_t nul = text.find('\0'); nul != absl::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat(source, ": the header holds a NUL byte (file offset ", 8 + nul, ")"));
  }
  if (absl::StartsWith(text, "\xef\xbb\xbf")) {
    return absl::InvalidArgumentError(
        absl::StrCat(source, ": the header starts with a byte-order mark"));
  }
  SafetensorsHeader header;
  HeaderEvents events(&header);
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &events)) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": ", events.fault()));
  }
  const size_t count = header.tensors.size();
  std::vector<uint32_t> order(count), by_name(count);
  for (size_t i = 0; i < count; ++i) order[i] = by_name[i] = static_cast<uint32_t>(i);
  std::sort(by_name.begin(), by_name.end(), [&](uint32_t a, uint32_t b) {
    return header.tensors[a].name < header.tensors[b].name;
  });
  for (size_t i = 1; i < count; ++i) {
    const std::string& name = header.tensors[by_name[i]].name;
    if (name == header.tensors[by_name[i - 1]].name) {
      return absl::InvalidArgumentError(
          absl::StrCat(source, ": tensor \"", name, "\" stands twice in the header"));
    }
  }
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return std::tie(header.ranges[a], header.tensors[a].name) <
           std::tie(header.ranges[b], header.tensors[b].name);
  });
  SafetensorsHeader sorted;
  sorted.metadata = std::move(header.metadata);
  uint64_t end = 0;
  for (const uint32_t i : order) {
    TensorInfo& info = header.tensors[i];
    const auto range = header.ranges[i];
    TRANCHE_RETURN_IF_ERROR(CheckSize(info, range, source));
    if (range.first != end) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: tensor \"%s\" starts at %d, but the one before it ends at %d: %s", source, info.name,
          range.first, end, range.first < end ? "overlap" : "hole"));
    }
    end = range.second;
    sorted.tensors.push_back(std::move(info));
    sorted.ranges.push_back(range);
  }
  if (end > data_bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: truncated: its tensors need %d bytes and %d are there", source, end, data_bytes));
  }
  if (end < data_bytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %d bytes follow the last tensor", source, data_bytes - end));
  }
  return sorted;
}

std::string ForeignContent(absl::string_view bytes) {
  if (bytes.empty()) return "the file is empty";
  if (absl::StartsWith(bytes, "version https://git-lfs.github.com/spec/")) {
    return "this is a Git LFS pointer; the content was not downloaded (run `git lfs pull` in its "
           "repository)";
  }
  if (absl::StartsWith(bytes, "PK\x03\x04") || absl::StartsWith(bytes, "\x80\x02")) {
    return "this is a PyTorch file under another name; convert it to safetensors";
  }
  const std::string start =
      absl::AsciiStrToLower(absl::StripLeadingAsciiWhitespace(bytes.substr(0, 256)));
  if (absl::StartsWith(start, "<!doctype") || absl::StartsWith(start, "<html") ||
      absl::StartsWith(start, "<?xml")) {
    return "this is a web page, not a model file; the download went wrong";
  }
  return "";
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  TRANCHE_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  SafetensorsFile file(std::move(mapped));
  const absl::string_view data = file.file_.data();
  const uint64_t header_bytes = data.size() < 8 ? 0 : LittleEndian64(data.data());
  if (data.size() < 8 || header_bytes > std::min<uint64_t>(kMaxHeaderBytes, data.size() - 8)) {
    // Only now: where a header has room its length may begin like anything, 640 like a pickle.
    std::string why = ForeignContent(data);
    if (why.empty()) {
      why = data.size() < 8 ? absl::StrCat(data.size(), " bytes are no safetensors file")
            : header_bytes > kMaxHeaderBytes
                ? absl::StrCat("not a safetensors file: its header would have ", header_bytes,
                               " bytes")
                : absl::StrCat("truncated: the header needs ", header_bytes, " bytes and ",
                               data.size() - 8, " are there");
      why += kAdvice;
    }
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", why));
  }
  const absl::string_view buffer = data.substr(8 + header_bytes);
  absl::StatusOr<SafetensorsHeader> parsed =
      ParseSafetensorsHeader(data.substr(8, header_bytes), buffer.size(), path);
  if (!parsed.ok())
    return absl::InvalidArgumentError(absl::StrCat(parsed.status().message(), kAdvice));
  SafetensorsHeader& header = *parsed;
  file.metadata_ = std::move(header.metadata);
  for (size_t i = 0; i < header.tensors.size(); ++i) {
    const auto [begin, end] = header.ranges[i];
    StoredTensor tensor;
    static_cast<TensorInfo&>(tensor) = std::move(header.tensors[i]);
    tensor.bytes = buffer.substr(begin, end - begin);
    file.tensors_.push_back(std::move(tensor));
    file.by_name_.push_back(static_cast<uint32_t>(i));
  }
  std::sort(file.by_name_.begin(), file.by_name_.end(),
            [&](uint32_t a, uint32_t b) { return file.tensors_[a].name < file.tensors_[b].name; });
  return file;
}

const StoredTensor* SafetensorsFile::Find(absl::string_view name) const {
  const auto found = std::lower_bound(
      by_name_.begin(), by_name_.end(), name,
      [&](uint32_t i, absl::string_view wanted) { return tensors_[i].name < wanted; });
  return found == by_name_.end() || tensors_[*found].name != name ? nullptr : &tensors_[*found];
}

}  // namespace tranche
