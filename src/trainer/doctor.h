// What this machine is, and what on it would slow training down.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace tranche {

// Where the facts come from, so that tests can describe other machines. Files are whole or absent
// ("").
struct MachineSources {
  std::function<std::string(const std::string& path)> read_file;
  std::function<std::string(const std::string& name)> environment;  // "" where not set
  int64_t cores_online = 0;
  int64_t cores_allowed = 0;         // by the affinity mask
  double load_average = 0;           // of the last minute
  int64_t free_disk_bytes = -1;      // of the current folder's volume; -1 unknown
  int64_t locked_memory_limit = -1;  // bytes; -1 unlimited
  int64_t open_files_limit = -1;     // -1 unlimited

  static MachineSources ThisMachine();
};

enum class Severity { kFact, kSlow, kBroken };

struct Finding {
  std::string name;   // "cores"
  std::string value;  // "2 of 8"
  Severity severity = Severity::kFact;
  std::string advice;  // what to do; empty for a fact
};

std::vector<Finding> Diagnose(const MachineSources& sources);

}  // namespace tranche
