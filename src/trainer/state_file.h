// One array of state (master, m, v) of all parameters as safetensors.
//
// A parameter that a file holds whole is a tensor NAME [rows, cols]; a stretch of it is a tensor
// NAME@BEGIN [count]: elements [BEGIN, BEGIN + count) in row-major order. Writers with shards write
// the stretches they own; readers put together whatever lies there.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/file.h"
#include "model/param_spec.h"
#include "zero/engine.h"

namespace tranche {

absl::Status WriteStateFile(FileSystem& fs, const std::string& path, const std::string& array,
                            Engine& engine, Backend& backend, Stream& stream);

// The size of the file that WriteStateFile writes.
int64_t StateFileBytes(const std::vector<ParamSpec>& specs, DType dtype);

// The arrays that an engine is loaded from: without training the master weights alone.
std::vector<std::string> LoadedArrays(const Engine& engine);

// `source` names the files together in errors.
absl::Status ReadStateFiles(const std::vector<std::string>& files, const std::string& source,
                            const std::string& array, Engine& engine, Backend& backend,
                            Stream& stream);

}  // namespace tranche
