// Checkpoints: folders step-N that hold everything a run needs to go on bit for bit, and know
// nothing of how many ranks wrote them (docs/checkpoint.md).
//
//   step-1200/manifest.toml       counters, schedule, checksums; written last
//             recipe.toml         the resolved recipe
//             config.json         the model
//             ARRAY.safetensors   one for each array of state: master, m, v; of several ranks
//                                 ARRAY-RANK.safetensors, each with the stretches it owns
//
// A checkpoint is written under a temporary name, synced file by file and renamed: a folder named
// step-N is whole, or was damaged afterwards, which its checksums show.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file.h"
#include "model/param_spec.h"
#include "trainer/checkpoint_manifest.h"
#include "trainer/world.h"
#include "zero/engine.h"

namespace tranche {

inline constexpr char kManifestName[] = "manifest.toml";

struct CheckpointContents {
  CheckpointManifest manifest;  // `files` is filled in by saving
  std::string recipe;           // text of recipe.toml
  std::string config;           // text of config.json
};

// Bytes of a checkpoint's files but the manifest, to the byte for the given texts.
int64_t CheckpointBytes(const std::vector<ParamSpec>& specs, const UpdateRule& rule,
                        const CheckpointContents& contents);

// All ranks together, each what it owns: writes DIRECTORY/step-N and returns its path; a step-N
// that is already there is replaced. ResourceExhausted where the volume has not the space (checked
// first, so that nothing is begun); after any error the folder is as it was.
absl::StatusOr<std::string> SaveCheckpoint(FileSystem& fs, const std::string& directory,
                                           const CheckpointContents& contents, Engine& engine,
                                           Backend& backend, Stream& stream, World& world);

enum class Verification { kNone, kSize, kChecksum };
// Of the recipe's word for it: "none", "size", "checksum".
Verification ParseVerification(absl::string_view word);

// Reads the manifest and compares every file's size and checksum, sizes alone, or nothing. DataLoss
// or NotFound, naming the file.
absl::StatusOr<CheckpointManifest> VerifyCheckpoint(const std::string& path,
                                                    Verification how = Verification::kChecksum);

// Reads the arrays of state into the engine: all that it has (an engine without training takes the
// weights alone). Pieces of any cut are put together; a part that no piece holds, a tensor of
// another model or shape is an error.
absl::Status LoadCheckpoint(const std::string& path, Engine& engine, Backend& backend,
                            Stream& stream);

bool IsCheckpoint(const std::string& path);

// The steps of the step-N folders in DIRECTORY, newest first. None where there is no such folder.
std::vector<int64_t> ListCheckpoints(const std::string& directory);
std::string CheckpointPath(const std::string& directory, int64_t step);

// Removes all but the newest keep_latest_k, and never a multiple of keep_every (0: none is kept).
absl::Status PruneCheckpoints(FileSystem& fs, const std::string& directory, int64_t keep_latest_k,
                              int64_t keep_every);
// Removes the oldest that is neither the newest nor a multiple of keep_every, and returns its step;
// none where there is no such.
absl::StatusOr<std::optional<int64_t>> RemoveOldestCheckpoint(FileSystem& fs,
                                                              const std::string& directory,
                                                              int64_t keep_every);
// What a killed process left half-written or half-removed. Only for the owner of the run's lock.
absl::Status RemoveLeftovers(FileSystem& fs, const std::string& directory);

}  // namespace tranche
