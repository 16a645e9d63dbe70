// CHECK for the programmer's errors: prints file:line, the condition and the message, and aborts.
// The world's errors (files, recipes, peers) are absl::Status; see status.h.
#pragma once

#include <sstream>

namespace tranche {

// Collects a message and aborts when destroyed. Used only through CHECK.
class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition);
  [[noreturn]] ~CheckFailure();
  std::ostream& stream() { return message_; }

 private:
  std::ostringstream message_;
};

}  // namespace tranche

#define TRANCHE_CHECK(condition) \
  while (!(condition)) ::tranche::CheckFailure(__FILE__, __LINE__, #condition).stream()
#define TRANCHE_CHECK_EQ(a, b) TRANCHE_CHECK((a) == (b)) << (a) << " vs. " << (b) << ' '
#define TRANCHE_CHECK_LE(a, b) TRANCHE_CHECK((a) <= (b)) << (a) << " vs. " << (b) << ' '
#define TRANCHE_CHECK_LT(a, b) TRANCHE_CHECK((a) < (b)) << (a) << " vs. " << (b) << ' '
