#include "data/tokenizer_cache.h"

namespace tranche {

void PieceCache::Reset(size_t slots) {
  entries_.assign(slots, Entry());
  mask_ = slots - 1;
  used_ = 0;
  long_bytes_.clear();
  long_ids_.clear();
}

void PieceCache::Grow() {
  std::vector<Entry> old(entries_.size() * 2);
  old.swap(entries_);
  mask_ = entries_.size() - 1;
  for (const Entry& entry : old) {
    if (entry.high == 0) continue;
    const bool is_long = entry.high >> 56 == 0xFF;
    size_t slot =
        (is_long ? entry.low
                 : Mix(entry.low ^ 0x9E3779B97F4A7C15u, entry.high ^ 0xD1B54A32D192ED03u)) &
        mask_;
    while (entries_[slot].high != 0) slot = (slot + 1) & mask_;
    entries_[slot] = entry;
  }
}

void PieceCache::Insert(absl::string_view piece, const Key& key, const int32_t* ids, size_t count) {
  if (used_ * 2 >= entries_.size()) {
    // Full: what is frequent comes back soon.
    if (used_ >= kMaxEntries / 2) {
      Reset(entries_.size());
    } else {
      Grow();
    }
  }
  size_t slot = key.hash & mask_;
  while (entries_[slot].high != 0) slot = (slot + 1) & mask_;
  Entry& entry = entries_[slot];
  entry.low = key.low;
  entry.high = key.high;
  if (piece.size() > kInlineBytes) {
    entry.high |= static_cast<uint64_t>(piece.size()) << 40 | long_bytes_.size();
    long_bytes_.append(piece.data(), piece.size());
  }
  entry.count = static_cast<uint32_t>(count);
  if (count <= kInlineIds) {
    for (size_t i = 0; i < count; ++i) entry.ids[i] = ids[i];
  } else {
    entry.ids[0] = static_cast<int32_t>(long_ids_.size());
    long_ids_.insert(long_ids_.end(), ids, ids + count);
  }
  ++used_;
}

}  // namespace tranche
