// Merging of long pieces: a whole document where a tokenizer cuts nothing, a line of one letter.
#pragma once

#include <algorithm>
#include <cstdint>
#include <queue>
#include <vector>

namespace tranche {

// Joins symbols[from …] until no rule applies: of the neighbours that a rule joins, those of the
// lowest rank first, leftmost first. rank_of(left, right) is the rule's rank or `no_rank`;
// merged[rank] is the id that it makes. Asks for at most 6 ranks a symbol and takes O(n log n) time
// and 32 bytes a symbol: a doubly linked list over the symbols and a heap of (rank, place), of
// which an entry is stale where the pair at its place no longer has its rank.
template <typename RankOf>
void MergeByRank(RankOf rank_of, uint32_t no_rank, const std::vector<int32_t>& merged,
                 std::vector<int32_t>* symbols, size_t from) {
  constexpr int32_t kGone = -1;
  int32_t* const symbol = symbols->data() + from;
  const size_t count = symbols->size() - from;
  std::vector<uint32_t> next(count), previous(count);
  std::vector<uint64_t> start;
  start.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    next[i] = static_cast<uint32_t>(i + 1);
    previous[i] = static_cast<uint32_t>(i - 1);
    if (i + 1 == count) break;
    const uint32_t rank = rank_of(symbol[i], symbol[i + 1]);
    if (rank != no_rank) start.push_back(static_cast<uint64_t>(rank) << 32 | i);
  }
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<uint64_t>> heap(
      std::greater<uint64_t>(), std::move(start));
  while (!heap.empty()) {
    const auto place = static_cast<uint32_t>(heap.top());
    const auto rank = static_cast<uint32_t>(heap.top() >> 32);
    heap.pop();
    if (symbol[place] == kGone || next[place] >= count) continue;
    const uint32_t right = next[place];
    if (rank_of(symbol[place], symbol[right]) != rank) continue;
    symbol[place] = merged[rank];
    symbol[right] = kGone;
    next[place] = next[right];
    if (next[place] < count) previous[next[place]] = place;
    const auto push = [&](uint32_t left, uint32_t behind) {
      const uint32_t new_rank = rank_of(symbol[left], symbol[behind]);
      if (new_rank != no_rank) heap.push(static_cast<uint64_t>(new_rank) << 32 | left);
    };
    if (place > 0) push(previous[place], place);
    if (next[place] < count) push(place, next[place]);
  }
  symbols->erase(
      std::remove(symbols->begin() + static_cast<std::ptrdiff_t>(from), symbols->end(), kGone),
      symbols->end());
}

}  // namespace tranche
