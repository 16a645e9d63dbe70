// Where the tokenizer tests find their inputs, and folders of their own.
#pragma once

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "data/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tranche {

inline std::string SharedPath(const std::string& relative) {
  const char* shared = std::getenv("TRANCHE_SHARED");
  return JoinPath(shared != nullptr ? shared : TRANCHE_SOURCE_DIR "/../shared", relative);
}

inline std::string TokenizerFixture(const std::string& relative) {
  return SharedPath("fixtures/tokenizers/" + relative);
}

#define SKIP_WITHOUT(path)                     \
  if (!FileExists(path) && !IsDirectory(path)) \
  GTEST_SKIP() << path << " is absent: set TRANCHE_SHARED to the folder of fixtures"

// A folder that is gone when the test is over.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = ::testing::TempDir() + "/tokenizer_XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~ScratchFolder() { FileSystem::Real().RemoveAll(path_).IgnoreError(); }

  const std::string& path() const { return path_; }
  std::string Path(const std::string& name) const { return JoinPath(path_, name); }
  std::string Write(const std::string& name, absl::string_view content) const {
    std::ofstream file(Path(name), std::ios::binary);  // thousands of these: no need to sync each
    file.write(content.data(), static_cast<std::streamsize>(content.size()));
    EXPECT_TRUE(file.flush().good());
    return Path(name);
  }

 private:
  std::string path_;
};

inline std::vector<int32_t> Ids(const Tokenizer& tokenizer, absl::string_view text,
                                bool add_special = false) {
  std::vector<int32_t> ids;
  tokenizer.Encode(text, add_special, &ids);
  return ids;
}

}  // namespace tranche
