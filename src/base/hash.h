// XXH3-128 of bytes, as 32 hexadecimal digits: checksums of checkpoint files, fingerprints of
// recipes, tokenizers and data.
#pragma once

#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace tranche {

std::string Hash128(absl::string_view bytes);

// The same over a stream of pieces.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  void Update(absl::string_view bytes);
  std::string Finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tranche
