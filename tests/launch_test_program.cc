// A rank, and a launcher of such ranks, for launch_local_test and tests/soak/launch.
//   launch_test_program launch RANKS LOG_DIRECTORY MODE [FLAG...]
//   launch_test_program MODE          where the environment says which rank
// Modes:
//   work         announces phases, exchanges a few times, says goodbye
//   forever      the same without an end
//   stubborn     forever, and of signals it only says that it ignores them
//   stop         works until a signal comes to any rank; then all leave with 75
//   exit:R:CODE  works, but rank R leaves early with that code
//   report:R     works, but rank R says that its disk is full
//   child:R      exit:R:3 of a rank that has started a process
//   early:R:CODE waits, and rank R leaves before it has joined
//   cores        prints what it may run on
//   noise        prints on both streams
// Flags: oversubscribe, nobind, quiet (a silence of two seconds is a failure, and after one more
// SIGTERM gives way to SIGKILL).
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "launch/join.h"
#include "launch/local.h"

namespace tranche {
namespace {

std::atomic<int> stop_signal{0};

int Launch(const std::vector<std::string>& words) {
  const auto has = [&](const char* flag) {
    return std::find(words.begin(), words.end(), flag) != words.end();
  };
  LocalLaunch launch;
  launch.ranks = std::atoi(words[1].c_str());
  launch.log_directory = words[2] == "-" ? "" : words[2];
  launch.arguments = {words[3]};
  launch.bind = !has("nobind");
  launch.oversubscribe = has("oversubscribe");
  if (has("quiet")) {
    launch.silence_seconds = 2;
    launch.grace_seconds = 1;
  }
  const absl::StatusOr<int> code = LaunchLocal(launch);
  if (code.ok()) return *code;
  absl::FPrintF(stderr, "%s\n", code.status().message());
  return 2;
}

void PrintCores() {
  cpu_set_t set;
  ::sched_getaffinity(0, sizeof(set), &set);
  std::string cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) absl::StrAppend(&cores, core, " ");
  }
  const char* threads = std::getenv("OMP_NUM_THREADS");
  absl::PrintF("cores %sthreads %s\n", cores, threads == nullptr ? "-" : threads);
}

int Work(const RankEnvironment& rank, const std::string& mode) {
  absl::StatusOr<Membership> ranks = JoinRanks(rank, {.on_failure = [](const absl::Status& why) {
                                                 absl::FPrintF(stderr, "told: %s\n", why.message());
                                                 ::_exit(77);
                                               }});
  if (!ranks.ok()) {
    absl::FPrintF(stderr, "%s\n", ranks.status().message());
    return ranks.status().code() == absl::StatusCode::kAborted ? 77 : 1;
  }
  StoreClient& store = *ranks->client;
  const std::vector<std::string> part = absl::StrSplit(mode, ':');
  const int exchanges = mode == "forever" || mode == "stop" || mode == "stubborn" ? 1 << 30 : 20;
  bool stop = false;
  for (int i = 0; i < exchanges && !stop; ++i) {
    store.SetPhase(i == 0 ? "load" : i % 10 == 9 ? "save" : absl::StrCat("step ", i));
    if (part[0] == "exit" && i == 7 && part[1] == absl::StrCat(rank.rank)) {
      std::_Exit(std::atoi(part[2].c_str()));
    }
    if (part[0] == "child" && i == 7 && part[1] == absl::StrCat(rank.rank)) {
      const pid_t child = ::fork();
      if (child == 0) ::execlp("sleep", "sleep", "1000", nullptr);
      absl::PrintF("child %d\n", child);
      std::fflush(stdout);
      std::_Exit(3);
    }
    if (part[0] == "report" && i == 7 && part[1] == absl::StrCat(rank.rank)) {
      store.ReportFailure("the disk is full");
      std::_Exit(1);
    }
    const std::string mine = absl::StrCat(rank.rank, " ", i, " ", stop_signal.load());
    const auto all = store.Exchange("work", mine);
    if (!all.ok()) {
      absl::FPrintF(stderr, "told: %s\n", all.status().message());
      return 77;
    }
    for (size_t r = 0; r < all->size(); ++r) {
      if (!absl::StartsWith((*all)[r], absl::StrCat(r, " ", i, " "))) {
        absl::FPrintF(stderr, "wrong: %s\n", (*all)[r]);
        return 1;
      }
      stop |= mode == "stop" && !absl::EndsWith((*all)[r], " 0");
    }
    if (i == 0 && rank.rank == 0 && exchanges > 1000) {
      absl::PrintF("all ranks work\n");
      std::fflush(stdout);
    }
    if (exchanges > 1000) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  store.SetPhase("end");
  const absl::Status left = store.Goodbye(60);
  if (!left.ok()) {
    absl::FPrintF(stderr, "told: %s\n", left.message());
    return 77;
  }
  absl::PrintF("rank %d is done\n", rank.rank);
  return stop ? 75 : 0;
}

int Main(const std::vector<std::string>& words) {
  if (words[0] == "launch") return Launch(words);
  const std::string& mode = words[0];
  const absl::StatusOr<RankEnvironment> rank = ReadRankEnvironment();
  if (!rank.ok()) {
    absl::FPrintF(stderr, "%s\n", rank.status().message());
    return 2;
  }
  if (mode == "cores") {
    PrintCores();
    return 0;
  }
  if (mode == "noise") {
    absl::PrintF("out of rank %d\n", rank->rank);
    absl::FPrintF(stderr, "err of rank %d\n", rank->rank);
    return 0;
  }
  if (absl::StartsWith(mode, "early:")) {
    const std::vector<std::string> part = absl::StrSplit(mode, ':');
    if (part[1] != absl::StrCat(rank->rank)) ::pause();
    absl::FPrintF(stderr, "rank %d: no such file\n", rank->rank);
    return std::atoi(part[2].c_str());
  }
  if (mode == "stubborn") {
    for (const int signal : {SIGTERM, SIGINT}) {
      std::signal(signal, [](int came) {
        const char text[] = {'s',
                             'i',
                             'g',
                             'n',
                             'a',
                             'l',
                             ' ',
                             static_cast<char>('0' + came / 10),
                             static_cast<char>('0' + came % 10)};
        (void)!::write(2, text, sizeof(text));
        (void)!::write(2, " ignored\n", 9);
      });
    }
  }
  if (mode == "stop") {
    std::signal(SIGTERM, [](int signal) { stop_signal = signal; });
    std::signal(SIGINT, [](int signal) { stop_signal = signal; });
  }
  return Work(*rank, mode);
}

}  // namespace
}  // namespace tranche

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  return tranche::Main({argv + 1, argv + argc});
}
