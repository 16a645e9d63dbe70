// Tensor: a view of device memory as a row-major matrix with a row stride. It owns nothing and is
// passed by value. A vector is a matrix of one row. The address is the backend's: nobody else may
// read or write through it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "tensor/dtype.h"

namespace tranche {

struct Tensor {
  std::byte* data = nullptr;
  DType dtype = DType::kFloat32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;  // elements from one row to the next; >= cols

  bool defined() const { return data != nullptr; }
  int64_t size() const { return rows * cols; }
  bool contiguous() const { return stride == cols || rows <= 1; }

  // For backends only: the typed address of element [row, 0].
  template <typename T>
  T* Row(int64_t row) const {
    return reinterpret_cast<T*>(data) + row * stride;
  }

  Tensor SliceRows(int64_t begin, int64_t count) const {
    TRANCHE_CHECK(begin >= 0 && count >= 0 && begin + count <= rows)
        << begin << '+' << count << " of " << rows;
    Tensor slice = *this;
    slice.data += begin * stride * SizeOf(dtype);
    slice.rows = count;
    return slice;
  }
  Tensor SliceCols(int64_t begin, int64_t count) const {
    TRANCHE_CHECK(begin >= 0 && count >= 0 && begin + count <= cols)
        << begin << '+' << count << " of " << cols;
    Tensor slice = *this;
    slice.data += begin * SizeOf(dtype);
    slice.cols = count;
    return slice;
  }
  // The same elements in another shape; the view must be contiguous.
  Tensor Reshape(int64_t new_rows, int64_t new_cols) const {
    TRANCHE_CHECK(contiguous() && new_rows * new_cols == size());
    return {data, dtype, new_rows, new_cols, new_cols};
  }
};

inline Tensor MakeTensor(void* data, DType dtype, int64_t rows, int64_t cols) {
  return {static_cast<std::byte*>(data), dtype, rows, cols, cols};
}

}  // namespace tranche
