// A BlobExchange through files, for ranks that share a folder and nothing else.
#pragma once

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "base/status.h"
#include "base/units.h"
#include "zero/transport.h"

namespace tranche {

// `folder` exists, starts empty and belongs to this group of ranks; one exchange per name. An error
// after `timeout_seconds` names the ranks that did not come.
inline BlobExchange FolderExchange(const std::string& folder, int rank, int size,
                                   double timeout_seconds) {
  return [=](absl::string_view name,
             absl::string_view mine) -> absl::StatusOr<std::vector<std::string>> {
    const auto path = [&](int r) { return absl::StrCat(folder, "/", name, ".", r); };
    TRANCHE_RETURN_IF_ERROR(WriteFileAtomic(path(rank), mine));
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::string> blobs(size);
    for (std::vector<int> missing;; missing.clear()) {
      for (int r = 0; r < size; ++r) {
        if (!FileExists(path(r))) missing.push_back(r);
      }
      if (missing.empty()) break;
      if (std::chrono::steady_clock::now() - start >
          std::chrono::duration<double>(timeout_seconds)) {
        return absl::DeadlineExceededError(
            absl::StrCat("rank ", rank, " waited ", FormatSeconds(timeout_seconds), " in ", folder,
                         " for the \"", name, "\" of rank ", absl::StrJoin(missing, ", ")));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    for (int r = 0; r < size; ++r) {
      TRANCHE_ASSIGN_OR_RETURN(blobs[r], ReadFile(path(r)));
    }
    return blobs;
  };
}

}  // namespace tranche
