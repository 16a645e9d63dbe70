// Speed of the data floor: micro-batches a second must be far more than any model takes.
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "base/rng.h"
#include "data/indexed_writer.h"
#include "data/loader.h"
#include "data/text_reader.h"

namespace tranche {
namespace {

// 16 M ids below 30000 in documents of 10 to 1000 tokens, written once.
const std::string& Corpus() {
  static const std::string prefix = [] {
    const std::string path =
        (std::filesystem::temp_directory_path() / ("tranche_bench_" + std::to_string(::getpid())))
            .string();
    auto writer = IndexedWriter::Create(FileSystem::Real(), path, TokenType::kU16);
    RandomSequence random(1);
    for (int64_t tokens = 0; writer.ok() && tokens < (16 << 20);) {
      std::vector<int32_t> ids(10 + random.Below(990));
      for (int32_t& id : ids) id = static_cast<int32_t>(random.Below(30000));
      std::string bytes;
      AppendIds(ids, TokenType::kU16, &bytes);
      const int64_t length = static_cast<int64_t>(ids.size());
      if (!(*writer)->AddDocuments(bytes, {length}).ok()) break;
      tokens += length;
    }
    if (!writer.ok() || !(*writer)->Commit(nullptr).ok()) return std::string();
    return path;
  }();
  return prefix;
}

void RemoveCorpus() {
  for (const char* suffix : {".bin", ".idx"}) std::filesystem::remove(Corpus() + suffix);
}

// WordPiece-like ids: the first 1000 special or unused, a third continue words.
class BenchTokenizer : public Tokenizer {
 public:
  BenchTokenizer() { specials_.cls = 1, specials_.sep = 2, specials_.mask = 3; }
  void Encode(absl::string_view, bool, std::vector<int32_t>*) const override {}
  std::string Decode(const std::vector<int32_t>&, bool) const override { return ""; }
  int32_t vocab_size() const override { return 30000; }
  int32_t TokenToId(absl::string_view) const override { return -1; }
  std::string IdToToken(int32_t) const override { return "x"; }
  bool IsSpecial(int32_t id) const override { return id < 1000; }
  bool ContinuesWord(int32_t id) const override { return id % 3 == 0; }
  const Specials& specials() const override { return specials_; }
  const std::string& fingerprint() const override { return name_; }
  const std::vector<std::string>& warnings() const override { return none_; }
  const std::vector<std::string>& files() const override { return none_; }

 private:
  Specials specials_;
  const std::string name_ = "bench";
  const std::vector<std::string> none_;
};

LoaderOptions Options(int64_t objective, int64_t packing, bool mask) {
  static const BenchTokenizer tokenizer;
  LoaderOptions options;
  options.sources = {{Corpus()}};
  options.sequence_length = 512;
  options.objective = objective == 0 ? Objective::kClm : Objective::kMlm;
  options.packing = static_cast<Packing>(packing);
  options.document_mask = mask;
  options.global_batch_size = options.micro_batch_size = 16;
  options.vocab_rows = 30000;
  options.tokenizer = &tokenizer;
  return options;
}

// Arguments: objective (0 clm, 1 mlm), packing (0 concat, 1 best_fit, 2 none), document mask.
void BM_MicroBatch(benchmark::State& state) {
  const auto loader = Loader::Create(Options(state.range(0), state.range(1), state.range(2) != 0));
  if (!loader.ok()) return state.SkipWithError(loader.status().ToString().c_str());
  int64_t step = 0, tokens = 0;
  for (auto _ : state) {
    const auto batch = (*loader)->Get(step++, 0);
    tokens += batch->num_tokens();
  }
  state.SetItemsProcessed(tokens);
}
BENCHMARK(BM_MicroBatch)->ArgsProduct({{0, 1}, {0, 1, 2}, {0, 1}});

// What the normalisation of one global batch costs.
void BM_PredictedTokens(benchmark::State& state) {
  const auto loader = Loader::Create(Options(state.range(0), 0, true));
  if (!loader.ok()) return state.SkipWithError(loader.status().ToString().c_str());
  int64_t step = 0;
  for (auto _ : state) benchmark::DoNotOptimize((*loader)->PredictedTokens(step++));
  state.SetItemsProcessed(state.iterations() * 16 * 512);
}
BENCHMARK(BM_PredictedTokens)->Arg(0)->Arg(1);

// Opening: checks, and the index of samples.
void BM_Create(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(Loader::Create(Options(0, state.range(0), true)));
  state.SetItemsProcessed(state.iterations() * (16 << 20));
}
BENCHMARK(BM_Create)->Arg(0)->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond);

// Cutting and validating text, the serial part of `tranche tokenize` and the rest.
void BM_ReadText(benchmark::State& state) {
  const std::string path = Corpus() + ".txt";
  std::string text;
  for (int i = 0; text.size() < (32 << 20); ++i) {
    text += "A line of ordinary text, some seventy bytes long, with caf\xc3\xa9 in it.\n";
    if (i % 9 == 0) text += "\n";
  }
  if (!WriteFileAtomic(path, text).ok()) return state.SkipWithError("cannot write");
  const bool validate = state.range(0) != 0;
  for (auto _ : state) {
    auto reader = TextReader::Open({path}, {});
    for (;;) {
      RawBlock raw;
      if (!*(*reader)->NextBlock(&raw)) break;
      if (validate) benchmark::DoNotOptimize(DecodeBlock(std::move(raw), {}));
    }
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size()));
  std::filesystem::remove(path);
}
BENCHMARK(BM_ReadText)->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tranche

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  tranche::RemoveCorpus();
  return 0;
}
