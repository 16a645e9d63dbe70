// manifest.toml of a checkpoint: what it holds, from which run, and the checksum of every file.
// The format on disk is described in docs/checkpoint.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "optim/schedule.h"

namespace tranche {

struct CheckpointManifest {
  static constexpr int64_t kFormat = 1;

  int64_t step = 0;  // updates done (skipped ones too): the next batch is that of step + 1
  int64_t total_tokens = 0;
  int64_t nonfinite_steps = 0;
  int64_t no_target_steps = 0;
  double seconds = 0;  // of training, over all attempts

  int64_t seed = 0;
  int64_t global_batch_size = 0;
  int64_t sequence_length = 0;
  std::string precision;
  std::string data_fingerprint;  // Loader::fingerprint: order and contents
  std::string schedule_name;
  Schedule schedule;

  struct File {
    std::string name;
    int64_t bytes = 0;
    std::string checksum;  // XXH3-128, hexadecimal
  };
  std::vector<File> files;

  bool finished() const { return step >= schedule.total_steps; }
  int64_t samples() const { return step * global_batch_size; }
  int64_t bytes() const;
};

// The last line holds the checksum of all lines before it.
std::string PrintManifest(const CheckpointManifest& manifest);
// `source` names the text in errors: damaged text, an unknown format, missing keys, file names that
// leave the folder.
absl::StatusOr<CheckpointManifest> ParseManifest(absl::string_view text, const std::string& source);

}  // namespace tranche
