#include "data/loader.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/hash.h"
#include "base/status.h"
#include "data/masking.h"
#include "data/sample_builder.h"
#include "data/sampler.h"

namespace tranche {
namespace {

absl::Status CheckOptions(const LoaderOptions& o) {
  const auto error = [](auto... what) { return absl::InvalidArgumentError(absl::StrCat(what...)); };
  if (o.sources.empty()) return error("data.sources: at least one dataset is needed");
  const bool mlm = o.objective == Objective::kMlm;
  const int64_t shortest = PackingOf(o).wrap_rows + PackingOf(o).smallest_piece;
  if (o.sequence_length < shortest || o.sequence_length > int64_t{1} << 20) {
    return error("data.sequence_length: ", o.sequence_length, " is not in [", shortest, ", ",
                 int64_t{1} << 20, "]");
  }
  if (o.global_batch_size < 1 || o.micro_batch_size < 1 ||
      o.global_batch_size % o.micro_batch_size != 0) {
    return error("training.global_batch_size: ", o.global_batch_size,
                 " is not a multiple of micro_batch_size ", o.micro_batch_size);
  }
  if (o.micro_batch_size > INT32_MAX / o.sequence_length) {
    return error("training.micro_batch_size: ", o.micro_batch_size, " × ", o.sequence_length,
                 " rows are too many");
  }
  if (o.vocab_rows < 1) return error("model.vocab_size: ", o.vocab_rows, " is not positive");
  const int64_t weighted =
      std::count_if(o.sources.begin(), o.sources.end(), [](const auto& s) { return s.weight > 0; });
  if ((weighted != 0 && weighted != static_cast<int64_t>(o.sources.size())) ||
      std::any_of(o.sources.begin(), o.sources.end(),
                  [](const auto& s) { return !(s.weight >= 0) || s.weight > 1e30; })) {
    return error("data.sources: give every source a weight above 0, or none a weight");
  }
  if (o.split != DataSplit::kAll && !(o.validation_fraction > 0 && o.validation_fraction < 1)) {
    return error("data: the share held out for validation, ", o.validation_fraction,
                 ", must be between 0 and 1");
  }
  if (!mlm) {
    if (o.next_sentence) return error("data.next_sentence: belongs to objective \"mlm\"");
    return absl::OkStatus();
  }
  if (!(o.mlm_probability > 0 && o.mlm_probability <= 1)) {
    return error("data.mlm_probability: ", o.mlm_probability,
                 " is not in (0, 1]; with 0 nothing would be learnt");
  }
  if (o.next_sentence && (o.packing != Packing::kNone || !o.shuffle)) {
    return error(
        "data.next_sentence: needs packing \"none\" and shuffle, which pair the sentences");
  }
  if (o.tokenizer == nullptr) return error("data.objective: \"mlm\" needs the tokenizer");
  const Tokenizer::Specials& s = o.tokenizer->specials();
  const std::pair<const char*, int32_t> needed[] = {{"[MASK]", s.mask},
                                                    {"[CLS]", s.cls >= 0 ? s.cls : s.bos},
                                                    {"[SEP]", s.sep >= 0 ? s.sep : s.eos}};
  for (const auto& [name, id] : needed) {
    if (id < 0)
      return error("data.objective: \"mlm\" needs a ", name, " token, the tokenizer has none");
    if (id >= o.vocab_rows) {
      return error("data.objective: ", name, " is id ", id, ", the model has ", o.vocab_rows,
                   " rows");
    }
  }
  return absl::OkStatus();
}

class LoaderImpl : public Loader {
 public:
  explicit LoaderImpl(const LoaderOptions& options) : Loader(options) {}

  absl::Status Open() {
    std::vector<int64_t> sizes;
    std::vector<double> weights;
    Hasher hasher;
    for (const SourceOptions& source : options_.sources) {
      TRANCHE_RETURN_IF_ERROR(OpenSource(source, &hasher));
      sizes.push_back(sources_.back().index->size());
      if (source.weight > 0) weights.push_back(source.weight);
      hasher.Update(absl::StrCat(source.weight, ";"));
    }
    sampler_ = std::make_unique<Sampler>(sizes, weights, options_.shuffle, options_.seed);
    builder_ = std::make_unique<SampleBuilder>(options_, sources_, *sampler_);
    if (options_.epochs > 0) end_ = options_.epochs * samples_per_epoch();
    for (size_t i = 0; i < report_.size(); ++i)
      report_[i].share = sampler_->share(static_cast<int64_t>(i));
    hasher.Update(absl::StrCat(options_.sequence_length, ";", static_cast<int>(options_.objective),
                               ";", options_.mlm_probability, ";", options_.whole_word_mask, ";",
                               options_.next_sentence, ";", static_cast<int>(options_.packing), ";",
                               options_.document_mask, ";", options_.eod_loss, ";",
                               options_.shuffle, ";", options_.seed));
    fingerprint_ = hasher.Finish();
    return absl::OkStatus();
  }

