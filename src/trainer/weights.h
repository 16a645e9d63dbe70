// The weights of a run at its ends: where they first come from, and the Hugging Face folder they
// become.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "base/file.h"
#include "trainer/run_setup.h"
#include "zero/engine.h"

namespace tranche {

// Sets every parameter of the engine: from model.path where model.init is "pretrained" (with
// model.fresh_head, what the folder lacks is drawn), else at random from run.seed. Warnings of the
// folder are said aloud. Waits for the stream.
absl::Status SetFirstWeights(const RunSetup& setup, Engine& engine, Backend& backend,
                             Stream& stream);

// Writes config.json, the weights and the tokenizer's files to `directory`, which must not exist:
// AlreadyExists. All of it or nothing. Tensors that model.path has beyond the model's parameters
// are carried over unchanged.
absl::Status ExportModel(FileSystem& fs, const RunSetup& setup, Engine& engine, Backend& backend,
                         Stream& stream, const std::string& directory);

}  // namespace tranche
