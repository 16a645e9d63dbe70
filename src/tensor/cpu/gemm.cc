// How products are cut: into tiles of c, each computed over all of k by one thread, taken
// dynamically. Where several tiles share columns, b is packed once for all of them beforehand; else
// each tile packs its own.
#include <omp.h>

#include <algorithm>

#include "tensor/cpu/column_sums.h"
#include "tensor/cpu/gemm_kernels.h"
#include "tensor/cpu/kernels.h"
#include "tensor/cpu/parallel.h"

namespace tranche::cpu {
namespace {

constexpr int64_t kSharedFloats = int64_t{1} << 22;  // packed b of many tiles: 16 MiB
constexpr int64_t kSharedTileRows = 192;  // their block of a stays in the second-level cache

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

struct Cut {
  int64_t tile_rows;
  int64_t tile_cols;
};

// Tiles as large as they may be, yet enough of them that every thread gets several.
Cut ChooseTiles(int64_t rows, int64_t cols, int64_t max_rows, int64_t tiles_wanted,
                const GemmGeometry& panels) {
  Cut cut = {
      std::min(RoundUp(rows, panels.panel_rows), max_rows / panels.panel_rows * panels.panel_rows),
      std::min(RoundUp(cols, panels.panel_cols),
               kMaxTileSize / max_rows / kMaxPanelCols * kMaxPanelCols)};
  const auto tiles = [&] {
    return (rows + cut.tile_rows - 1) / cut.tile_rows *
           ((cols + cut.tile_cols - 1) / cut.tile_cols);
  };
  while (tiles() < tiles_wanted) {
    // Halve the longer side, measured in panels' worth of reuse.
    const bool wide = cut.tile_cols > 2 * panels.panel_cols;
    const bool tall = cut.tile_rows > 4 * panels.panel_rows;
    if (!wide && !tall) break;
    if (wide && (cut.tile_cols >= cut.tile_rows || !tall)) {
      cut.tile_cols = RoundUp(cut.tile_cols / 2, panels.panel_cols);
    } else {
      cut.tile_rows = RoundUp(cut.tile_rows / 2, panels.panel_rows);
    }
  }
  return cut;
}

}  // namespace

int64_t MatMulScratchBytes(int threads) {
  return (kSharedFloats + threads * kTileScratchFloats) * static_cast<int64_t>(sizeof(float));
}

void MatMul(const MatMulArgs& args, std::byte* scratch, int threads) {
  const int64_t rows = args.c.rows, cols = args.c.cols;
  if (rows == 0 || cols == 0) return;
  const int64_t depth = args.transpose_a ? args.a.rows : args.a.cols;
  const int64_t blocks = GemmBlocks(args).count();
  const GemmGeometry panels = GemmPanels();
  float* shared = reinterpret_cast<float*>(scratch);
  float* private_scratch = shared + kSharedFloats;
  constexpr int64_t kWorthATeam = int64_t{1}
                                  << 17;  // products that take longer than waking the others
  if (rows * cols * std::max<int64_t>(1, depth) < kWorthATeam) threads = 1;

  // Columns whose packed panels fit: sharing pays where more than one tile needs them and they are
  // not few.
  const int64_t shared_cols =
      std::min(RoundUp(cols, panels.panel_cols),
               kSharedFloats / (blocks * kDepth) / panels.panel_cols * panels.panel_cols);
  const bool share = rows > kMaxTileRows && shared_cols >= std::min(cols, kMaxTileCols / 2);
  const int64_t stretch = share ? shared_cols : cols;
  for (int64_t first = 0; first < cols; first += stretch) {
    const int64_t count = std::min(stretch, cols - first);
    const int64_t block_stride = RoundUp(count, panels.panel_cols) * kDepth;
    if (share) {
      constexpr int64_t kPanelsPerTask = 8;
      const int64_t strips =
          (count + kPanelsPerTask * panels.panel_cols - 1) / (kPanelsPerTask * panels.panel_cols);
      ParallelFor(blocks * strips, 1, threads, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t block = i / strips, col = i % strips * kPanelsPerTask * panels.panel_cols;
          const int64_t width = std::min(kPanelsPerTask * panels.panel_cols, count - col);
          GemmPackB(args, block, first + col, width, shared + block * block_stride + col * kDepth);
        }
      });
    }
    const Cut cut = ChooseTiles(rows, count, share ? kSharedTileRows : kMaxTileRows,
                                threads > 1 ? 4 * threads : 1, panels);
    const int64_t down = (rows + cut.tile_rows - 1) / cut.tile_rows;
    const int64_t across = (count + cut.tile_cols - 1) / cut.tile_cols;
    ParallelFor(down * across, 1, threads, [&](int64_t begin, int64_t end) {
      float* mine = private_scratch + omp_get_thread_num() * kTileScratchFloats;
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i / across * cut.tile_rows, col = i % across * cut.tile_cols;
        const GemmTile tile = {row,
                               std::min(cut.tile_rows, rows - row),
                               first + col,
                               std::min(cut.tile_cols, count - col),
                               share ? shared + col * kDepth : nullptr,
                               block_stride};
        GemmComputeTile(args, tile, mine);
      }
    });
  }
}

void BiasBackward(Tensor d_bias, Tensor d_out, int threads) {
  if (d_out.size() < kElementGrain) threads = 1;
  constexpr int64_t kLine = 16;
  const int64_t band = std::min(kMaxSumCols, RoundUp(d_bias.cols / (2 * threads) + 1, 2 * kLine));
  ParallelFor(d_bias.cols, band, threads, [&](int64_t begin, int64_t end) {
    AddColumnSums(d_out, begin, end - begin, d_bias.Row<float>(0) + begin);
  });
}

}  // namespace tranche::cpu
