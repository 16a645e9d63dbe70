#include "trainer/memory_use.h"

#include <cinttypes>
#include <cstdio>
#include <cstring>

namespace tranche {

int64_t ResidentBytes() {
  std::FILE* status = std::fopen("/proc/self/status", "re");
  if (status == nullptr) return 0;
  char line[256];
  int64_t kibibytes = 0;
  while (std::fgets(line, sizeof(line), status) != nullptr) {
    if (std::sscanf(line, "RssAnon: %" SCNd64, &kibibytes) == 1) break;
  }
  std::fclose(status);
  return kibibytes * 1024;
}

}  // namespace tranche
