// Merging of long pieces: a whole document where a tokenizer cuts nothing, a line of one letter.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

namespace tranche {

// Joins symbols[from …] until no rule applies: of the neighbours that a rule joins, those of the
// lowest rank first, leftmost first. rank_of(left, right) is the rule's rank or `no_rank`;
// merged[rank] is the id that it makes. Asks for at most 6 ranks a symbol and takes O(n log n) time
// and 36 bytes a symbol: a doubly linked list over the symbols and a heap of (rank, place), of
// which an entry is stale where the pair at its place no longer has its rank.
template <typename RankOf>
void MergeByRank(RankOf rank_of, uint32_t no_rank, const std::vector<int32_t>& merged,
                 std::vector<int32_t>* symbols, size_t from) {
  constexpr int32_t kGone = -1;
  const size_t count = symbols->size() - from;
  // What one merge touches stands together: places come in an order that no cache foresees.
  struct Link {
    int32_t symbol;
    uint32_t previous, next;
  };
  std::vector<Link> links(count);
  std::vector<uint64_t> start;
  start.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const int32_t symbol = (*symbols)[from + i];
    links[i] = {symbol, static_cast<uint32_t>(i - 1), static_cast<uint32_t>(i + 1)};
    if (i + 1 == count) break;
    const uint32_t rank = rank_of(symbol, (*symbols)[from + i + 1]);
    if (rank != no_rank) start.push_back(static_cast<uint64_t>(rank) << 32 | i);
  }
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<uint64_t>> heap(
      std::greater<uint64_t>(), std::move(start));
  while (!heap.empty()) {
    const auto place = static_cast<uint32_t>(heap.top());
    const auto rank = static_cast<uint32_t>(heap.top() >> 32);
    heap.pop();
    Link& link = links[place];
    if (link.symbol == kGone || link.next >= count) continue;
    Link& right = links[link.next];
    if (rank_of(link.symbol, right.symbol) != rank) continue;
    link.symbol = merged[rank];
    right.symbol = kGone;
    link.next = right.next;
    const auto push = [&](uint32_t left, const Link& behind) {
      const uint32_t new_rank = rank_of(links[left].symbol, behind.symbol);
      if (new_rank != no_rank) heap.push(static_cast<uint64_t>(new_rank) << 32 | left);
    };
    if (place > 0) push(link.previous, link);
    if (link.next < count) {
      links[link.next].previous = place;
      push(place, links[link.next]);
    }
  }
  symbols->resize(from);
  for (const Link& link : links) {
    if (link.symbol != kGone) symbols->push_back(link.symbol);
  }
}

}  // namespace tranche
