// Launchers and ranks as real processes: launch_test_program started, watched and looked for.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"

namespace tranche {

inline std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// Polls until `done` holds; a test that waits longer than a minute has failed.
template <typename Done>
bool Eventually(const Done& done) {
  for (int i = 0; i < 6000; ++i) {
    if (done()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

// A dead process that nobody has reaped yet is dead.
inline bool Lives(pid_t pid) {
  const std::string status = ReadAll(absl::StrCat("/proc/", pid, "/status"));
  return !status.empty() && !absl::StrContains(status, "State:\tZ") &&
         !absl::StrContains(status, "State:\tX");
}

// `launch_test_program launch RANKS LOGS MODE FLAG...`, with a folder for its logs and output.
class Launched {
 public:
  Launched(int ranks, const std::string& mode, const std::vector<std::string>& flags = {}) {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "tranche_ranks_XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    std::vector<std::string> words = {Program(), "launch", absl::StrCat(ranks), folder_ + "/logs",
                                      mode};
    words.insert(words.end(), flags.begin(), flags.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ != 0) return;
    const int fd = ::open(File("output").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666);
    ::dup2(fd, 1);
    ::dup2(fd, 2);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  ~Launched() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      Wait();
    }
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  Launched(const Launched&) = delete;
  Launched& operator=(const Launched&) = delete;

  static std::string Program() {
    const std::string tranche = TRANCHE_BINARY;
    return tranche.substr(0, tranche.rfind('/')) + "/launch_test_program";
  }

  std::string File(const std::string& name) const { return folder_ + "/" + name; }
  std::string Output() const { return ReadAll(File("output")); }
  std::string Log(int rank) const {
    return ReadAll(File(absl::StrCat("logs/rank-", rank, ".log")));
  }
  void Signal(int signal) const { ::kill(pid_, signal); }
  int Wait() {
    int status = 0;
    ::waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }

  // The ranks' processes, in order, once all have been started.
  std::vector<pid_t> Ranks(int ranks) const {
    std::vector<pid_t> pids;
    EXPECT_TRUE(Eventually([&] {
      pids.clear();
      const std::string children =
          ReadAll(absl::StrCat("/proc/", pid_, "/task/", pid_, "/children"));
      for (const auto word : absl::StrSplit(children, ' ', absl::SkipEmpty())) {
        pid_t pid = 0;
        if (absl::SimpleAtoi(word, &pid)) pids.push_back(pid);
      }
      return static_cast<int>(pids.size()) == ranks;
    })) << Output();
    return pids;
  }
  // Waits until rank 0 has said that all ranks work.
  void AwaitWork() const {
    EXPECT_TRUE(Eventually([&] { return absl::StrContains(Output(), "all ranks work"); }))
        << Output();
  }

 private:
  std::string folder_;
  pid_t pid_ = 0;
};

inline void ExpectNoneLives(const std::vector<pid_t>& pids) {
  for (const pid_t pid : pids) {
    EXPECT_TRUE(Eventually([&] { return !Lives(pid); })) << pid;
  }
}

}  // namespace tranche
