#include "data/sample_builder.h"

#include <algorithm>
#include <numeric>

#include "base/rng.h"
#include "base/status.h"

namespace tranche {
namespace {

constexpr uint64_t kMaskPurpose = 0x6d61736b;  // "mask"
constexpr uint64_t kPairPurpose = 0x70616972;  // "pair"

}  // namespace

PackingOptions PackingOf(const LoaderOptions& options) {
  PackingOptions packing;
  packing.packing = options.packing;
  packing.capacity = options.sequence_length;
  packing.split_pieces = options.document_mask;
  if (options.objective == Objective::kClm) {
    packing.last_is_label = true;
  } else {
    packing.wrap_rows = options.next_sentence ? 3 : 2;
    packing.smallest_piece = options.next_sentence ? 2 : 1;
  }
  return packing;
}

SampleBuilder::SampleBuilder(const LoaderOptions& options, const std::vector<LoadedSource>& sources,
                             const Sampler& sampler)
    : options_(options),
      sources_(sources),
      sampler_(sampler),
      mask_key_(DeriveKey(options.seed, kMaskPurpose)),
      pair_key_(DeriveKey(options.seed, kPairPurpose)) {
  if (options.objective != Objective::kMlm) return;
  const Tokenizer::Specials& specials = options.tokenizer->specials();
  // RoBERTa's files call them <s> and </s>.
  cls_ = specials.cls >= 0 ? specials.cls : specials.bos;
  sep_ = specials.sep >= 0 ? specials.sep : specials.eos;
  masker_ = std::make_unique<TokenMasker>(
      *options.tokenizer, options.vocab_rows, options.mlm_probability, options.whole_word_mask,
      MaskLimit(options.sequence_length - PackingOf(options).wrap_rows, options.mlm_probability,
                options.whole_word_mask));
}

// Half of each pair of neighbours in the shuffled order trade their second sentences, so that an
// epoch uses each token once with next-sentence prediction too. Neighbours from one document do
// not: the other's second sentence might follow after all.
std::vector<SampleBuilder::Part> SampleBuilder::PartsOf(const SampleId& id, bool* swapped) const {
  const auto pieces_of = [this](const SampleId& sample) {
    std::vector<Part> parts;
    std::vector<TokenRange> pieces;
    const LoadedSource& from = sources_[static_cast<size_t>(sample.source)];
    from.index->GetPieces(sample.sample, &pieces);
    for (const TokenRange& piece : pieces) parts.push_back({&from, piece});
    return parts;
  };
  *swapped = false;
  std::vector<Part> parts = pieces_of(id);
  if (!options_.next_sentence) return parts;
  const auto halve = [](std::vector<Part>* whole) {
    const TokenRange piece = whole->front().piece;
    const int64_t first = (piece.size + 1) / 2;
    whole->push_back(whole->front());
    (*whole)[0].piece.size = first;
    (*whole)[1].piece = {piece.begin + first, piece.size - first};
  };
  halve(&parts);
  const SampleId partner = sampler_.Partner(id);
  if (partner.position == id.position) return parts;
  const uint64_t key = DeriveKey(DeriveKey(pair_key_, static_cast<uint64_t>(id.order)),
                                 static_cast<uint64_t>(id.epoch));
  if (Philox(key, static_cast<uint64_t>(id.position / 2), 0)[0] & 1) return parts;
  std::vector<Part> others = pieces_of(partner);
  halve(&others);
  const auto document = [](const Part& part) {
    return part.from->source->DocumentAt(part.piece.begin);
  };
  if (others[1].from == parts[1].from && document(others[1]) == document(parts[1])) return parts;
  parts[1] = others[1];
  *swapped = true;
  return parts;
}

absl::Status SampleBuilder::AppendIds(const Part& part, MicroBatch* batch) const {
  const size_t row = batch->input_ids.size(), size = static_cast<size_t>(part.piece.size);
  batch->input_ids.resize(row + size);
  return part.from->source->file().Read(
      part.piece.begin, absl::MakeSpan(batch->input_ids).subspan(row, size), options_.vocab_rows);
}

// Positions of the rows since the last segment, and the segment's end.
void SampleBuilder::EndSegment(MicroBatch* batch) const {
  const int32_t begin = batch->cu_seqlens.back(),
                end = static_cast<int32_t>(batch->input_ids.size());
  batch->positions.resize(static_cast<size_t>(end));
  std::iota(batch->positions.begin() + begin, batch->positions.end(), 0);
  batch->cu_seqlens.push_back(end);
}

// Pieces of best_fit and none stop before the last token of their document, windows of an unmasked
// stream before that of the source; only a masked stream has rows behind which nothing of the
// document is left.
bool SampleBuilder::LastRowHasLabel(const Part& part) const {
  if (options_.packing != Packing::kConcat || !options_.document_mask) return true;
  const Source& source = *part.from->source;
  return part.piece.begin + part.piece.size <
         source.FirstToken(source.DocumentAt(part.piece.begin) + 1);
}

absl::Status SampleBuilder::AddCausal(const std::vector<Part>& parts, MicroBatch* batch) const {
  for (const Part& part : parts) {
    const Source& source = *part.from->source;
    const int64_t begin = part.piece.begin, size = part.piece.size;
    const int32_t row = static_cast<int32_t>(batch->input_ids.size());
    const bool last_label = LastRowHasLabel(part);
    // One id more than there are rows: the label of the last.
    const Part read = {part.from, {begin, size + (last_label ? 1 : 0)}};
    TRANCHE_RETURN_IF_ERROR(AppendIds(read, batch));
    const int32_t count = static_cast<int32_t>(size) - (last_label ? 0 : 1);
    // Next document whose end may be a label; the labels are the tokens (begin, begin + count].
    int64_t document = options_.eod_loss ? 0 : source.DocumentAt(begin);
    for (int32_t i = 0; i < count; ++i) {
      const int32_t label = batch->input_ids[static_cast<size_t>(row) + static_cast<size_t>(i) + 1];
      if (!options_.eod_loss) {
        const int64_t token = begin + i + 1;
        while (source.FirstToken(document + 1) <= token) ++document;
        if (label == part.from->eos && token + 1 == source.FirstToken(document + 1)) continue;
      }
      batch->predict_rows.push_back(row + i);
      batch->labels.push_back(label);
    }
    batch->input_ids.resize(static_cast<size_t>(row + size));
    if (options_.document_mask) EndSegment(batch);
  }
  if (!options_.document_mask) EndSegment(batch);
  return absl::OkStatus();
}

absl::Status SampleBuilder::AddMasked(const SampleId& id, const std::vector<Part>& parts,
                                      MicroBatch* batch) const {
  const size_t row = batch->input_ids.size();
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i == 0 || !options_.next_sentence) batch->input_ids.push_back(cls_);
    TRANCHE_RETURN_IF_ERROR(AppendIds(parts[i], batch));
    batch->input_ids.push_back(sep_);
    if (options_.next_sentence)
      batch->token_types.resize(batch->input_ids.size(), static_cast<int32_t>(i));
    if (options_.document_mask && !options_.next_sentence) EndSegment(batch);
  }
  if (!options_.document_mask || options_.next_sentence) EndSegment(batch);
  const uint64_t key = DeriveKey(DeriveKey(mask_key_, static_cast<uint64_t>(id.source)),
                                 static_cast<uint64_t>(id.epoch));
  masker_->Apply(key, static_cast<uint64_t>(id.sample), static_cast<int32_t>(row),
                 absl::MakeSpan(batch->input_ids).subspan(row), &batch->predict_rows,
                 &batch->labels);
  return absl::OkStatus();
}

