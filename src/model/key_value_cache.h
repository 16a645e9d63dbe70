#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace tranche {

// One layer's keys and values of the earlier tokens of the one segment being continued.
struct KeyValueCache {
  Tensor keys, values;  // [capacity, num_kv_heads·head_dim] each, T
  int64_t length = 0;   // rows filled before this pass
  Tensor key_offsets;   // [1, 2] int32 = {0, length + tokens of this pass}
};

}  // namespace tranche
