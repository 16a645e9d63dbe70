#include <glob.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"
#include "data/text_reader.h"

namespace tranche {
namespace {

bool HasTextName(absl::string_view path) {
  std::string name = absl::AsciiStrToLower(path);
  if (absl::EndsWith(name, ".gz")) name.resize(name.size() - 3);
  for (const char* suffix : {".txt", ".jsonl", ".ndjson"}) {
    if (absl::EndsWith(name, suffix)) return true;
  }
  return false;
}

absl::StatusOr<std::vector<std::string>> TextFilesBelow(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  // Links to folders are not followed, so a link cycle cannot hang the walk.
  std::filesystem::recursive_directory_iterator it(folder, error), end;
  while (!error && it != end) {
    std::error_code ignored;
    if (it->is_regular_file(ignored) && HasTextName(it->path().string())) {
      files.push_back(it->path().string());
    }
    it.increment(error);
  }
  if (error) return absl::UnavailableError(absl::StrCat(folder, ": ", error.message()));
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ExpandInputs(const std::vector<std::string>& inputs) {
  std::vector<std::string> files;
  for (const std::string& input : inputs) {
    if (IsDirectory(input)) {
      TRANCHE_ASSIGN_OR_RETURN(const std::vector<std::string> below, TextFilesBelow(input));
      if (below.empty()) {
        return absl::NotFoundError(absl::StrCat(
            input,
            ": no .txt, .jsonl or .ndjson file (or .gz of one) in this folder; name files of "
            "other names one by one or by a pattern"));
      }
      files.insert(files.end(), below.begin(), below.end());
      continue;
    }
    if (FileExists(input) || input.find_first_of("*?[") == std::string::npos) {
      if (!FileExists(input)) return absl::NotFoundError(input + ": no such file or folder");
      files.push_back(input);
      continue;
    }
    glob_t matches{};
    const int result = ::glob(input.c_str(), 0, nullptr, &matches);
    const size_t before = files.size();
    for (size_t i = 0; result == 0 && i < matches.gl_pathc; ++i) {
      if (!IsDirectory(matches.gl_pathv[i])) files.emplace_back(matches.gl_pathv[i]);
    }
    ::globfree(&matches);
    if (files.size() == before) {
      return absl::NotFoundError(input + ": no file matches this pattern");
    }
  }
  if (files.empty()) return absl::InvalidArgumentError("no input files");
  return files;
}

}  // namespace tranche
