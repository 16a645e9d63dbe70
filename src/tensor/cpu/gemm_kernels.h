// The parts of the product that are compiled once per instruction set: packing, the inner kernel
// and the epilogue. gemm.cc decides how the work is cut; nothing here depends on the cut:
//   x[i, j] = ((s_0 + s_1) + s_2) + …,   s_p = Σ a[i, k]·b[k, j] over the k of block p, in rising
//   order,
// by fused multiply-add from zero. Panels are padded with zeros to whole vectors.
#pragma once

#include <cstdint>

#include "tensor/backend.h"

namespace tranche::cpu {

// The most k per block: a panel of b stays in the first-level cache. (MKL has this number too, and
// sums in this order.)
inline constexpr int64_t kDepth = 384;
inline constexpr int64_t kMaxTileRows = 384;
inline constexpr int64_t kMaxTileCols = 1024;
inline constexpr int64_t kMaxTileSize = int64_t{3} << 16;  // rows·columns
inline constexpr int64_t kMaxPanelRows =
    16;  // bounds of the inner kernel's rows and columns on any machine
inline constexpr int64_t kMaxPanelCols = 64;

// Of one thread: a block of a, a panel of b, and the tile's sums.
inline constexpr int64_t kTileScratchFloats =
    (kMaxTileRows + kMaxPanelRows) * kDepth + kMaxPanelCols * kDepth + kMaxTileSize;

// The blocks of k in the order of their sums: each matrix of `seams` in blocks of like size. There
// is one block at least, which may be empty.
class GemmBlocks {
 public:
  struct Block {
    int64_t begin, depth;
  };
  explicit GemmBlocks(const MatMulArgs& args);
  int64_t count() const { return parts_[0].blocks + parts_[1].blocks + parts_[2].blocks; }
  Block operator[](int64_t block) const;

 private:
  struct Part {
    int64_t begin = 0, end = 0, blocks = 0, block_depth = 0;
  };
  Part parts_[3];
};

struct GemmGeometry {
  int64_t panel_rows;
  int64_t panel_cols;
};
GemmGeometry GemmPanels();

// Packs columns [col, col + cols) of block `block` of op(b) into panels of panel_cols, each
// kDepth·panel_cols floats apart. `col` is a multiple of panel_cols.
void GemmPackB(const MatMulArgs& args, int64_t block, int64_t col, int64_t cols, float* to);

// Computes c[row … row + rows, col … col + cols) with its epilogue. packed_b: the tile's panels of
// the first block, made by GemmPackB, those of the following blocks block_stride floats apart;
// null: packs b itself.
struct GemmTile {
  int64_t row, rows, col, cols;
  const float* packed_b;
  int64_t block_stride;
};
void GemmComputeTile(const MatMulArgs& args, const GemmTile& tile, float* scratch);

}  // namespace tranche::cpu
