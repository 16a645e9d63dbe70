// A BlobExchange through files, for ranks that share a folder and nothing else.
#pragma once

#include <string>

#include "zero/transport.h"

namespace tranche {

// `folder` exists, starts empty and belongs to this group of ranks; one exchange per name. An error
// after `timeout_seconds` names the ranks that did not come.
BlobExchange FolderExchange(const std::string& folder, int rank, int size, double timeout_seconds);

}  // namespace tranche
