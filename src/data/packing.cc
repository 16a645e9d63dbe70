#include "data/packing.h"

#include <algorithm>
#include <numeric>

#include "absl/numeric/bits.h"
#include "base/check.h"

namespace tranche {
namespace {

// Appends [begin, end) to *pieces, one piece a document.
void SplitAtDocuments(const Source& source, int64_t begin, int64_t end,
                      std::vector<TokenRange>* pieces) {
  if (begin >= end) return;
  for (int64_t d = source.DocumentAt(begin); begin < end; ++d) {
    const int64_t stop = std::min(end, source.FirstToken(d + 1));
    if (stop > begin) pieces->push_back({begin, stop - begin});
    begin = stop;
  }
}

// Windows of the token stream, as large as fit: sample j is computed.
class WindowIndex : public SampleIndex {
 public:
  WindowIndex(const Source& source, const PackingOptions& options)
      : source_(source),
        split_(options.split_pieces),
        window_(options.capacity - options.wrap_rows),
        rows_(std::max<int64_t>(0, source.num_tokens() - (options.last_is_label ? 1 : 0))) {
    if (rows_ == 0) unused_tokens_ = source.num_tokens();
    if (rows_ == 0 || !split_ || !options.last_is_label) return;
    for (int64_t d = source.document_begin(); d < source.document_end(); ++d) {
      if (source.FirstToken(d + 1) - source.FirstToken(d) == 1) ++unused_tokens_;
    }
  }

  int64_t size() const override { return (rows_ + window_ - 1) / window_; }

  void GetPieces(int64_t j, std::vector<TokenRange>* pieces) const override {
    pieces->clear();
    const int64_t begin = source_.token_begin() + j * window_;
    const int64_t end = std::min(begin + window_, source_.token_begin() + rows_);
    if (split_) {
      SplitAtDocuments(source_, begin, end, pieces);
    } else {
      pieces->push_back({begin, end - begin});
    }
  }

 private:
  const Source& source_;
  const bool split_;
  const int64_t window_, rows_;
};

// The stream again, but each document's part of a sample carries its own wrapping, so where samples
// begin depends on the documents.
class WrappedStreamIndex : public SampleIndex {
 public:
  WrappedStreamIndex(const Source& source, const PackingOptions& options)
      : source_(source), capacity_(options.capacity), wrap_(options.wrap_rows) {
    std::vector<TokenRange> pieces;
    for (int64_t token = source.token_begin(); token < source.token_end();) {
      begins_.push_back(token);
      token = Fill(token, &pieces);
    }
  }

  int64_t size() const override { return static_cast<int64_t>(begins_.size()); }

  void GetPieces(int64_t j, std::vector<TokenRange>* pieces) const override {
    Fill(begins_[static_cast<size_t>(j)], pieces);
  }

 private:
  // The pieces of the sample that begins at `token`; returns where the next one begins.
  int64_t Fill(int64_t token, std::vector<TokenRange>* pieces) const {
    pieces->clear();
    int64_t room = capacity_;
    for (int64_t d = source_.DocumentAt(token); room > wrap_ && token < source_.token_end(); ++d) {
      const int64_t size = std::min(room - wrap_, source_.FirstToken(d + 1) - token);
      if (size == 0) continue;
      pieces->push_back({token, size});
      token += size;
      room -= size + wrap_;
    }
    return token;
  }

  const Source& source_;
  const int64_t capacity_, wrap_;
  std::vector<int64_t> begins_;
};

// Each document by itself, cut where it is longer than a sample.
class DocumentIndex : public SampleIndex {
 public:
  DocumentIndex(const Source& source, const PackingOptions& options)
      : source_(source), options_(options), piece_(options.capacity - options.wrap_rows) {
    for (int64_t d = source.document_begin(); d < source.document_end(); ++d) {
      if ((d - source.document_begin()) % kStride == 0) before_.push_back(size_);
      const int64_t length = source.FirstToken(d + 1) - source.FirstToken(d);
      size_ += Count(d);
      const int64_t rows = Rows(d), rest = rows % piece_;
      if (length > 0 && rows == 0) unused_tokens_ += length;
      // The label behind the last whole piece is used; what follows it is not.
      if (rest > 0 && rest < options.smallest_piece) unused_tokens_ += rest;
    }
  }

