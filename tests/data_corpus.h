// Small datasets made of lists of ids, and loaders over them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/indexed_writer.h"
#include "data/loader.h"
#include "data_byte_tokenizer.h"
#include "data_test_files.h"

namespace tranche {

using Documents = std::vector<std::vector<int32_t>>;

inline std::string WriteCorpus(const TempDir& dir, const std::string& name,
                               const Documents& documents, const DatasetMeta* meta = nullptr,
                               int64_t vocab_size = 65500) {
  const TokenType type = TypeForVocabulary(vocab_size);
  auto writer = IndexedWriter::Create(FileSystem::Real(), dir.File(name), type);
  EXPECT_TRUE(writer.ok()) << writer.status();
  for (const auto& document : documents) {
    std::string bytes;
    AppendIds(document, type, &bytes);
    const int64_t length = static_cast<int64_t>(document.size());
    EXPECT_TRUE((*writer)->AddDocuments(bytes, {length}).ok());
  }
  EXPECT_TRUE((*writer)->Commit(meta).ok());
  return dir.File(name);
}

// Documents of the given lengths whose ids count up from `first`, so that every id tells its place.
inline Documents CountingDocuments(const std::vector<int64_t>& lengths, int32_t first = 100) {
  Documents documents;
  for (const int64_t length : lengths) {
    documents.emplace_back();
    for (int64_t i = 0; i < length; ++i) documents.back().push_back(first++);
  }
  return documents;
}

inline LoaderOptions SmallOptions(const std::string& path, int64_t sequence_length) {
  LoaderOptions options;
  options.sources = {{path}};
  options.sequence_length = sequence_length;
  options.global_batch_size = 4;
  options.micro_batch_size = 2;
  options.vocab_rows = 200000;
  options.seed = 11;
  return options;
}

inline std::unique_ptr<Loader> MakeLoader(const LoaderOptions& options) {
  auto loader = Loader::Create(options);
  EXPECT_TRUE(loader.ok()) << loader.status();
  return loader.ok() ? *std::move(loader) : nullptr;
}

inline std::string CreateError(const LoaderOptions& options) {
  return std::string(Loader::Create(options).status().message());
}

inline MicroBatch GetBatch(const Loader& loader, int64_t step, int64_t slot) {
  auto batch = loader.Get(step, slot);
  EXPECT_TRUE(batch.ok()) << batch.status();
  return batch.ok() ? *std::move(batch) : MicroBatch();
}

// One sample as the model sees it.
struct Sample {
  std::vector<int32_t> ids, positions, types, segments, rows, labels;
  int32_t next_sentence = -1;
  std::vector<uint64_t> keys;
  bool operator==(const Sample&) const = default;
};

inline std::vector<Sample> SplitSamples(const MicroBatch& batch) {
  std::vector<Sample> samples;
  for (int64_t q = 0; q < batch.num_sequences(); ++q) {
    const int32_t begin = batch.cu_sequences[static_cast<size_t>(q)],
                  end = batch.cu_sequences[static_cast<size_t>(q) + 1];
    Sample sample;
    const auto cut = [&](const auto& array, auto* out) {
      out->assign(array.begin() + begin, array.begin() + end);
    };
    cut(batch.input_ids, &sample.ids), cut(batch.positions, &sample.positions);
    cut(batch.token_types, &sample.types), cut(batch.token_keys, &sample.keys);
    for (const int32_t border : batch.cu_seqlens) {
      if (border >= begin && border <= end) sample.segments.push_back(border - begin);
    }
    for (size_t p = 0; p < batch.predict_rows.size(); ++p) {
      if (batch.predict_rows[p] < begin || batch.predict_rows[p] >= end) continue;
      sample.rows.push_back(batch.predict_rows[p] - begin),
          sample.labels.push_back(batch.labels[p]);
    }
    if (!batch.next_sentence.empty())
      sample.next_sentence = batch.next_sentence[static_cast<size_t>(q)];
    samples.push_back(sample);
  }
  return samples;
}

// Samples [0, count) of a run, in order.
inline std::vector<Sample> FirstSamples(const Loader& loader, int64_t count) {
  std::vector<Sample> samples;
  for (int64_t step = 0; static_cast<int64_t>(samples.size()) < count; ++step) {
    for (int64_t slot = 0; slot < loader.slots(); ++slot) {
      for (Sample& sample : SplitSamples(GetBatch(loader, step, slot)))
        samples.push_back(std::move(sample));
    }
  }
  samples.resize(static_cast<size_t>(count));
  return samples;
}

}  // namespace tranche
