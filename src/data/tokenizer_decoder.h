// The decoder of a tokenizer: puts token texts together again.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "data/tokenizer_json.h"

namespace tranche {

class TokenDecoder {
 public:
  virtual ~TokenDecoder() = default;
  // Rewrites the texts in place, perhaps to another number of them; the result is all of them
  // joined.
  virtual void Decode(std::vector<std::string>* tokens) const = 0;
  // See Normalizer::growth.
  virtual double growth() const { return 1; }
};

// `node` as in tokenizer.json; null for a null node (tokens are joined by spaces then).
absl::StatusOr<std::unique_ptr<TokenDecoder>> ReadDecoder(const JsonNode& node);
std::unique_ptr<TokenDecoder> MakeByteLevelDecoder();
std::unique_ptr<TokenDecoder> MakeWordPieceDecoder(std::string prefix, bool cleanup);

}  // namespace tranche