  absl::StatusOr<MicroBatch> Get(int64_t step, int64_t slot) const override {
    MicroBatch batch;
    batch.cu_seqlens = batch.cu_sequences = {0};
    TRANCHE_ASSIGN_OR_RETURN(const auto samples, Samples(step, slot));
    const auto [begin, end] = samples;
    batch.first_sample = begin;
    const size_t rows =
        static_cast<size_t>(std::max<int64_t>(0, end - begin) * options_.sequence_length);
    for (auto* array : {&batch.input_ids, &batch.positions, &batch.token_types})
      array->reserve(rows + 1);
    batch.token_keys.reserve(rows);
    for (int64_t g = begin; g < end; ++g) TRANCHE_RETURN_IF_ERROR(builder_->Add(g, &batch));
    return batch;
  }

  absl::StatusOr<int64_t> PredictedTokens(int64_t step, int64_t slot) const override {
    TRANCHE_ASSIGN_OR_RETURN(const auto samples, Samples(step, slot));
    const auto [begin, end] = samples;
    int64_t sum = 0;
    for (int64_t g = begin; g < end; ++g) {
      TRANCHE_ASSIGN_OR_RETURN(const int64_t count, builder_->CountPredicted(g));
      sum += count;
    }
    return sum;
  }

  absl::StatusOr<int64_t> PredictedTokens(int64_t step) const override {
    int64_t sum = 0;
    for (int64_t slot = 0; slot < slots(); ++slot) {
      TRANCHE_ASSIGN_OR_RETURN(const int64_t count, PredictedTokens(step, slot));
      sum += count;
    }
    return sum;
  }

  int64_t samples_per_epoch() const override { return sampler_->samples_per_epoch(); }
  const std::vector<SourceReport>& report() const override { return report_; }
  const std::string& fingerprint() const override { return fingerprint_; }

  SampleInfo Describe(int64_t g) const override {
    const SampleId id = sampler_->At(g);
    SampleInfo info;
    info.path = sources_[static_cast<size_t>(id.source)].source->file().path();
    info.source = id.source, info.epoch = id.epoch, info.sample = id.sample;
    bool swapped = false;
    int64_t row = 0;
    for (const SampleBuilder::Part& part : builder_->PartsOf(id, &swapped)) {
      const bool wrapped = options_.objective == Objective::kMlm;
      if (wrapped && (row == 0 || !options_.next_sentence)) ++row;  // [CLS]
      const Source& source = *part.from->source;
      int64_t token = part.piece.begin;
      for (const int64_t end = token + part.piece.size; token < end;) {
        const int64_t document = source.DocumentAt(token), border = source.FirstToken(document + 1);
        const int64_t size = std::min(end, border) - token;
        info.parts.push_back(
            {row, document, token - source.FirstToken(document), size, token + size == border});
        token += size;
        row += size;
      }
      if (wrapped) ++row;  // [SEP]
    }
    return info;
  }

