// `tranche bench collectives`: bus bandwidth of the ranks' collectives, by the definitions of the
// usual MPI and NCCL benchmarks: result bytes · (p-1)/p / the slowest rank's time, best of many.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/status.h"
#include "base/units.h"
#include "trainer/cli.h"
#include "trainer/exit_codes.h"
#include "trainer/verbs/verbs.h"
#include "zero/folder_exchange.h"
#include "zero/transport.h"

namespace tranche {
namespace {

struct Options {
  int ranks = 2;
  int64_t repeats = 20;
  std::vector<int64_t> sizes;  // of the whole array, in bytes
  WaitMode wait = WaitMode::kSleep;
};

absl::StatusOr<Options> ReadOptions(const Arguments& arguments) {
  Options options;
  TRANCHE_ASSIGN_OR_RETURN(const int64_t ranks, arguments.GetInt("ranks", 2, 1, 1024));
  options.ranks = static_cast<int>(ranks);
  TRANCHE_ASSIGN_OR_RETURN(options.repeats, arguments.GetInt("repeats", 20, 1, 1000000));
  if (arguments.Has("spin")) options.wait = WaitMode::kSpin;
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

absl::Status RunRank(const Options& options, int rank, const std::string& folder) {
  const int p = options.ranks;
  constexpr double kTimeout = 60;
  TRANCHE_ASSIGN_OR_RETURN(const std::unique_ptr<Transport> transport,
                           CreateUcxTransport(rank, p, FolderExchange(folder, rank, p, kTimeout),
                                              {.timeout_seconds = kTimeout, .wait = options.wait}));
  const int64_t most = *std::max_element(options.sizes.begin(), options.sizes.end());
  // Memory as the MPI benchmark has it, or the comparison would be one of memory: zeros from the
  // system, the input never written.
  const std::unique_ptr<float, decltype(&std::free)> a(
      static_cast<float*>(std::calloc(most / 4, 4)), &std::free);
  const std::unique_ptr<float, decltype(&std::free)> b(
      static_cast<float*>(std::calloc(most / 4, 4)), &std::free);
  if (a == nullptr || b == nullptr) return absl::ResourceExhaustedError("no memory for --sizes");
  if (rank == 0) absl::PrintF("%12s %14s %14s\n", "bytes", "all_gather", "reduce_scatter");
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
    if (rank == 0) {
      absl::PrintF("%12d %9.3f GB/s %9.3f GB/s\n", 4 * n * p, bytes / gather, bytes / reduce);
      std::fflush(stdout);
    }
  }
  return transport->Barrier();
}

// Starts this program once per rank and waits. The first rank that fails ends the others.
absl::Status StartRanks(const Options& options, const std::string& folder,
                        const std::vector<std::string>& same) {
  std::vector<pid_t> running;
  for (int rank = 0; rank < options.ranks; ++rank) {
    std::vector<std::string> words = {"tranche", "bench", "collectives"};
    words.insert(words.end(), same.begin(), same.end());
    for (const std::string& word :
         {std::string("--meet"), folder, std::string("--rank"), absl::StrCat(rank)}) {
      words.push_back(word);
    }
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() == parent) execv("/proc/self/exe", argv.data());
      _exit(127);
    }
    if (child < 0) {
      for (const pid_t other : running) kill(other, SIGKILL);
      return ErrnoStatus("/proc/self/exe", "starting a rank");
    }
    running.push_back(child);
  }
  absl::Status failed;
  for (int left = options.ranks; left > 0; --left) {
    int state = 0;
    const pid_t ended = wait(&state);
    const auto rank = std::find(running.begin(), running.end(), ended) - running.begin();
    if (WIFEXITED(state) && WEXITSTATUS(state) == 0) continue;
    if (failed.ok()) failed = absl::UnavailableError(absl::StrCat("rank ", rank, " failed"));
    for (const pid_t other : running) {
      if (other != ended) kill(other, SIGKILL);
    }
  }
  return failed;
}

absl::Status Collectives(const Arguments& arguments) {
  TRANCHE_ASSIGN_OR_RETURN(const Options options, ReadOptions(arguments));
  if (arguments.Has("rank") != arguments.Has("meet")) {
    return absl::InvalidArgumentError("--rank and --meet go together");
  }
  if (arguments.Has("rank")) {
    TRANCHE_ASSIGN_OR_RETURN(const int64_t rank, arguments.GetInt("rank", 0, 0, options.ranks - 1));
    return RunRank(options, static_cast<int>(rank), arguments.Get("meet"));
  }
  const char* tmp = std::getenv("TMPDIR");
  std::string folder = absl::StrCat(tmp == nullptr ? "/tmp" : tmp, "/tranche-bench-XXXXXX");
  if (mkdtemp(folder.data()) == nullptr) return ErrnoStatus(folder, "creating a folder");
  std::vector<std::string> same;
  for (const char* flag : {"ranks", "repeats", "sizes"}) {
    if (!arguments.Has(flag)) continue;
    same.push_back(absl::StrCat("--", flag));
    same.push_back(arguments.Get(flag));
  }
  if (arguments.Has("spin")) same.push_back("--spin");
  const absl::Status status = StartRanks(options, folder, same);
  const absl::Status removed = FileSystem::Real().RemoveAll(folder);
  return status.ok() ? removed : status;
}

int Run(const Arguments& arguments) {
  const absl::Status status = Collectives(arguments);
  return status.ok() ? kExitDone : ReportError(status);
}

}  // namespace

Verb BenchCollectivesVerb() {
  return {.name = "bench collectives",
          .summary = "Measure the bandwidth of the ranks' all-gather and reduce-scatter.",
          .usage = "[flags]",
          .example = "tranche bench collectives --ranks 4 --sizes 1MiB,64MiB",
          .flags = {{"ranks", "N", "Processes to start on this machine (default 2)."},
                    {"sizes", "BYTES,...", "Sizes of the whole array (default 16KiB to 64MiB)."},
                    {"repeats", "N", "The best of this many is shown (default 20)."},
                    {"spin", "", "Waiting ranks poll instead of sleeping."},
                    {"rank", "R", "Be rank R of N that are started by hand, with --meet."},
                    {"meet", "DIR", "The empty folder where they exchange their addresses."}},
          .min_positionals = 0,
          .max_positionals = 0,
          .run = Run};
}

}  // namespace tranche
