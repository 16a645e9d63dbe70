#include "trainer/version.h"

#include <hwy/highway.h>
#include <hwy/targets.h>
#include <omp.h>
#include <oniguruma.h>
#include <toml++/toml.h>
#include <ucp/api/ucp.h>
#include <unicode/uvernum.h>
#include <xxhash.h>
#include <zlib.h>

#include "absl/base/config.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace tranche {

std::string ChosenInstructionSet() {
  const int64_t usable = hwy::SupportedTargets() & HWY_TARGETS;
  return hwy::TargetName(usable & -usable);  // better targets have lower bits
}

std::string VersionText() {
  const auto version = [](int major, int minor, int patch) {
    return absl::StrFormat("%d.%d.%d", major, minor, patch);
  };
  return absl::StrCat("tranche ", TRANCHE_VERSION, "\n",  //
                      "instruction set: ", ChosenInstructionSet(), " (chosen at run time)\n",
                      "threads: ", omp_get_max_threads(), "\n",                                   //
                      "backends: cpu (cuda: no)\n", "libraries: UCX ", ucp_get_version_string(),  //
                      ", Highway ", version(HWY_MAJOR, HWY_MINOR, HWY_PATCH),                     //
                      ", OpenMP ", _OPENMP,                                                       //
                      ", Abseil ", ABSL_LTS_RELEASE_VERSION, ".", ABSL_LTS_RELEASE_PATCH_LEVEL,   //
                      ", toml++ ", version(TOML_LIB_MAJOR, TOML_LIB_MINOR, TOML_LIB_PATCH),       //
                      ", nlohmann-json ",
                      version(NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR,
                              NLOHMANN_JSON_VERSION_PATCH),  //
                      ", ICU ", U_ICU_VERSION,               //
                      ", Oniguruma ", onig_version(),        //
                      ", xxHash ",
                      version(XXH_VERSION_MAJOR, XXH_VERSION_MINOR, XXH_VERSION_RELEASE),  //
                      ", zlib ", zlibVersion(), "\n",                                      //
                      "compiler: ", __VERSION__, "\n");
}

}  // namespace tranche