absl::Status SampleBuilder::Add(int64_t g, MicroBatch* batch) const {
  const SampleId id = sampler_.At(g);
  const size_t row = batch->input_ids.size();
  const int64_t predicted = batch->num_predicted();
  bool swapped = false;
  const std::vector<Part> parts = PartsOf(id, &swapped);
  TRANCHE_RETURN_IF_ERROR(options_.objective == Objective::kClm ? AddCausal(parts, batch)
                                                                : AddMasked(id, parts, batch));
  if (options_.next_sentence) batch->next_sentence.push_back(swapped ? 1 : 0);
  batch->token_types.resize(batch->input_ids.size(), 0);
  batch->cu_sequences.push_back(static_cast<int32_t>(batch->input_ids.size()));
  for (size_t i = row; i < batch->input_ids.size(); ++i) {
    batch->token_keys.push_back((static_cast<uint64_t>(g) << 20) | (i - row));
  }
  batch->text_bytes += static_cast<double>(batch->num_predicted() - predicted) *
                       sources_[static_cast<size_t>(id.source)].bytes_per_token;
  return absl::OkStatus();
}

absl::StatusOr<int64_t> SampleBuilder::CountPredicted(int64_t g) const {
  if (options_.objective == Objective::kMlm || !options_.eod_loss) {
    MicroBatch batch;
    batch.cu_seqlens = batch.cu_sequences = {0};
    TRANCHE_RETURN_IF_ERROR(Add(g, &batch));
    return batch.num_predicted();
  }
  bool swapped = false;
  int64_t count = 0;
  for (const Part& part : PartsOf(sampler_.At(g), &swapped))
    count += part.piece.size - (LastRowHasLabel(part) ? 0 : 1);
  return count;
}

}  // namespace tranche
