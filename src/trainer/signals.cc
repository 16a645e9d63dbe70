#include "trainer/signals.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

namespace tranche {
namespace {

std::atomic<int> stop_signal{0};

void Handle(int signal) {
  const int before = stop_signal.exchange(signal);
  if (signal == SIGINT && before == SIGINT) ::_exit(128 + SIGINT);
}

}  // namespace

void CatchStopSignals() {
  struct sigaction action = {};
  action.sa_handler = Handle;
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) ::sigaction(signal, &action, nullptr);
}

const char* StopSignal() {
  switch (stop_signal.load()) {
    case 0:
      return nullptr;
    case SIGTERM:
      return "SIGTERM";
    case SIGINT:
      return "SIGINT";
    default:
      return "SIGUSR1";
  }
}

}  // namespace tranche
