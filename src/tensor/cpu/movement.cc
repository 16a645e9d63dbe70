// Moving, converting and adding; embeddings.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/movement.cc"
#include "hwy/foreach_target.h"

#include <cstring>

#include "base/check.h"
#include "hwy/highway.h"
#include "tensor/cpu/kernels.h"
#include "tensor/cpu/parallel.h"
#include "tensor/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tranche::cpu {
namespace HWY_NAMESPACE {

template <typename To, typename From>
HWY_INLINE void ConvertRow(To* to, const From* from, int64_t n) {
  ForVectors(n, [&](int64_t i, auto extent) { Store(Load(from + i, extent), to + i, extent); });
}

template <typename To, typename From>
HWY_INLINE void AddRow(To* to, const From* from, int64_t n) {
  ForVectors(n, [&](int64_t i, auto extent) {
    Store(hn::Add(Load(to + i, extent), Load(from + i, extent)), to + i, extent);
  });
}

void ConvertFloatRow(float* to, const BFloat16* from, int64_t n) { ConvertRow(to, from, n); }
void ConvertBFloat16Row(BFloat16* to, const float* from, int64_t n) { ConvertRow(to, from, n); }
void AddFloatFloat(float* to, const float* from, int64_t n) { AddRow(to, from, n); }
void AddFloatBFloat16(float* to, const BFloat16* from, int64_t n) { AddRow(to, from, n); }
void AddBFloat16Float(BFloat16* to, const float* from, int64_t n) { AddRow(to, from, n); }
void AddBFloat16BFloat16(BFloat16* to, const BFloat16* from, int64_t n) { AddRow(to, from, n); }

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tranche::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tranche::cpu {
namespace {

HWY_EXPORT(ConvertFloatRow);
HWY_EXPORT(ConvertBFloat16Row);
HWY_EXPORT(AddFloatFloat);
HWY_EXPORT(AddFloatBFloat16);
HWY_EXPORT(AddBFloat16Float);
HWY_EXPORT(AddBFloat16BFloat16);

void CopyRow(const Tensor& to, int64_t to_row, const Tensor& from, int64_t from_row, int64_t begin,
             int64_t count) {
  if (to.dtype == from.dtype) {
    const int64_t size = SizeOf(to.dtype);
    std::memcpy(to.data + (to_row * to.stride + begin) * size,
                from.data + (from_row * from.stride + begin) * size,
                static_cast<size_t>(count * size));
  } else if (to.dtype == DType::kFloat32) {
    HWY_DYNAMIC_DISPATCH(ConvertFloatRow)
    (to.Row<float>(to_row) + begin, from.Row<BFloat16>(from_row) + begin, count);
  } else {
    HWY_DYNAMIC_DISPATCH(ConvertBFloat16Row)
    (to.Row<BFloat16>(to_row) + begin, from.Row<float>(from_row) + begin, count);
  }
}

void AddToRow(const Tensor& to, int64_t to_row, const Tensor& from, int64_t from_row, int64_t begin,
              int64_t count) {
  const bool from_float = from.dtype == DType::kFloat32;
  if (to.dtype == DType::kFloat32) {
    float* out = to.Row<float>(to_row) + begin;
    if (from_float) {
      HWY_DYNAMIC_DISPATCH(AddFloatFloat)(out, from.Row<float>(from_row) + begin, count);
    } else {
      HWY_DYNAMIC_DISPATCH(AddFloatBFloat16)(out, from.Row<BFloat16>(from_row) + begin, count);
    }
  } else {
    BFloat16* out = to.Row<BFloat16>(to_row) + begin;
    if (from_float) {
      HWY_DYNAMIC_DISPATCH(AddBFloat16Float)(out, from.Row<float>(from_row) + begin, count);
    } else {
      HWY_DYNAMIC_DISPATCH(AddBFloat16BFloat16)(out, from.Row<BFloat16>(from_row) + begin, count);
    }
  }
}

// Calls body(row, first column, columns) over a matrix in tasks of kElementGrain elements: long
// rows are cut, short ones joined.
template <typename Body>
void ForPieces(int64_t rows, int64_t cols, bool contiguous, int threads, const Body& body) {
  if (contiguous) {
    ParallelFor(rows * cols, kElementGrain, threads,
                [&](int64_t begin, int64_t end) { body(0, begin, end - begin); });
    return;
  }
  const int64_t pieces = (cols + kElementGrain - 1) / kElementGrain;
  ParallelFor(rows * pieces, RowGrain(cols), threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t column = i % pieces * kElementGrain;
      body(i / pieces, column, std::min(kElementGrain, cols - column));
    }
  });
}

template <typename T>
void FillElements(Tensor tensor, T value, int threads) {
  ForPieces(tensor.rows, tensor.cols, tensor.contiguous(), threads,
            [&](int64_t row, int64_t begin, int64_t count) {
              T* out = tensor.Row<T>(row) + begin;
              std::fill(out, out + count, value);
            });
}

int64_t CheckedRow(const Tensor& rows, int64_t i, int64_t limit) {
  const int32_t row = rows.Row<int32_t>(0)[i];
  TRANCHE_CHECK(row >= 0 && row < limit) << "row " << row << " of " << limit << " at place " << i;
  return row;
}

}  // namespace

