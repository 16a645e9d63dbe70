// What this program is made of: `tranche --version`.
#pragma once

#include <string>

namespace tranche {

std::string VersionText();
// The instruction set that the vector code uses on this machine: "AVX2".
std::string ChosenInstructionSet();

}  // namespace tranche
