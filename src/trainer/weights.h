// The weights of a run at its ends: where they first come from, and the Hugging Face folder they
// become.
#pragma once

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/file.h"
#include "trainer/run_setup.h"
#include "zero/engine.h"

namespace tranche {

// Whether the folder that the weights come from is whole and fits the model, before anything is
// written. OK where they are drawn. `aloud`: says the folder's warnings and what is drawn anew.
absl::Status CheckFirstWeights(const RunSetup& setup, bool aloud);

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

// Lets `write` make a folder beside `directory` and puts it in the place of `directory`, which may
// exist: a failure leaves the earlier one as it was.
absl::Status ReplaceFolder(FileSystem& fs, const std::string& directory,
                           absl::FunctionRef<absl::Status(const std::string& folder)> write);

}  // namespace tranche
