// A regular expression of a tokenizer file, run by Oniguruma (the engine whose dialect those files
// are written in).
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tranche {

class Regex {
 public:
  // Errors (InvalidArgument) say what Oniguruma objects to; the caller adds the place.
  static absl::StatusOr<Regex> Compile(absl::string_view pattern);

  // First match at or after `from`: true with its byte range. text must be valid UTF-8, from at a
  // character. Work is bounded: a pattern that backtracks without end gives no match.
  bool Search(absl::string_view text, size_t from, size_t* begin, size_t* end) const;

 private:
  std::shared_ptr<void> compiled_;
};

}  // namespace tranche
