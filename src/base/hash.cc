#include "base/hash.h"

#include <xxhash.h>

#include "absl/strings/str_format.h"
#include "base/check.h"

namespace tranche {
namespace {

std::string Hex(XXH128_hash_t hash) {
  return absl::StrFormat("%016x%016x", uint64_t{hash.high64}, uint64_t{hash.low64});
}

}  // namespace

std::string Hash128(absl::string_view bytes) {
  return Hex(XXH3_128bits(bytes.data(), bytes.size()));
}

struct Hasher::State {
  XXH3_state_t* xxh = XXH3_createState();
  ~State() { XXH3_freeState(xxh); }
};

Hasher::Hasher() : state_(std::make_unique<State>()) {
  TRANCHE_CHECK(state_->xxh != nullptr);
  XXH3_128bits_reset(state_->xxh);
}
Hasher::~Hasher() = default;

void Hasher::Update(absl::string_view bytes) {
  XXH3_128bits_update(state_->xxh, bytes.data(), bytes.size());
}
std::string Hasher::Finish() const { return Hex(XXH3_128bits_digest(state_->xxh)); }

}  // namespace tranche
