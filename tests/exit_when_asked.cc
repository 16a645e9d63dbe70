// Loaded before a program: SIGUSR2 makes it leave with code 0 wherever it is, without a goodbye.
#include <csignal>

#include <unistd.h>

namespace {

const bool asked = [] {
  std::signal(SIGUSR2, [](int) { ::_exit(0); });
  return true;
}();

}  // namespace
