// What the ranks print: one log file for each, and a copy of rank 0's to this process's streams.
#pragma once

#include <string>
#include <thread>

#include "absl/strings/string_view.h"
#include "launch/socket.h"

namespace tranche {

// Copies what comes through two pipes to stdout and stderr and, both, to a log. A reader of ours
// that has left, or a log that cannot be written, is no reason to stop.
class OutputTee {
 public:
  // `log` is not owned.
  OutputTee(FileDescriptor out, FileDescriptor err, int log);
  // Copies what is left in the pipes, for at most a second.
  ~OutputTee();

 private:
  void Run();
  bool Copy(int from, int to);

  const FileDescriptor out_, err_;
  const int log_;
  Waker stop_;
  std::thread thread_;
};

// The last lines of a file, at most `lines` and 8 KiB; "" where it cannot be read.
std::string LastLines(const std::string& path, int lines);

}  // namespace tranche
