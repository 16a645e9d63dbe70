// Token texts and their ids.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "data/tokenizer_json.h"

namespace tranche {

// Ids lie below this: they share a 64-bit word with ranks (bpe.h), and it bounds what a hostile
// file can make us allocate.
constexpr int32_t kMaxTokenId = (1 << 21) - 2;

class Vocabulary {
 public:
  // From {"token": id}. Errors: an id out of range, an id given twice.
  static absl::StatusOr<Vocabulary> Read(const JsonNode& node);
  // From the lines of vocab.txt: the id is the line's number, from 0. White space at the end of a
  // line is no part of the token. Of equal lines the later one counts; a warning tells.
  static Vocabulary FromLines(absl::string_view text, const std::string& path,
                              std::vector<std::string>* warnings);
  static Vocabulary FromTokens(const std::vector<std::string>& tokens);

  int32_t Id(absl::string_view token) const {
    const auto entry = ids_.find(token);
    return entry == ids_.end() ? -1 : entry->second;
  }
  // Empty where there is none.
  const std::string& Token(int32_t id) const;
  // Number of tokens (not of ids: there may be gaps).
  int32_t size() const { return static_cast<int32_t>(ids_.size()); }
  int32_t max_id() const { return static_cast<int32_t>(tokens_.size()) - 1; }
  // Calls visit(token, id) by rising id.
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (size_t id = 0; id < tokens_.size(); ++id) {
      if (Id(tokens_[id]) == static_cast<int32_t>(id)) visit(tokens_[id], static_cast<int32_t>(id));
    }
  }

 private:
  void Set(std::string token, int32_t id);

  absl::flat_hash_map<std::string, int32_t> ids_;
  std::vector<std::string> tokens_;
};

}  // namespace tranche