void Fill(Tensor tensor, float value, int threads) {
  switch (tensor.dtype) {
    case DType::kFloat32:
      return FillElements(tensor, value, threads);
    case DType::kBFloat16:
      return FillElements(tensor, BFloat16(value), threads);
    case DType::kFloat64:
      return FillElements(tensor, static_cast<double>(value), threads);
    case DType::kInt32:
      return FillElements(tensor, int32_t{0}, threads);
    case DType::kUInt64:
      return FillElements(tensor, uint64_t{0}, threads);
  }
}

void Copy(Tensor to, Tensor from, int threads) {
  ForPieces(to.rows, to.cols, to.contiguous() && from.contiguous(), threads,
            [&](int64_t row, int64_t begin, int64_t count) {
              CopyRow(to, row, from, row, begin, count);
            });
}

void Add(Tensor to, Tensor from, int threads) {
  ForPieces(to.rows, to.cols, to.contiguous() && from.contiguous(), threads,
            [&](int64_t row, int64_t begin, int64_t count) {
              AddToRow(to, row, from, row, begin, count);
            });
}

void GatherRows(Tensor to, Tensor from, Tensor rows, int threads) {
  ParallelFor(to.rows, RowGrain(to.cols), threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      CopyRow(to, i, from, CheckedRow(rows, i, from.rows), 0, to.cols);
  });
}

void ScatterAddRows(Tensor to, Tensor from, Tensor rows, int threads) {
  ParallelFor(from.rows, RowGrain(to.cols), threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      AddToRow(to, CheckedRow(rows, i, to.rows), from, i, 0, to.cols);
  });
}

void Embedding(Tensor out, Tensor table, Tensor ids, bool accumulate, int threads) {
  ParallelFor(out.rows, RowGrain(out.cols), threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = CheckedRow(ids, i, table.rows);
      if (accumulate) {
        AddToRow(out, i, table, row, 0, out.cols);
      } else {
        CopyRow(out, i, table, row, 0, out.cols);
      }
    }
  });
}

// Tasks are bands of columns, so that each element of the table has one writer, who adds in token
// order.
void EmbeddingBackward(Tensor d_table, Tensor d_out, Tensor ids, int32_t padding_id, int threads) {
  constexpr int64_t kLine = 16;  // columns in a cache line
  const int64_t lines = (d_table.cols + kLine - 1) / kLine;
  const int64_t band = kLine * std::max<int64_t>(1, lines / (int64_t{3} * std::max(1, threads)));
  ParallelFor(d_table.cols, band, threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = 0; i < d_out.rows; ++i) {
      const int64_t row = CheckedRow(ids, i, d_table.rows);
      if (row != padding_id) AddToRow(d_table, row, d_out, i, begin, end - begin);
    }
  });
}

}  // namespace tranche::cpu
#endif  // HWY_ONCE
