#include "data/token_file.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"

namespace tranche {
namespace {

constexpr absl::string_view kMagic("MMIDIDX\0\0", 9);
constexpr absl::string_view kLegacyMagic("TNTIDX\0\0", 8);
constexpr int64_t kIndexHeaderBytes = 34;
constexpr int64_t kLlmcHeaderBytes = 1024;

// Everything on disk is little-endian and may be unaligned.
template <typename T>
T Load(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

template <typename T>
T Load(const char* array, int64_t i) {
  return Load<T>(array + i * static_cast<int64_t>(sizeof(T)));
}

// Calls body(T{}) with the C++ type of the ids.
template <typename Body>
auto WithType(TokenType type, const Body& body) {
  switch (type) {
    case TokenType::kU8:
      return body(uint8_t{});
    case TokenType::kI8:
      return body(int8_t{});
    case TokenType::kI16:
      return body(int16_t{});
    case TokenType::kI32:
      return body(int32_t{});
    case TokenType::kI64:
      return body(int64_t{});
    case TokenType::kU16:
      return body(uint16_t{});
    case TokenType::kU32:
      break;
  }
  return body(uint32_t{});
}

// First index in [begin, end) whose id is not in [0, limit); end where all are.
template <typename T>
int64_t FirstBadId(const char* ids, int64_t begin, int64_t end, int64_t limit) {
  constexpr int64_t kBlock = 4096;
  const auto bad = [limit](T id) {
    return static_cast<uint64_t>(id) >= static_cast<uint64_t>(limit);
  };
  for (int64_t i = begin; i < end; i += kBlock) {
    const int64_t stop = std::min(end, i + kBlock);
    bool any = false;  // without a branch in the loop, so that it is vector code
    for (int64_t k = i; k < stop; ++k) any |= bad(Load<T>(ids, k));
    if (!any) continue;
    for (int64_t k = i; k < stop; ++k) {
      if (bad(Load<T>(ids, k))) return k;
    }
  }
  return end;
}

std::string WithoutSuffix(const std::string& path) {
  for (const char* suffix : {".bin", ".idx"}) {
    if (absl::EndsWith(path, suffix)) return path.substr(0, path.size() - 4);
  }
  return path;
}

}  // namespace

int64_t TokenBytes(TokenType type) {
  return WithType(type, [](auto zero) { return static_cast<int64_t>(sizeof(zero)); });
}

absl::string_view TokenTypeName(TokenType type) {
  switch (type) {
    case TokenType::kU8:
      return "uint8";
    case TokenType::kI8:
      return "int8";
    case TokenType::kI16:
      return "int16";
    case TokenType::kI32:
      return "int32";
    case TokenType::kI64:
      return "int64";
    case TokenType::kU16:
      return "uint16";
    case TokenType::kU32:
      break;
  }
  return "uint32";
}

absl::StatusOr<std::unique_ptr<TokenFile>> TokenFile::Open(const std::string& path,
                                                           TokenFormat format,
                                                           absl::string_view token_dtype) {
  const std::string prefix = WithoutSuffix(path);
  const bool megatron = format == TokenFormat::kMegatron ||
                        (format == TokenFormat::kAuto && FileExists(prefix + ".idx"));
  if (!megatron) return OpenTokens(path, token_dtype);
  if (!token_dtype.empty() && token_dtype != "auto") {
    return absl::InvalidArgumentError(
        absl::StrCat(prefix, ".idx: says the type of the ids itself; leave token_dtype out"));
  }
  return OpenMegatron(prefix);
}

absl::StatusOr<std::unique_ptr<TokenFile>> TokenFile::OpenMegatron(const std::string& prefix) {
  const std::string idx_path = prefix + ".idx";
  TRANCHE_ASSIGN_OR_RETURN(MappedFile index, MappedFile::Open(idx_path));
  TRANCHE_ASSIGN_OR_RETURN(MappedFile ids, MappedFile::Open(prefix + ".bin"));
  std::unique_ptr<TokenFile> file(new TokenFile(std::move(ids)));
  file->index_ = std::move(index);
  file->format_name_ = "megatron";
  TRANCHE_RETURN_IF_ERROR(file->CheckIndex(idx_path));
  const std::string meta_path = prefix + ".meta.json";
  TRANCHE_ASSIGN_OR_RETURN(file->meta_, ReadDatasetMeta(meta_path));
  if (file->meta_ && (file->meta_->tokens != file->num_tokens_ ||
                      file->meta_->documents != file->num_documents_)) {
    return absl::InvalidArgumentError(absl::StrCat(
        meta_path, ": tells of ", file->meta_->documents, " documents and ", file->meta_->tokens,
        " tokens, ", idx_path, " of ", file->num_documents_, " and ", file->num_tokens_,
        ": it belongs to another dataset; remove it or tokenize again"));
  }
  return file;
}

absl::Status TokenFile::CheckIndex(const std::string& idx_path) {
  const absl::string_view data = index_->data();
  const int64_t size = static_cast<int64_t>(data.size());
  const auto error = [&](auto... what) {
    return absl::InvalidArgumentError(absl::StrCat(idx_path, ": ", what...));
  };
  if (absl::StartsWith(data, kLegacyMagic)) {
    return error("is an index of the old TNTIDX format; preprocess again with a current tool");
  }
  if (!absl::StartsWith(data, kMagic)) return error("is not a Megatron index (wrong first bytes)");
  if (size < kIndexHeaderBytes) return error("is cut inside its header");
  const uint64_t version = Load<uint64_t>(data.data() + 9);
  if (version != 1) return error("has version ", version, ", 1 is known");
  const int code = static_cast<uint8_t>(data[17]);
  if (code == 6 || code == 7) {
    return error("type code ", code, " is a floating-point type; token ids are integers");
  }
  if (code < 1 || code > 8)
    return error("type code ", code, " is unknown (1 to 5 and 8 are integers)");
  type_ = static_cast<TokenType>(code);

  // Counts are compared with what the file can hold before they are multiplied.
  const uint64_t sequences = Load<uint64_t>(data.data() + 18),
                 borders = Load<uint64_t>(data.data() + 26);
  const uint64_t room = static_cast<uint64_t>(size - kIndexHeaderBytes);
  if (sequences > room / 12 || borders > room / 8 || sequences * 12 + borders * 8 > room) {
    return error("has ", size, " bytes, too few for ", sequences, " sequences and ", borders,
                 " document borders: it is cut or damaged");
  }
  if (const uint64_t rest = room - sequences * 12 - borders * 8; rest != 0) {
    return error(
        "has ", rest, " bytes more than its counts say",
        rest == sequences ? " (sequence modes of a multimodal dataset? those are not read)" : "");
  }
  if (borders == 0) return error("has no document borders; at least the first, 0, is needed");
  num_sequences_ = static_cast<int64_t>(sequences);
  num_documents_ = static_cast<int64_t>(borders) - 1;
  lengths_ = data.data() + kIndexHeaderBytes;
  offsets_ = lengths_ + 4 * num_sequences_;
  documents_ = offsets_ + 8 * num_sequences_;

  const int64_t item = TokenBytes(type_), bin_bytes = static_cast<int64_t>(ids_.data().size());
  int64_t offset = 0;
  for (int64_t s = 0; s < num_sequences_; ++s) {
    const int64_t length = Load<int32_t>(lengths_, s), begins = Load<int64_t>(offsets_, s);
    if (length < 0) return error("sequence ", s, " has length ", length);
    if (begins != offset) {
      return error("sequence ", s, " begins at byte ", begins, " of ", path_,
                   ", the one before ends at ", offset);
    }
    offset += length * item;
    if (offset > bin_bytes) {
      return error("sequence ", s, " ends at byte ", offset, ", but ", path_, " has ", bin_bytes,
                   " bytes: it is cut, or belongs to another index");
    }
  }
  if (offset != bin_bytes) {
    return error("its sequences end at byte ", offset, ", but ", path_, " has ", bin_bytes,
                 " bytes: they do not belong together");
  }
  int64_t last = 0;
  for (int64_t d = 0; d <= num_documents_; ++d) {
    const int64_t first = Load<int64_t>(documents_, d);
    if (first < last || first > num_sequences_ || (d == 0 && first != 0)) {
      return error("document border ", d, " is ", first, ", it must be in [", last, ", ",
                   d == 0 ? 0 : num_sequences_, "]");
    }
    last = first;
  }
  if (last != num_sequences_) {
    return error("the last document ends at sequence ", last, " of ", num_sequences_);
  }
  num_tokens_ = offset / item;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<TokenFile>> TokenFile::OpenTokens(const std::string& path,
                                                                 absl::string_view token_dtype) {
  std::string bin = path;
  if (!FileExists(bin) && FileExists(bin + ".bin")) bin += ".bin";
  TRANCHE_ASSIGN_OR_RETURN(MappedFile ids, MappedFile::Open(bin));
  std::unique_ptr<TokenFile> file(new TokenFile(std::move(ids)));
  const absl::string_view data = file->ids_.data();
  const auto error = [&](auto... what) {
    return absl::InvalidArgumentError(absl::StrCat(bin, ": ", what...));
  };
  if (data.size() >= 12 && absl::StartsWith(data, kMagic)) {
    return error("is a Megatron index; use format \"megatron\"");
  }
  const int32_t magic = data.size() >= 12 ? Load<int32_t>(data.data(), 0) : 0;
  const int32_t version = magic != 0 ? Load<int32_t>(data.data(), 1) : 0;
  const bool automatic = token_dtype.empty() || token_dtype == "auto";
  int64_t count = -1;
  if ((magic == 20240520 && version == 1) || (magic == 20240801 && version == 7)) {
    file->format_name_ = "llm.c";
    file->type_ = magic == 20240520 ? TokenType::kU16 : TokenType::kU32;
    file->header_bytes_ = kLlmcHeaderBytes;
    count = Load<int32_t>(data.data(), 2);
    if (!automatic && token_dtype != TokenTypeName(file->type_)) {
      return error("its llm.c header says ", TokenTypeName(file->type_), ", token_dtype says ",
                   token_dtype);
    }
  } else if (automatic) {
    switch (magic) {
      case 20240520:
      case 20240801:
        return error("is an llm.c token file of version ", version,
                     "; known are 1 (magic 20240520) and 7 (20240801)");
      case 20240522:
        return error("is an llm.c evaluation file, not a stream of tokens");
      case 20240326:
      case 20240327:
      case 20240328:
        return error("is an llm.c model, optimizer or tokenizer file, not a stream of tokens");
    }
    return error(
        "has no header that says the type of its ids; set token_dtype (nanoGPT writes uint16)");
  } else {
    file->format_name_ = "bare ids";
    if (token_dtype == "uint16") {
      file->type_ = TokenType::kU16;
    } else if (token_dtype == "uint32") {
      file->type_ = TokenType::kU32;
    } else if (token_dtype == "int32") {
      file->type_ = TokenType::kI32;
    } else {
      return error("token_dtype \"", token_dtype, "\" is not one of auto, uint16, uint32, int32");
    }
  }
  const int64_t size = static_cast<int64_t>(data.size()), item = TokenBytes(file->type_);
  if (count >= 0 && size != kLlmcHeaderBytes + count * item) {
    return error("has ", size, " bytes, its header says ", count, " tokens, which is ",
                 kLlmcHeaderBytes + count * item, ": it is cut or damaged");
  }
  if (file->header_bytes_ > 0 && count < 0) return error("its header says ", count, " tokens");
  if ((size - file->header_bytes_) % item != 0) {
    return error("has ", size, " bytes, not a multiple of ", item, ": cut, or not ",
                 TokenTypeName(file->type_));
  }
  file->num_tokens_ = (size - file->header_bytes_) / item;
  return file;
}

int64_t TokenFile::FirstSequence(int64_t d) const {
  return index_ ? Load<int64_t>(documents_, d) : d;
}

int64_t TokenFile::SequenceLength(int64_t s) const {
  return index_ ? Load<int32_t>(lengths_, s) : num_tokens_;
}

int64_t TokenFile::SequenceBegin(int64_t s) const {
  if (s == num_sequences_) return num_tokens_;
  return index_ ? Load<int64_t>(offsets_, s) / TokenBytes(type_) : 0;
}

int64_t TokenFile::DocumentBegin(int64_t d) const { return SequenceBegin(FirstSequence(d)); }

int64_t TokenFile::DocumentAt(int64_t token) const {
  TRANCHE_CHECK(token >= 0 && token < num_tokens_) << token << " of " << num_tokens_;
  int64_t low = 0, high = num_documents_;  // DocumentBegin(low) <= token < DocumentBegin(high)
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (DocumentBegin(middle) <= token ? low : high) = middle;
  }
  return low;
}

absl::Status TokenFile::IdError(int64_t token, int64_t id, int64_t limit) const {
  const int64_t document = DocumentAt(token);
  return absl::OutOfRangeError(
      absl::StrCat(path_, ": id ", id, " at token ", token, " (document ", document, ", its token ",
                   token - DocumentBegin(document), ") is not in [0, ", limit,
                   "), the rows of the embedding: the data were made with another tokenizer, or "
                   "the model's vocab_size is too small"));
}

absl::Status TokenFile::Read(int64_t begin, absl::Span<int32_t> out, int64_t limit) const {
  const int64_t count = static_cast<int64_t>(out.size());
  TRANCHE_CHECK(begin >= 0 && begin <= num_tokens_ && count <= num_tokens_ - begin)
      << begin << " + " << count;
  return WithType(type_, [&](auto zero) -> absl::Status {
    using T = decltype(zero);
    const char* ids = ids_.data().data() + header_bytes_;
    const int64_t bad = FirstBadId<T>(ids, begin, begin + count, limit);
    if (bad < begin + count) return IdError(bad, static_cast<int64_t>(Load<T>(ids, bad)), limit);
    for (int64_t i = 0; i < count; ++i)
      out[static_cast<size_t>(i)] =
          static_cast<int32_t>(static_cast<std::make_unsigned_t<T>>(Load<T>(ids, begin + i)));
    return absl::OkStatus();
  });
}

absl::Status TokenFile::CheckIds(int64_t limit) const {
  return WithType(type_, [&](auto zero) -> absl::Status {
    using T = decltype(zero);
    if (!std::numeric_limits<T>::is_signed && sizeof(T) < 4 &&
        limit > std::numeric_limits<T>::max()) {
      return absl::OkStatus();
    }
    const char* ids = ids_.data().data() + header_bytes_;
    constexpr int64_t kChunk = int64_t{1} << 22;
    std::atomic<int64_t> next{0};
    std::atomic<int64_t> first_bad{num_tokens_};
    const auto scan = [&] {
      for (int64_t begin; (begin = next.fetch_add(kChunk)) < first_bad.load();) {
        const int64_t end = std::min(num_tokens_, begin + kChunk);
        const int64_t bad = FirstBadId<T>(ids, begin, end, limit);
        if (bad == end) continue;
        for (int64_t seen = first_bad; bad < seen && !first_bad.compare_exchange_weak(seen, bad);) {
        }
      }
    };
    const int64_t helpers =
        std::min<int64_t>(std::thread::hardware_concurrency(), num_tokens_ / kChunk);
    std::vector<std::thread> threads;
    for (int64_t i = 1; i < helpers; ++i) threads.emplace_back(scan);
    scan();
    for (std::thread& thread : threads) thread.join();
    if (first_bad == num_tokens_) return absl::OkStatus();
    return IdError(first_bad, static_cast<int64_t>(Load<T>(ids, first_bad)), limit);
  });
}

}  // namespace tranche
