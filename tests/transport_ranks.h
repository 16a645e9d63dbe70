// Runs a function as the ranks of a group: real processes, forked from the test, that meet in a
// temporary folder.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "folder_exchange.h"
#include "zero/transport.h"

namespace tranche {

// What a rank knows of its group beside the transport: marks are files in their folder.
class RankGroup {
 public:
  RankGroup(std::string folder, int rank, int size)
      : folder_(std::move(folder)), rank_(rank), size_(size) {}

  int rank() const { return rank_; }
  int size() const { return size_; }

  std::unique_ptr<Transport> Connect(const TransportOptions& options) const {
    auto transport =
        CreateUcxTransport(rank_, size_, FolderExchange(folder_, rank_, size_, 60), options);
    if (!transport.ok()) {
      fprintf(stderr, "rank %d: %s\n", rank_, transport.status().ToString().c_str());
      _exit(1);
    }
    return std::move(*transport);
  }

  void Mark(const std::string& name) const { (void)WriteFileAtomic(Path(name), "x"); }
  void AwaitMark(const std::string& name) const {
    while (!FileExists(Path(name))) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }

 private:
  std::string folder_;
  int rank_;
  int size_;
};

// By rank: what `rank_main` returned, or how its process ended otherwise. `meanwhile` runs in the
// test's own process with the ranks' process ids.
inline std::vector<std::string> RunRanks(
    int size, const std::function<std::string(const RankGroup&)>& rank_main,
    const std::function<void(const RankGroup&, const std::vector<pid_t>&)>& meanwhile = {}) {
  std::string folder = absl::StrCat(::testing::TempDir(), "/transport-XXXXXX");
  EXPECT_NE(mkdtemp(folder.data()), nullptr) << folder;
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(120);  // a rank that hangs ends by SIGALRM
      const RankGroup group(folder, rank, size);
      (void)WriteFileAtomic(group.Path(absl::StrCat("result.", rank)), rank_main(group));
      _exit(0);
    }
    ranks.push_back(child);
  }
  if (meanwhile) meanwhile(RankGroup(folder, -1, size), ranks);
  std::vector<std::string> results;
  for (int rank = 0; rank < size; ++rank) {
    int state = 0;
    waitpid(ranks[rank], &state, 0);
    const auto result = ReadFile(absl::StrCat(folder, "/result.", rank));
    if (WIFSIGNALED(state)) {
      results.push_back(absl::StrCat("signal ", WTERMSIG(state)));
    } else {
      results.push_back(result.ok() ? *result : absl::StrCat("exit ", WEXITSTATUS(state)));
    }
  }
  (void)FileSystem::Real().RemoveAll(folder);
  return results;
}

}  // namespace tranche
