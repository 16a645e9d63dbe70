#include "data/tokenizer_trainer_merge.h"

#include <algorithm>
#include <queue>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tranche {

MergeLearner::MergeLearner(std::vector<std::string> tokens, std::string continuing_prefix)
    : tokens_(std::move(tokens)), continuing_prefix_(std::move(continuing_prefix)) {
  for (size_t id = 0; id < tokens_.size(); ++id)
    ids_.emplace(tokens_[id], static_cast<int32_t>(id));
}

void MergeLearner::AddWord(absl::Span<const int32_t> symbols, int64_t count) {
  if (symbols.size() < 2) return;  // nothing to join
  const auto word = static_cast<int32_t>(word_count_.size());
  word_count_.push_back(count);
  const auto first = static_cast<int32_t>(symbol_.size());
  const auto last = first + static_cast<int32_t>(symbols.size()) - 1;
  for (int32_t place = first; place <= last; ++place) {
    symbol_.push_back(symbols[place - first]);
    previous_.push_back(place == first ? kNone : place - 1);
    next_.push_back(place == last ? kNone : place + 1);
    word_.push_back(word);
    if (place == last) break;
    PairStat& stat = pairs_[PairOf(symbols[place - first], symbols[place - first + 1])];
    stat.count += count;
    stat.places.push_back(place);
  }
}

void MergeLearner::Learn(int64_t vocab_size, int64_t min_frequency,
                         absl::FunctionRef<void(int64_t tokens)> progress) {
  std::vector<Candidate> start;
  start.reserve(pairs_.size());
  for (const auto& [pair, stat] : pairs_) start.push_back({stat.count, pair});
  std::priority_queue<Candidate> heap(std::less<Candidate>(), std::move(start));
  std::vector<Candidate> grown;
  while (static_cast<int64_t>(tokens_.size()) < vocab_size && !heap.empty()) {
    const Candidate best = heap.top();
    heap.pop();
    ++steps_;
    const auto stat = pairs_.find(best.pair);
    const int64_t count = stat == pairs_.end() ? 0 : stat->second.count;
    if (best.count > count) {  // it has become rarer since
      if (count > 0) heap.push({count, best.pair});
      continue;
    }
    if (best.count < count) continue;  // a newer entry is in the heap
    if (best.count < min_frequency) break;
    const auto left = static_cast<int32_t>(best.pair >> 32),
               right = static_cast<int32_t>(best.pair);
    absl::string_view tail = tokens_[right];
    if (!continuing_prefix_.empty() && absl::StartsWith(tail, continuing_prefix_))
      tail.remove_prefix(continuing_prefix_.size());
    // Two pairs may make one text ("ab" + "c", "a" + "bc"): it stays one token.
    const auto [entry, is_new] =
        ids_.emplace(absl::StrCat(tokens_[left], tail), static_cast<int32_t>(tokens_.size()));
    if (is_new) tokens_.push_back(entry->first);
    merges_.emplace_back(left, right);
    grown.clear();
    Join(left, right, entry->second, &grown);
    for (const Candidate& candidate : grown)
      heap.push({pairs_[candidate.pair].count, candidate.pair});
    if (merges_.size() % 64 == 0) progress(static_cast<int64_t>(tokens_.size()));
  }
}

void MergeLearner::Join(int32_t left, int32_t right, int32_t joined,
                        std::vector<Candidate>* grown) {
  const uint64_t pair = PairOf(left, right);
  std::vector<int32_t> places = std::move(pairs_[pair].places);
  pairs_.erase(pair);
  // From left to right, so that of overlapping pairs ("aaa") the first is joined.
  std::sort(places.begin(), places.end());
  steps_ += static_cast<int64_t>(places.size());
  absl::flat_hash_map<uint64_t, int64_t> change;
  for (const int32_t place : places) {
    if (symbol_[place] != left || next_[place] == kNone) continue;
    const int32_t tail = next_[place];
    if (symbol_[tail] != right) continue;
    const int64_t count = word_count_[word_[place]];
    const int32_t before = previous_[place], behind = next_[tail];
    const auto add = [&](int32_t at, uint64_t new_pair) {
      PairStat& stat = pairs_[new_pair];
      stat.places.push_back(at);
      stat.count += count;
      change[new_pair] += count;
    };
    const auto drop = [&](uint64_t old_pair) {
      const auto stat = pairs_.find(old_pair);
      if (stat != pairs_.end()) stat->second.count -= count;  // absent: the pair being joined
      change[old_pair] -= count;
    };
    if (before != kNone) {
      drop(PairOf(symbol_[before], left));
      add(before, PairOf(symbol_[before], joined));
    }
    if (behind != kNone) {
      drop(PairOf(right, symbol_[behind]));
      add(place, PairOf(joined, symbol_[behind]));
      previous_[behind] = place;
    }
    symbol_[place] = joined;
    symbol_[tail] = kGone;
    next_[place] = behind;
  }
  for (const auto& [changed, amount] : change) {
    const auto stat = pairs_.find(changed);
    if (stat == pairs_.end()) continue;
    if (stat->second.count <= 0) {
      pairs_.erase(stat);
    } else if (amount > 0) {
      grown->push_back({stat->second.count, changed});
    }
  }
}

}  // namespace tranche