  int64_t size() const override { return size_; }

  void GetPieces(int64_t j, std::vector<TokenRange>* pieces) const override {
    const auto after = std::upper_bound(before_.begin(), before_.end(), j);
    const int64_t block = (after - before_.begin()) - 1;
    int64_t d = source_.document_begin() + block * kStride;
    for (j -= before_[static_cast<size_t>(block)]; j >= Count(d); ++d) j -= Count(d);
    const int64_t offset = j * piece_;
    pieces->assign(1, {source_.FirstToken(d) + offset, std::min(piece_, Rows(d) - offset)});
  }

 private:
  static constexpr int64_t kStride = 64;

  int64_t Rows(int64_t d) const {
    const int64_t length = source_.FirstToken(d + 1) - source_.FirstToken(d);
    return std::max<int64_t>(0, length - (options_.last_is_label ? 1 : 0));
  }
  int64_t Count(int64_t d) const {
    const int64_t rows = Rows(d);
    return rows / piece_ + (rows % piece_ >= options_.smallest_piece ? 1 : 0);
  }

  const Source& source_;
  const PackingOptions options_;
  const int64_t piece_;
  std::vector<int64_t> before_;  // samples before every 64th document
  int64_t size_ = 0;
};

// The smallest room that holds a piece, among rooms of 0..capacity rows: a tree of 64-bit words.
class RoomSet {
 public:
  explicit RoomSet(int64_t capacity)
      : words_(static_cast<size_t>(capacity / 64 + 1)), upper_(words_.size() / 64 + 1) {}
  void Insert(int64_t room) {
    words_[static_cast<size_t>(room / 64)] |= uint64_t{1} << (room % 64);
    upper_[static_cast<size_t>(room / 4096)] |= uint64_t{1} << (room / 64 % 64);
  }
  void Erase(int64_t room) {
    uint64_t& word = words_[static_cast<size_t>(room / 64)];
    word &= ~(uint64_t{1} << (room % 64));
    if (word == 0) upper_[static_cast<size_t>(room / 4096)] &= ~(uint64_t{1} << (room / 64 % 64));
  }
  // The smallest room >= rows, or -1.
  int64_t AtLeast(int64_t rows) const {
    size_t w = static_cast<size_t>(rows / 64);
    if (w >= words_.size()) return -1;
    if (const uint64_t word = words_[w] >> (rows % 64)) return rows + absl::countr_zero(word);
    ++w;
    for (size_t u = w / 64; u < upper_.size(); ++u, w = u * 64) {
      const uint64_t word = upper_[u] >> (w % 64) << (w % 64);
      if (word == 0) continue;
      const size_t found = u * 64 + static_cast<size_t>(absl::countr_zero(word));
      return static_cast<int64_t>(found) * 64 + absl::countr_zero(words_[found]);
    }
    return -1;
  }

 private:
  std::vector<uint64_t> words_, upper_;
};

// Documents cut as in DocumentIndex, the pieces packed by best fit decreasing: the longest first,
// each into the fullest sample that still has room. Among equal rooms the sample opened last is
// taken, so the result is one and the same everywhere.
class BestFitIndex : public SampleIndex {
 public:
  BestFitIndex(const Source& source, const PackingOptions& options) {
    const DocumentIndex documents(source, options);
    unused_tokens_ = documents.unused_tokens();
    const std::vector<TokenRange> pieces = LongestFirst(source, documents, options);
    const std::vector<int64_t> sample_of = Pack(pieces, options);

    // Group by sample, keeping the order of packing.
    std::vector<int64_t> next(first_.begin(), first_.end() - 1);
    pieces_.resize(pieces.size());
    for (size_t i = 0; i < pieces.size(); ++i) {
      pieces_[static_cast<size_t>(next[static_cast<size_t>(sample_of[i])]++)] = pieces[i];
    }
  }

