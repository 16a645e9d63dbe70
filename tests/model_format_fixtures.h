// Where the tests of model files find fixtures, and small helpers to make folders and safetensors
// files by hand.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/file.h"
#include "base/json.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tranche {

using Json = nlohmann::ordered_json;

inline std::string SharedPath(absl::string_view name) {
  const char* shared = std::getenv("TRANCHE_SHARED");
  return JoinPath(shared != nullptr ? shared : TRANCHE_SOURCE_DIR "/../shared", name);
}

#define TRANCHE_SKIP_WITHOUT(path) \
  if (!FileExists(path))           \
  GTEST_SKIP() << path << " is absent; set TRANCHE_SHARED to the folder that holds fixtures/"

// A folder of its own, removed at the end.
class TestFolder {
 public:
  TestFolder() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    static int count = 0;
    path_ = JoinPath(testing::TempDir(), absl::StrCat("tranche_", info->test_suite_name(), "_",
                                                      info->name(), "_", getpid(), "_", ++count));
    TRANCHE_CHECK(FileSystem::Real().RemoveAll(path_).ok());
    TRANCHE_CHECK(FileSystem::Real().MakeDirs(path_).ok());
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  ~TestFolder() { FileSystem::Real().RemoveAll(path_).IgnoreError(); }
  const std::string& path() const { return path_; }
  std::string File(absl::string_view name) const { return JoinPath(path_, name); }
  void Write(absl::string_view name, absl::string_view bytes) const {
    const absl::Status status = WriteFileAtomic(File(name), bytes);
    TRANCHE_CHECK(status.ok()) << status.ToString();
  }

 private:
  std::string path_;
};

inline std::string MustRead(const std::string& path) {
  auto text = ReadFile(path);
  TRANCHE_CHECK(text.ok()) << text.status().ToString();
  return *std::move(text);
}

inline Json MustParse(absl::string_view text) {
  auto json = ParseOrderedJson(text, "test");
  TRANCHE_CHECK(json.ok()) << json.status().ToString();
  return *std::move(json);
}

// A tensor made by hand; bytes need not match the header that says so.
struct RawTensor {
  std::string name, dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

inline std::string SafetensorsBytes(absl::string_view header, absl::string_view data) {
  std::string length(8, '\0');
  for (int i = 0; i < 8; ++i)
    length[i] = static_cast<char>(static_cast<uint64_t>(header.size()) >> (8 * i));
  return absl::StrCat(length, header, data);
}

// The tensors in the order given, without metadata: an independent writer.
inline std::string SafetensorsOf(const std::vector<RawTensor>& tensors) {
  Json header = Json::object();
  std::string data;
  for (const RawTensor& tensor : tensors) {
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  return SafetensorsBytes(header.dump(), data);
}

// Reads a safetensors file that is known to be good, without the reader under test.
inline std::vector<RawTensor> RawTensorsOf(absl::string_view bytes) {
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  const Json header = MustParse(bytes.substr(8, length));
  std::vector<RawTensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    tensors.push_back({name, entry["dtype"], entry["shape"],
                       std::string(bytes.substr(8 + length + begin, end - begin))});
  }
  return tensors;
}

}  // namespace tranche
