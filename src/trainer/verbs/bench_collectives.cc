// `tranche bench collectives`: bus bandwidth of the ranks' collectives, by the definitions of the
// usual MPI and NCCL benchmarks: result bytes · (p-1)/p / the slowest rank's time, best of many.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "base/units.h"
#include "trainer/cli.h"
#include "trainer/verbs/on_ranks.h"
#include "trainer/verbs/verbs.h"
#include "trainer/world.h"
#include "zero/transport.h"

namespace tranche {
namespace {

struct Options {
  int64_t repeats = 20;
  std::vector<int64_t> sizes;  // of the whole array, in bytes
};

absl::StatusOr<Options> ReadOptions(const Arguments& arguments, int ranks) {
  Options options;
  TRANCHE_ASSIGN_OR_RETURN(options.repeats, arguments.GetInt("repeats", 20, 1, 1000000));
  for (const absl::string_view size :
       absl::StrSplit(arguments.Get("sizes", "16KiB,64KiB,256KiB,1MiB,4MiB,16MiB,64MiB"), ',')) {
    TRANCHE_ASSIGN_OR_RETURN(const int64_t bytes, ParseBytes(size));
    if (bytes < ranks * int64_t{4}) {
      return absl::InvalidArgumentError(
          absl::StrCat("--sizes: ", size, " is less than a number for each rank"));
    }
    options.sizes.push_back(bytes);
  }
  return options;
}

// Seconds of the slowest rank at its fastest.
template <class Collective>
absl::StatusOr<double> BestOf(int64_t repeats, Transport& transport, const Collective& collective) {
  double best = 1e30;
  std::vector<double> all(transport.size());
  for (int64_t i = 0; i < repeats; ++i) {
    TRANCHE_RETURN_IF_ERROR(transport.Barrier());
    const auto start = std::chrono::steady_clock::now();
    TRANCHE_RETURN_IF_ERROR(collective());
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    const double mine = took.count();
    TRANCHE_RETURN_IF_ERROR(transport.AllGather(all.data(), &mine, sizeof mine));
    best = std::min(best, *std::max_element(all.begin(), all.end()));
  }
  return best;
}

absl::Status MeasureAll(const Arguments& arguments, World& world) {
  const int p = world.size();
  TRANCHE_RETURN_IF_ERROR(NeedsOthers(world));
  TRANCHE_ASSIGN_OR_RETURN(const Options options, ReadOptions(arguments, p));
  TRANCHE_ASSIGN_OR_RETURN(Transport* const transport, world.ConnectTransport());
  const int64_t most = *std::max_element(options.sizes.begin(), options.sizes.end());
  // Memory as the MPI benchmark has it, or the comparison would be one of memory: zeros from the
  // system, the input never written.
  const std::unique_ptr<float, decltype(&std::free)> a(
      static_cast<float*>(std::calloc(most / 4, 4)), &std::free);
  const std::unique_ptr<float, decltype(&std::free)> b(
      static_cast<float*>(std::calloc(most / 4, 4)), &std::free);
  if (a == nullptr || b == nullptr) return absl::ResourceExhaustedError("no memory for --sizes");
  if (world.first()) absl::PrintF("%12s %14s %14s\n", "bytes", "all_gather", "reduce_scatter");
  for (const int64_t size : options.sizes) {
    const int64_t n = size / 4 / p;
    TRANCHE_ASSIGN_OR_RETURN(const double gather, BestOf(options.repeats, *transport, [&] {
                               return transport->AllGather(a.get(), b.get(), n * 4);
                             }));
    TRANCHE_ASSIGN_OR_RETURN(const double reduce, BestOf(options.repeats, *transport, [&] {
                               return transport->ReduceScatter(a.get(), b.get(), DType::kFloat32, n,
                                                               false);
                             }));
    const double bytes = static_cast<double>(4 * n * (p - 1)) / 1e9;
    if (world.first()) {
      absl::PrintF("%12d %9.3f GB/s %9.3f GB/s\n", 4 * n * p, bytes / gather, bytes / reduce);
      std::fflush(stdout);
    }
  }
  return absl::OkStatus();
}

int Run(const Arguments& arguments) {
  return RunOnRanks(BenchCollectivesVerb(), arguments,
                    [&](World& world) { return MeasureAll(arguments, world); });
}

}  // namespace

Verb BenchCollectivesVerb() {
  return WithRankFlags(
      {.name = "bench collectives",
       .summary = "Measure the bandwidth of the ranks' all-gather and reduce-scatter.",
       .usage = "-n RANKS [flags]",
       .example = "tranche bench collectives -n 4 --oversubscribe --sizes 1MiB,64MiB",
       .flags = {{"sizes", "BYTES,...", "Sizes of the whole array (default 16KiB to 64MiB)."},
                 {"repeats", "N", "The best of this many is shown (default 20)."}},
       .min_positionals = 0,
       .max_positionals = 0,
       .run = Run});
}

}  // namespace tranche
