// Pieces of text already tokenized: a bounded hash table from a piece's bytes to its ids. One
// thread owns it.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace tranche {

class PieceCache {
 public:
  static constexpr size_t kMaxPieceBytes = 128;  // longer ones are rare and seldom come again
  static constexpr size_t kMaxEntries = 1 << 18;
  PieceCache() { Reset(kMinSlots); }

  // A piece's identity: made once for a look-up and the insertion after a miss.
  struct Key {
    uint64_t low, high, hash;
  };
  // `readable_end`: end of the memory that holds the piece, at or beyond the piece's end.
  static Key MakeKey(absl::string_view piece, const char* readable_end) {
    Key key;
    const size_t size = piece.size();
    if (size <= kInlineBytes) {
      uint64_t words[2];
      if (readable_end - piece.data() >= 16) {
        std::memcpy(words, piece.data(), 16);
        const unsigned low_bits = size >= 8 ? 64 : static_cast<unsigned>(size * 8);
        const unsigned high_bits = size > 8 ? static_cast<unsigned>(size * 8 - 64) : 0;
        words[0] &= low_bits == 64 ? ~uint64_t{0} : (uint64_t{1} << low_bits) - 1;
        words[1] &= (uint64_t{1} << high_bits) - 1;
      } else {
        words[0] = words[1] = 0;
        std::memcpy(words, piece.data(), size);
      }
      key.low = words[0];
      key.high = words[1] | static_cast<uint64_t>(size) << 56;
      key.hash = Mix(key.low ^ 0x9E3779B97F4A7C15u, key.high ^ 0xD1B54A32D192ED03u);
    } else {
      uint64_t hash = size;
      for (size_t i = 0; i + 8 <= size; i += 8)
        hash = Mix(hash ^ Word(piece.data() + i), 0x9FB21C651E98DF25u);
      hash = Mix(hash ^ Word(piece.data() + size - 8), 0xD6E8FEB86659FD93u);
      key.low = key.hash = hash;
      key.high = uint64_t{0xFF} << 56;
    }
    return key;
  }

  // Appends the piece's ids; false where it is not known.
  bool AppendIds(absl::string_view piece, const Key& key, std::vector<int32_t>* ids) const {
    for (size_t slot = key.hash & mask_;; slot = (slot + 1) & mask_) {
      const Entry& entry = entries_[slot];
      if (entry.high == 0) return false;
      if (entry.low != key.low) continue;
      if (key.high >> 56 != 0xFF) {
        if (entry.high != key.high) continue;
      } else if (!LongMatches(entry, piece)) {
        continue;
      }
      const size_t count = entry.count;
      if (count == 1) {
        ids->push_back(entry.ids[0]);
      } else if (count <= kInlineIds) {
        ids->insert(ids->end(), entry.ids, entry.ids + count);
      } else {
        ids->insert(ids->end(), long_ids_.begin() + entry.ids[0],
                    long_ids_.begin() + entry.ids[0] + count);
      }
      return true;
    }
  }

  void Insert(absl::string_view piece, const Key& key, const int32_t* ids, size_t count);

 private:
  static constexpr size_t kInlineBytes = 15;
  static constexpr size_t kInlineIds = 3;
  static constexpr size_t kMinSlots = 1 << 12;

  struct Entry {
    uint64_t low = 0, high = 0;  // high == 0: free. Short pieces: bytes and size. Long: hash; 0xFF,
                                 // size, place in long_bytes_
    int32_t ids[kInlineIds] = {};  // or ids[0]: place in long_ids_
    uint32_t count = 0;
  };
  static_assert(sizeof(Entry) == 32);

  static uint64_t Word(const char* data) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    return word;
  }
  static uint64_t Mix(uint64_t a, uint64_t b) {
    const auto product = static_cast<unsigned __int128>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }
  bool LongMatches(const Entry& entry, absl::string_view piece) const {
    const size_t size = entry.high >> 40 & 0xFF, offset = entry.high & 0xFFFFFFFF;
    return entry.high >> 56 == 0xFF && size == piece.size() &&
           std::memcmp(&long_bytes_[offset], piece.data(), size) == 0;
  }
  void Reset(size_t slots);
  void Grow();

  std::vector<Entry> entries_;
  size_t mask_ = 0, used_ = 0;
  std::string long_bytes_;
  std::vector<int32_t> long_ids_;
};

}  // namespace tranche