  int64_t size() const override { return static_cast<int64_t>(first_.size()) - 1; }

  void GetPieces(int64_t j, std::vector<TokenRange>* pieces) const override {
    pieces->assign(pieces_.begin() + first_[static_cast<size_t>(j)],
                   pieces_.begin() + first_[static_cast<size_t>(j) + 1]);
  }

 private:
  static std::vector<TokenRange> LongestFirst(const Source& source, const DocumentIndex& documents,
                                              const PackingOptions& options) {
    const int64_t longest = options.capacity - options.wrap_rows;
    const int64_t label = options.last_is_label ? 1 : 0;
    const auto for_each = [&](const auto& body) {
      for (int64_t d = source.document_begin(); d < source.document_end(); ++d) {
        const int64_t end = source.FirstToken(d + 1) - label;
        for (int64_t begin = source.FirstToken(d); begin < end; begin += longest) {
          body(TokenRange{begin, std::min(longest, end - begin)});
        }
      }
    };
    std::vector<int64_t> place(static_cast<size_t>(longest) + 2);  // counting sort
    for_each([&](TokenRange piece) { ++place[static_cast<size_t>(longest - piece.size + 1)]; });
    std::partial_sum(place.begin(), place.end(), place.begin());
    std::vector<TokenRange> sorted(static_cast<size_t>(documents.size()));
    for_each([&](TokenRange piece) {
      sorted[static_cast<size_t>(place[static_cast<size_t>(longest - piece.size)]++)] = piece;
    });
    return sorted;
  }

  // The sample of each piece; fills first_ with where each sample's pieces will begin.
  std::vector<int64_t> Pack(const std::vector<TokenRange>& pieces, const PackingOptions& options) {
    RoomSet rooms(options.capacity);
    std::vector<std::vector<int64_t>> samples_with(static_cast<size_t>(options.capacity) + 1);
    std::vector<int64_t> sample_of(pieces.size());
    first_.assign(1, 0);  // counts of pieces until the sum below
    for (size_t i = 0; i < pieces.size(); ++i) {
      const int64_t rows = pieces[i].size + options.wrap_rows;
      int64_t room = rooms.AtLeast(rows), sample;
      if (room < 0) {
        room = options.capacity;
        sample = static_cast<int64_t>(first_.size()) - 1;
        first_.push_back(0);
      } else {
        std::vector<int64_t>& candidates = samples_with[static_cast<size_t>(room)];
        sample = candidates.back();
        candidates.pop_back();
        if (candidates.empty()) rooms.Erase(room);
      }
      sample_of[i] = sample;
      ++first_[static_cast<size_t>(sample) + 1];
      room -= rows;
      if (room > options.wrap_rows) {
        samples_with[static_cast<size_t>(room)].push_back(sample);
        rooms.Insert(room);
      }
    }
    std::partial_sum(first_.begin(), first_.end(), first_.begin());
    return sample_of;
  }

  std::vector<TokenRange> pieces_;
  std::vector<int64_t> first_;  // of each sample in pieces_; one more at the end
};

}  // namespace

std::unique_ptr<SampleIndex> SampleIndex::Build(const Source& source,
                                                const PackingOptions& options) {
  TRANCHE_CHECK_LT(options.wrap_rows, options.capacity);
  switch (options.packing) {
    case Packing::kConcat:
      if (options.split_pieces && options.wrap_rows > 0)
        return std::make_unique<WrappedStreamIndex>(source, options);
      return std::make_unique<WindowIndex>(source, options);
    case Packing::kBestFit:
      return std::make_unique<BestFitIndex>(source, options);
    case Packing::kNone:
      break;
  }
  return std::make_unique<DocumentIndex>(source, options);
}

}  // namespace tranche
