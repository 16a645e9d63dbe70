// The world's errors: absl::Status with what happened, where, and what to do. These two macros pass
// them on.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define TRANCHE_RETURN_IF_ERROR(expression)                   \
  do {                                                        \
    if (absl::Status status_ = (expression); !status_.ok()) { \
      return status_;                                         \
    }                                                         \
  } while (false)

// TRANCHE_ASSIGN_OR_RETURN(auto value, Load(path));
#define TRANCHE_ASSIGN_OR_RETURN(lhs, expression) \
  TRANCHE_ASSIGN_OR_RETURN_(TRANCHE_CONCAT_(status_or_, __LINE__), lhs, expression)
#define TRANCHE_ASSIGN_OR_RETURN_(temporary, lhs, expression) \
  auto temporary = (expression);                              \
  if (!temporary.ok()) return temporary.status();             \
  lhs = std::move(temporary).value()
#define TRANCHE_CONCAT_(a, b) TRANCHE_CONCAT_INNER_(a, b)
#define TRANCHE_CONCAT_INNER_(a, b) a##b
