// The store's language: frames of a 4-byte length, a kind and a body, little endian. Reading checks
// every bound and never trusts a length; what does not parse is the sender's fault and ends its
// connection.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tranche {

enum class FrameKind : uint8_t {
  kHello = 1,    // member: magic, secret, job, rank, world size
  kWelcome,      // store: heartbeat and silence in milliseconds
  kRefused,      // store: why
  kExchange,     // member: name, timeout in milliseconds, blob
  kGoodbye,      // member: as kExchange; afterwards this rank takes part in nothing
  kGathered,     // store: name, number of blobs, blobs in rank order
  kNotGathered,  // store: name, why
  kPhase,        // member: what this rank does now
  kFailed,       // member: why it fails; store: rank, phase, why
  kHeartbeat,    // both
};

inline constexpr absl::string_view kStoreMagic = "tranche store 1";
inline constexpr absl::string_view kGoodbyeName = "goodbye";  // the exchange that ends membership
inline constexpr uint32_t kMaxHelloBytes = 4096;      // of a frame from who has not said hello
inline constexpr uint32_t kMaxBlobBytes = 16u << 20;  // of one rank's blob
inline constexpr uint32_t kMaxMemberBytes = kMaxBlobBytes + 4096;  // of a member's frame
inline constexpr uint32_t kMaxTextBytes = 1024;                    // of names, phases and messages
inline constexpr uint32_t kMaxStoreBytes = 1u << 31;               // of the store's frames

// A member not heard of for so long is lost. Members say that they are there ten times in it, from
// a thread that does nothing else and sleeps in between, so that a busy machine does not delay it
// by seconds.
inline constexpr double kSilenceSeconds = 5;

// Builds one frame.
class FrameWriter {
 public:
  explicit FrameWriter(FrameKind kind);
  FrameWriter& Number(uint32_t value);
  FrameWriter& Bytes(absl::string_view bytes);
  std::string Finish();

 private:
  std::string frame_;
};

// Reads the body of one frame; after the first value that is not there, everything is empty and
// Done() is false.
class FrameReader {
 public:
  explicit FrameReader(absl::string_view body) : rest_(body) {}
  uint32_t Number();
  std::string Bytes(uint32_t limit);
  bool Done() const { return ok_ && rest_.empty(); }  // all was there, and nothing more
  bool ok() const { return ok_; }

 private:
  absl::string_view rest_;
  bool ok_ = true;
};

struct Frame {
  FrameKind kind;
  std::string body;
};

// Bytes as they come, cut into frames.
class FrameBuffer {
 public:
  void Append(absl::string_view bytes) { bytes_.append(bytes.data(), bytes.size()); }
  // The next whole frame, nothing where it has not come yet, InvalidArgument where no frame of at
  // most `limit` bytes can begin so.
  absl::StatusOr<std::optional<Frame>> Next(uint32_t limit);

 private:
  std::string bytes_;
  size_t read_ = 0;
};

}  // namespace tranche
