#include "trainer/signals.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

#include "base/check.h"
#include "trainer/exit_codes.h"

namespace tranche {
namespace {

struct NamedSignal {
  const char* name;
  int number;
};
constexpr NamedSignal kSignals[] = {{"SIGINT", SIGINT},
                                    {"SIGTERM", SIGTERM},
                                    {"SIGUSR1", SIGUSR1},
                                    {"SIGUSR2", SIGUSR2},
                                    {"SIGHUP", SIGHUP}};

std::atomic<int> stop_signal{0};

void Handle(int signal) {
  const int before = stop_signal.exchange(signal);
  if (signal == SIGINT && before == SIGINT) ::_exit(kExitInterrupted);
}

void Catch(const std::string& name) {
  struct sigaction action = {};
  action.sa_handler = Handle;
  action.sa_flags = SA_RESTART;
  for (const NamedSignal& signal : kSignals) {
    if (name != signal.name) continue;
    TRANCHE_CHECK_EQ(::sigaction(signal.number, &action, nullptr), 0);
    return;
  }
  TRANCHE_CHECK(false) << name;
}

}  // namespace

void CatchStopSignals(const std::vector<std::string>& names) {
  Catch("SIGINT");
  for (const std::string& name : names) Catch(name);
}

const char* StopSignal() {
  const int number = stop_signal.load();
  for (const NamedSignal& signal : kSignals) {
    if (number == signal.number) return signal.name;
  }
  return nullptr;
}

}  // namespace tranche
