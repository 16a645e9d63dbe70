// The folders and files of one run, under run.output_dir.
#pragma once

#include <array>
#include <string>

#include "absl/strings/string_view.h"
#include "base/file.h"

namespace tranche {

// All names that a run writes there.
inline constexpr std::array<absl::string_view, 8> kRunFiles = {
    "checkpoints",   "export",        "exports",  "logs",
    "metrics.jsonl", "resolved.toml", "run.lock", "trace"};

struct RunDirectory {
  explicit RunDirectory(const std::string& path)
      : path(path),
        checkpoints(JoinPath(path, "checkpoints")),
        metrics(JoinPath(path, "metrics.jsonl")),
        resolved(JoinPath(path, "resolved.toml")),
        exported(JoinPath(path, "export")),
        exports(JoinPath(path, "exports")),
        trace(JoinPath(path, "trace")) {}
  std::string path, checkpoints, metrics, resolved;
  std::string exported;  // of the end
  std::string exports;   // of the checkpoints on the way, step-N each
  std::string trace;
};

}  // namespace tranche
