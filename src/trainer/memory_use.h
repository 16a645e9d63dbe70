// What the operating system says this process uses.
#pragma once

#include <cstdint>

namespace tranche {

// Memory of the process's own now, without mapped files (data sets, the program), in bytes; 0 where
// the system does not say.
int64_t ResidentBytes();

}  // namespace tranche
