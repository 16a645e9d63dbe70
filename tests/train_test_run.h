// Small runs of the real program for tests: data, a recipe, the process, and what it left behind.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <regex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/hash.h"
#include "data_corpus.h"
#include "data_test_files.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tranche {

// The program, its output in one file.
class Program {
 public:
  Program(const std::vector<std::string>& words, std::string output) : output_(std::move(output)) {
    // What runs on ranks measure is kept for the next run of the same test, and from its user's.
    static const TempDir kept;
    const std::string measured = kept.File("measured");
    std::vector<std::string> storage = words;
    storage.insert(storage.begin(), TRANCHE_BINARY);
    std::vector<char*> argv;
    for (std::string& word : storage) argv.push_back(word.data());
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::setenv("TRANCHE_CACHE_DIR", measured.c_str(), /*overwrite=*/0);
    const int fd = ::open(output_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    ::dup2(fd, 1);
    ::dup2(fd, 2);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  ~Program() {
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
  bool Running() const {
    siginfo_t info = {};
    return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == 0;
  }
  std::string Output() const { return Slurp(output_); }

 private:
  const std::string output_;
  pid_t pid_ = 0;
};

struct Result {
  int code = 0;
  std::string output;
};

// A folder with data and a recipe for it: documents of unequal lengths, so that epochs, samples and
// numbers of predicted tokens do not fall together with steps.
class SmallRun {
 public:
  explicit SmallRun(int64_t steps = 12, int64_t hidden = 32) {
    Documents documents;
    uint32_t state = 7;
    for (int document = 0; document < 37; ++document) {
      documents.emplace_back();
      const int length = 5 + static_cast<int>((state >> 8) % 60);
      for (int i = 0; i < length; ++i) {
        state = state * 1664525u + 1013904223u;
        // Each token mostly follows from the last, so that there is something to learn.
        const int32_t last = documents.back().empty() ? 3 : documents.back().back();
        documents.back().push_back((state >> 28) < 12 ? (last * 5 + 1) % 97
                                                      : static_cast<int32_t>(state >> 16) % 97);
      }
    }
    WriteCorpus(dir_, "train", documents);
    recipe_ = absl::StrCat(R"([run]
name = "small"
output_dir = "run"
[model]
init = "random"
model_type = "phi"
vocab_size = 97
hidden_size = )",
                           hidden, R"(
intermediate_size = 64
num_hidden_layers = 2
num_attention_heads = 2
max_position_embeddings = 32
resid_pdrop = 0.1
[data]
sequence_length = 32
sources = [{path = "train"}]
packing = "none"
[training]
max_steps = )",
                           steps, R"(
global_batch_size = 8
micro_batch_size = 2
[optimizer]
lr = 3e-3
[lr_scheduler]
warmup_steps = 3
min_lr_ratio = 0.1
[checkpoint]
interval = 4
keep_latest_k = 3
export_hf = "never"
)");
    dir_.Write("recipe.toml", recipe_);
  }

  const TempDir& dir() const { return dir_; }
  std::string recipe_path() const { return dir_.File("recipe.toml"); }
  std::string File(const std::string& name) const { return dir_.File(name); }

  std::vector<std::string> Words(const std::string& output,
                                 const std::vector<std::string>& sets = {}) const {
    std::vector<std::string> words = {"train", recipe_path(), "--set",
                                      absl::StrCat("run.output_dir=", dir_.File(output))};
    for (const std::string& set : sets) {
      if (set.substr(0, 2) != "--") words.push_back("--set");
      words.push_back(set);
    }
    return words;
  }
  Program Start(const std::string& output, const std::vector<std::string>& sets = {}) const {
    return Program(Words(output, sets), dir_.File(output + ".log"));
  }
  Result Train(const std::string& output, const std::vector<std::string>& sets = {}) const {
    Program program = Start(output, sets);
    const int code = program.Wait();
    return {code, program.Output()};
  }
  Result Call(const std::vector<std::string>& words) const {
    Program program(words, dir_.File("call.log"));
    const int code = program.Wait();
    return {code, program.Output()};
  }

  // Every step's loss, gradient norm, rate, outcome and all tokens until then as they were printed;
  // of a step that was trained twice, the last.
  std::map<int64_t, std::string> Steps(const std::string& output) const {
    std::map<int64_t, std::string> steps;
    const std::string text = Slurp(dir_.File(output + "/metrics.jsonl"));
    for (const auto line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      const nlohmann::json json = nlohmann::json::parse(line.begin(), line.end(), nullptr, false);
      if (json.is_discarded() || json["event"] != "step") continue;
      steps[json["step"]] =
          absl::StrCat(json.value("loss", nlohmann::json()).dump(), " ",
                       json.value("grad_norm", nlohmann::json()).dump(), " ", json["lr"].dump(),
                       " ", json["outcome"].dump(), " ", json["total_tokens"].dump());
    }
    return steps;
  }
  // Waits until the run has reported `step`, or has ended.
  void AwaitStep(const Program& program, const std::string& output, int64_t step) const {
    while (program.Running()) {
      const auto steps = Steps(output);
      if (!steps.empty() && steps.rbegin()->first >= step) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
  // The hashes of the files with a checkpoint's weights and optimizer state; empty where none is.
  std::string State(const std::string& output, int64_t step) const {
    std::string hashes;
    for (const auto& [name, hash] : Files(absl::StrCat(output, "/checkpoints/step-", step))) {
      if (absl::EndsWith(name, ".safetensors")) absl::StrAppend(&hashes, name, " ", hash, "\n");
    }
    return hashes;
  }
  // The hash of every file under a folder, by its path there.
  std::map<std::string, std::string> Files(const std::string& folder) const {
    std::map<std::string, std::string> files;
    std::error_code absent;
    const std::filesystem::path root = dir_.File(folder);
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root, absent)) {
      if (!entry.is_regular_file()) continue;
      files[entry.path().lexically_relative(root)] = Hash128(Slurp(entry.path()));
    }
    return files;
  }
  bool HasCheckpoint(const std::string& output, int64_t step) const {
    return std::filesystem::exists(
        dir_.File(absl::StrCat(output, "/checkpoints/step-", step, "/manifest.toml")));
  }

 private:
  TempDir dir_;
  std::string recipe_;
};

// Waits until the process has taken every signal sent to it.
inline void AwaitTaken(const Program& program) {
  const std::string path = absl::StrCat("/proc/", program.pid(), "/status");
  while (program.Running()) {
    std::smatch pending;
    const std::string status = Slurp(path);
    if (std::regex_search(status, pending, std::regex("ShdPnd:\\s*([0-9a-f]+)")) &&
        pending[1].str().find_first_not_of('0') == std::string::npos)
      return;
  }
}

// Stops a run by SIGTERM. Its last step, which it has saved.
inline int64_t StopAndSave(const SmallRun& run, Program& program, const std::string& output) {
  program.Signal(SIGTERM);
  EXPECT_EQ(program.Wait(), 75) << program.Output();
  const auto steps = run.Steps(output);
  EXPECT_FALSE(steps.empty());
  const int64_t last = steps.empty() ? 0 : steps.rbegin()->first;
  EXPECT_TRUE(run.HasCheckpoint(output, last)) << program.Output();
  return last;
}

// Replaces one byte in the middle of a file by its complement.
inline void FlipByte(const std::string& path) {
  std::string bytes = Slurp(path);
  bytes[bytes.size() / 2] = static_cast<char>(~bytes[bytes.size() / 2]);
  std::ofstream(path, std::ios::binary) << bytes;
}

}  // namespace tranche
