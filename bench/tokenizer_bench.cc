// Tokenizing speed: a cold pass over real text, one core and all of them, and time per byte on
// pieces of growing length. Processor time stands beside elapsed time: on a busy machine it is the
// figure to compare.
//
//   taskset -c 0 build/release/tokenizer_bench TOKENIZER FILE...     (.gz allowed; documents are
//   parted by blank lines)
//
// The first figure compares with shared/bench/tokenizers_speed.py run on the same files.
#include <zlib.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/text.h"
#include "data/tokenizer.h"

namespace tranche {
namespace {

bool AppendFile(const char* path, std::string* text) {
  const gzFile file = gzopen(path, "rb");
  if (file == nullptr) return false;
  char buffer[1 << 16];
  int got;
  while ((got = gzread(file, buffer, sizeof(buffer))) > 0) text->append(buffer, got);
  gzclose(file);
  return got == 0;
}

double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

// Of all threads of the process.
double ProcessorSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// A fresh tokenizer, so that its caches are cold.
std::unique_ptr<Tokenizer> Load(const char* path) {
  auto tokenizer = Tokenizer::Load(path);
  if (!tokenizer.ok()) {
    absl::FPrintF(stderr, "%s\n", tokenizer.status().message());
    std::exit(2);
  }
  return *std::move(tokenizer);
}

void MeasurePass(const char* path, const std::vector<absl::string_view>& documents,
                 double megabytes, int threads) {
  const auto tokenizer = Load(path);
  std::atomic<size_t> next = 0, tokens = 0;
  const auto work = [&] {
    std::vector<int32_t> ids;
    size_t mine = 0;
    constexpr size_t kBatch = 64;
    for (size_t from; (from = next.fetch_add(kBatch)) < documents.size();) {
      for (size_t i = from; i < std::min(from + kBatch, documents.size()); ++i) {
        ids.clear();
        tokenizer->Encode(documents[i], false, &ids);
        mine += ids.size();
      }
    }
    tokens += mine;
  };
  const auto start = std::chrono::steady_clock::now();
  const double processor_start = ProcessorSeconds();
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
  absl::PrintF(
      "tranche %2d thread(s) %8.2f MB/s   %.1f ns of a processor a byte   %d tokens, %.1f MB\n",
      threads, megabytes / Seconds(start), (ProcessorSeconds() - processor_start) * 1e3 / megabytes,
      tokens.load(), megabytes);
}

void MeasureLongPieces(const char* path) {
  const auto tokenizer = Load(path);
  uint32_t state = 1;
  std::string random, prose;
  while (random.size() < 2000000) {
    state = state * 1664525 + 1013904223;
    random += static_cast<char>('a' + (state >> 24) % 26);
    prose += (state >> 8) % 6 == 0 ? ' ' : random.back();
  }
  for (const auto& [name, text] :
       {std::pair("a", std::string(2000000, 'a')), std::pair("_", std::string(2000000, '_')),
        std::pair("random letters", random), std::pair("random words", prose)}) {
    double nanoseconds[2];
    int column = 0;
    for (const size_t size : {size_t{20000}, text.size()}) {
      const int rounds = size < 100000 ? 20 : 1;
      const double start = ProcessorSeconds();
      for (int i = 0; i < rounds; ++i) {
        std::vector<int32_t> ids;
        // Other text each time, so that the cache of words helps short lines no more than long
        // ones.
        tokenizer->Encode(absl::string_view(text).substr(i * size, size), false, &ids);
      }
      nanoseconds[column++] =
          (ProcessorSeconds() - start) * 1e9 / static_cast<double>(size) / rounds;
    }
    absl::PrintF("one piece of %-15s %7.1f ns/byte at 20 kB, %7.1f at 2 MB\n", name, nanoseconds[0],
                 nanoseconds[1]);
  }
}

}  // namespace
}  // namespace tranche

int main(int argc, char** argv) {
  if (argc < 3) {
    absl::FPrintF(stderr, "usage: tokenizer_bench TOKENIZER FILE...\n");
    return 2;
  }
  std::string raw;
  for (int i = 2; i < argc; ++i) {
    if (!tranche::AppendFile(argv[i], &raw)) {
      absl::FPrintF(stderr, "%s: cannot be read\n", argv[i]);
      return 2;
    }
  }
  int64_t replaced = 0;
  const std::string text = tranche::ReplaceInvalidUtf8(raw, &replaced);
  const std::vector<absl::string_view> documents = absl::StrSplit(text, "\n\n");
  const double megabytes = static_cast<double>(text.size()) / 1e6;
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  for (int threads = 1; threads <= cores; threads *= 2)
    tranche::MeasurePass(argv[1], documents, megabytes, threads);
  tranche::MeasureLongPieces(argv[1]);
  return 0;
}
