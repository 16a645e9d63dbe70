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

inline std::vector<pid_t> ChildrenOf(pid_t parent) {
  std::vector<pid_t> pids;
  const std::string children =
      ReadAll(absl::StrCat("/proc/", parent, "/task/", parent, "/children"));
  for (const auto word : absl::StrSplit(children, ' ', absl::SkipEmpty())) {
    pid_t pid = 0;
    if (absl::SimpleAtoi(word, &pid)) pids.push_back(pid);
  }
  return pids;
}

inline std::string TestProgram() {
  const std::string tranche = TRANCHE_BINARY;
  return tranche.substr(0, tranche.rfind('/')) + "/launch_test_program";
}

// A program started with `variables` ("NAME=VALUE") beside this process's environment, its output
// in a file.
class Process {
 public:
  Process(std::vector<std::string> words, const std::string& output,
          std::vector<std::string> variables = {}) {
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ != 0) return;
    for (std::string& variable : variables) ::putenv(variable.data());
    const int fd = ::open(output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666);
    ::dup2(fd, 1);
    ::dup2(fd, 2);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  Process(Process&& other) noexcept : pid_(std::exchange(other.pid_, 0)) {}
  Process& operator=(Process&&) = delete;
  ~Process() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    Wait();
  }
  pid_t pid() const { return pid_; }
  void Signal(int signal) const { ::kill(pid_, signal); }
  // The exit code; 1000 + signal where one ended it.
  int Wait() {
    int status = 0;
    ::waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }

 private:
  pid_t pid_ = 0;
};

class TempFolder {
 public:
  TempFolder() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "tranche_ranks_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// `launch_test_program launch RANKS LOGS MODE FLAG...`, with a folder for its logs and output.
class Launched {
 public:
  Launched(int ranks, const std::string& mode, std::vector<std::string> flags = {})
      : process_(Words(ranks, mode, std::move(flags)), folder_.File("output")) {}

  std::string File(const std::string& name) const { return folder_.File(name); }
  std::string Output() const { return ReadAll(File("output")); }
  std::string Log(int rank) const {
    return ReadAll(File(absl::StrCat("logs/rank-", rank, ".log")));
  }
  void Signal(int signal) const { process_.Signal(signal); }
  int Wait() { return process_.Wait(); }

  // The ranks' processes, in order, once all have been started.
  std::vector<pid_t> Ranks(int ranks) const {
    std::vector<pid_t> pids;
    EXPECT_TRUE(Eventually([&] {
      pids = ChildrenOf(process_.pid());
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
  std::vector<std::string> Words(int ranks, const std::string& mode,
                                 std::vector<std::string> flags) const {
    flags.insert(flags.begin(), {TestProgram(), "launch", absl::StrCat(ranks), File("logs"), mode});
    return flags;
  }

  TempFolder folder_;
  Process process_;
};

inline void ExpectNoneLives(const std::vector<pid_t>& pids) {
  for (const pid_t pid : pids) {
    EXPECT_TRUE(Eventually([&] { return !Lives(pid); })) << pid;
  }
}

}  // namespace tranche