 private:
  absl::Status OpenSource(const SourceOptions& source, Hasher* hasher) {
    TRANCHE_ASSIGN_OR_RETURN(auto file,
                             TokenFile::Open(source.path, options_.format, options_.token_dtype));
    const auto error = [&](auto... what) {
      return absl::InvalidArgumentError(absl::StrCat(file->path(), ": ", what...));
    };
    if (!file->has_index() &&
        (options_.document_mask || !options_.eod_loss || options_.next_sentence)) {
      return error("has no index of documents, which ",
                   options_.document_mask ? "document_mask"
                   : options_.eod_loss    ? "next_sentence"
                                          : "eod_loss = false",
                   " needs; make .bin and .idx with `tranche tokenize`");
    }
    LoadedSource loaded;
    const auto& meta = file->meta();
    if (meta && options_.tokenizer != nullptr &&
        meta->tokenizer != options_.tokenizer->fingerprint()) {
      return error("was made with another tokenizer (", meta->tokenizer, ", this one is ",
                   options_.tokenizer->fingerprint(),
                   "); tokenize again, or point to that tokenizer");
    }
    // Data that says its vocabulary fits is not read through; every id is checked again where it is
    // used.
    if (!meta || meta->vocab_size > options_.vocab_rows) {
      TRANCHE_RETURN_IF_ERROR(file->CheckIds(options_.vocab_rows));
    }
    if (meta) loaded.eos = meta->eos;
    if (loaded.eos < 0 && options_.tokenizer != nullptr)
      loaded.eos = options_.tokenizer->specials().eos;
    if (!options_.eod_loss && loaded.eos < 0) {
      return error(
          "nothing tells which id is its end-of-document token, which eod_loss = false needs");
    }
    if (meta && meta->tokens > 0) {
      loaded.bytes_per_token =
          static_cast<double>(meta->text_bytes) / static_cast<double>(meta->tokens);
    }
    if (file->num_tokens() == 0) return error("holds no tokens");

    loaded.source =
        std::make_unique<Source>(std::move(file), options_.split, options_.validation_fraction);
    const Source& part = *loaded.source;
    loaded.index = SampleIndex::Build(part, PackingOf(options_));
    if (loaded.index->size() == 0) {
      const char* side = options_.split == DataSplit::kAll     ? ""
                         : options_.split == DataSplit::kTrain ? " before the validation cut"
                                                               : " behind the validation cut";
      return absl::InvalidArgumentError(absl::StrCat(
          part.file().path(), ": its ", part.num_tokens(), " tokens", side, " make no sample",
          part.num_tokens() > 0 ? ": every document is too short to predict anything" : ""));
    }
    SourceReport report;
    report.path = part.file().path();
    report.tokens = part.num_tokens();
    report.documents = part.document_end() - part.document_begin();
    report.samples = loaded.index->size();
    report.unused_tokens = loaded.index->unused_tokens();
    report.bytes_per_token = loaded.bytes_per_token;
    if (report.unused_tokens > 0) {
      report.unused_reason = options_.next_sentence
                                 ? "pieces of one token make no pair of sentences"
                                 : "documents of one token have nothing to predict";
    }
    report_.push_back(report);
    hasher->Update(absl::StrCat(report.tokens, ";", report.documents, ";", report.samples, ";",
                                part.token_begin(), ";"));
    // A few ids from both ends tell datasets of equal size apart.
    std::vector<int32_t> ids(static_cast<size_t>(std::min<int64_t>(report.tokens, 4096)));
    for (const int64_t begin :
         {part.token_begin(), part.token_end() - static_cast<int64_t>(ids.size())}) {
      TRANCHE_RETURN_IF_ERROR(part.file().Read(begin, absl::MakeSpan(ids), options_.vocab_rows));
      hasher->Update({reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t)});
    }
    sources_.push_back(std::move(loaded));
    return absl::OkStatus();
  }

  // The samples [begin, end) of a slot.
  absl::StatusOr<std::pair<int64_t, int64_t>> Samples(int64_t step, int64_t slot) const {
    TRANCHE_CHECK(step >= 0 && slot >= 0 && slot < slots()) << "step " << step << ", slot " << slot;
    // Keys of dropout have 44 bits for the sample.
    if (step >= (int64_t{1} << 44) / options_.global_batch_size) {
      return absl::OutOfRangeError(absl::StrCat("step ", step, " is beyond the longest run"));
    }
    const int64_t begin = step * options_.global_batch_size + slot * options_.micro_batch_size;
    return std::make_pair(begin, std::min(end_, begin + options_.micro_batch_size));
  }

  std::vector<LoadedSource> sources_;
  std::unique_ptr<Sampler> sampler_;
  std::unique_ptr<SampleBuilder> builder_;
  std::vector<SourceReport> report_;
  std::string fingerprint_;
  int64_t end_ = INT64_MAX;
};

}  // namespace

BatchBounds ComputeBatchBounds(const LoaderOptions& options) {
  const PackingOptions packing = PackingOf(options);
  const int64_t rows = options.sequence_length;
  BatchBounds bounds;
  bounds.sequences = options.micro_batch_size;
  bounds.tokens = options.micro_batch_size * rows;
  // A segment of a masked sample holds a token and its wrapping at least.
  const bool many = options.document_mask && options.packing != Packing::kNone;
  bounds.segments = options.micro_batch_size * (many ? rows / (1 + packing.wrap_rows) : 1);
  bounds.predicted =
      options.micro_batch_size *
      (options.objective == Objective::kClm
           ? rows
           : MaskLimit(rows - packing.wrap_rows, options.mlm_probability, options.whole_word_mask));
  bounds.segment_length = rows;
  return bounds;
}

int64_t Loader::steps_per_epoch() const {
  return (samples_per_epoch() + options_.global_batch_size - 1) / options_.global_batch_size;
}

absl::StatusOr<std::unique_ptr<Loader>> Loader::Create(const LoaderOptions& options) {
  TRANCHE_RETURN_IF_ERROR(CheckOptions(options));
  auto loader = std::make_unique<LoaderImpl>(options);
  TRANCHE_RETURN_IF_ERROR(loader->Open());
  return loader;
}

}  // namespace tranche
