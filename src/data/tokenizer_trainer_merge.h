// Learns merge rules: joins the most frequent pair of neighbours again and again, keeping counts
// and places of pairs up to date, so that a merge costs what it touches and not a pass over the
// text.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tranche {

class MergeLearner {
 public:
  // `tokens`: the texts of ids 0 … size - 1. `continuing_prefix`: what a joined token drops from
  // its right part ("##").
  MergeLearner(std::vector<std::string> tokens, std::string continuing_prefix);

  // A word as ids, and how often it occurs. All words come before Learn.
  void AddWord(absl::Span<const int32_t> symbols, int64_t count);

  // Until there are vocab_size tokens or no pair occurs min_frequency times. progress(number of
  // tokens) now and then.
  void Learn(int64_t vocab_size, int64_t min_frequency,
             absl::FunctionRef<void(int64_t tokens)> progress);

  const std::vector<std::string>& tokens() const { return tokens_; }
  const std::vector<std::pair<int32_t, int32_t>>& merges() const { return merges_; }
  // Places looked at and candidates weighed so far: what learning has cost.
  int64_t steps() const { return steps_; }

 private:
  static constexpr int32_t kGone = -1;  // a place whose symbol was joined to the one on its left
  static constexpr int32_t kNone = -1;  // no neighbour

  struct PairStat {
    int64_t count = 0;
    std::vector<int32_t> places;  // of the left symbol; some may be stale
  };
  struct Candidate {
    int64_t count;
    uint64_t pair;
    // For a heap that has the best on top.
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };
  static uint64_t PairOf(int32_t left, int32_t right) {
    return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  }

  void Join(int32_t left, int32_t right, int32_t joined, std::vector<Candidate>* grown);

  std::vector<std::string> tokens_;
  const std::string continuing_prefix_;
  absl::flat_hash_map<std::string, int32_t> ids_;
  std::vector<std::pair<int32_t, int32_t>> merges_;
  // One entry for each symbol of each distinct word.
  std::vector<int32_t> symbol_, next_, previous_, word_;
  std::vector<int64_t> word_count_;
  absl::flat_hash_map<uint64_t, PairStat> pairs_;
  int64_t steps_ = 0;
};

}  // namespace tranche
