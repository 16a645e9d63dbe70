#include "launch/frame.h"

#include "absl/strings/str_cat.h"

namespace tranche {
namespace {

void PutNumber(uint32_t value, char* out) {
  for (int i = 0; i < 4; ++i) out[i] = static_cast<char>(value >> (8 * i));
}

uint32_t GetNumber(const char* in) {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value |= uint32_t{static_cast<unsigned char>(in[i])} << (8 * i);
  return value;
}

}  // namespace

FrameWriter::FrameWriter(FrameKind kind) : frame_(4, '\0') {
  frame_.push_back(static_cast<char>(kind));
}

FrameWriter& FrameWriter::Number(uint32_t value) {
  char bytes[4];
  PutNumber(value, bytes);
  frame_.append(bytes, 4);
  return *this;
}

FrameWriter& FrameWriter::Bytes(absl::string_view bytes) {
  Number(static_cast<uint32_t>(bytes.size()));
  frame_.append(bytes.data(), bytes.size());
  return *this;
}

std::string FrameWriter::Finish() {
  PutNumber(static_cast<uint32_t>(frame_.size() - 4), frame_.data());
  return std::move(frame_);
}

uint32_t FrameReader::Number() {
  if (!ok_ || rest_.size() < 4) {
    ok_ = false;
    return 0;
  }
  const uint32_t value = GetNumber(rest_.data());
  rest_.remove_prefix(4);
  return value;
}

std::string FrameReader::Bytes(uint32_t limit) {
  const uint32_t size = Number();
  if (!ok_ || size > limit || size > rest_.size()) {
    ok_ = false;
    return "";
  }
  std::string bytes(rest_.substr(0, size));
  rest_.remove_prefix(size);
  return bytes;
}

absl::StatusOr<std::optional<Frame>> FrameBuffer::Next(uint32_t limit) {
  const absl::string_view unread = absl::string_view(bytes_).substr(read_);
  if (unread.size() < 5) return std::nullopt;
  const uint32_t size = GetNumber(unread.data());
  const auto kind = static_cast<uint8_t>(unread[4]);
  if (size < 1 || size > limit || kind < static_cast<uint8_t>(FrameKind::kHello) ||
      kind > static_cast<uint8_t>(FrameKind::kHeartbeat)) {
    return absl::InvalidArgumentError(
        absl::StrCat("it sent what is no message (kind ", kind, ", ", size, " bytes)"));
  }
  if (unread.size() < size_t{4} + size) return std::nullopt;
  Frame frame{static_cast<FrameKind>(kind), std::string(unread.substr(5, size - 1))};
  read_ += size_t{4} + size;
  // Moved up only when at least half of it has been read: linear in all.
  if (read_ * 2 >= bytes_.size()) {
    bytes_.erase(0, read_);
    read_ = 0;
  }
  return std::optional<Frame>(std::move(frame));
}

}  // namespace tranche
