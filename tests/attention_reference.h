// Attention computed plainly in double, one query at a time: the truth that the kernels are
// measured against. Includes a case (shapes, inputs, dropout) and helpers to run the kernels on it.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "tensor/backend.h"
#include "tensor/cpu/kernels.h"
#include "tensor/dropout_mask.h"

namespace tranche::test {

struct AttentionCase {
  std::vector<int32_t> query_lengths, key_lengths;
  int64_t heads = 1, kv_heads = 1, head_dim = 8;
  bool causal = false;
  int64_t window = std::numeric_limits<int64_t>::max();
  float dropout = 0;
  DType dtype = DType::kFloat32;
  int64_t extra_stride = 0;  // q, k, v lie in rows that are longer by this much
};

// Rows of fp32 or bf16 with a stride; values kept in double as they are after rounding.
struct Matrix {
  DType dtype = DType::kFloat32;
  int64_t rows = 0, cols = 0, stride = 0;
  std::vector<float> wide;
  std::vector<BFloat16> narrow;

  Matrix() = default;
  Matrix(DType type, int64_t r, int64_t c, int64_t extra = 0)
      : dtype(type), rows(r), cols(c), stride(c + extra) {
    const size_t size = static_cast<size_t>(std::max<int64_t>(1, rows * stride));
    if (type == DType::kFloat32) {
      wide.assign(size, std::nanf(""));
    } else {
      narrow.assign(size, BFloat16(std::nanf("")));
    }
  }
  Tensor tensor() {
    void* data = dtype == DType::kFloat32 ? static_cast<void*>(wide.data()) : narrow.data();
    return {static_cast<std::byte*>(data), dtype, rows, cols, stride};
  }
  float At(int64_t r, int64_t c) const {
    const size_t i = static_cast<size_t>(r * stride + c);
    return dtype == DType::kFloat32 ? wide[i] : static_cast<float>(narrow[i]);
  }
  void Set(int64_t r, int64_t c, float value) {
    const size_t i = static_cast<size_t>(r * stride + c);
    if (dtype == DType::kFloat32) {
      wide[i] = value;
    } else {
      narrow[i] = BFloat16(value);
    }
  }
  void Randomise(uint64_t key, double deviation = 1) {
    RandomSequence random(key);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) Set(r, c, static_cast<float>(deviation * random.Normal()));
    }
  }
};

struct AttentionProblem {
  AttentionCase shape;
  std::vector<int32_t> query_offsets{0}, key_offsets{0};
  std::vector<uint64_t> token_keys;
  Matrix q, k, v, d_out;

  explicit AttentionProblem(const AttentionCase& c, uint64_t seed = 1) : shape(c) {
    for (size_t s = 0; s < c.query_lengths.size(); ++s) {
      query_offsets.push_back(query_offsets.back() + c.query_lengths[s]);
      key_offsets.push_back(key_offsets.back() + c.key_lengths[s]);
    }
    q = Matrix(c.dtype, query_offsets.back(), c.heads * c.head_dim, c.extra_stride);
    k = Matrix(c.dtype, key_offsets.back(), c.kv_heads * c.head_dim, c.extra_stride);
    v = k;
    d_out = Matrix(c.dtype, q.rows, q.cols);
    q.Randomise(4 * seed);
    k.Randomise(4 * seed + 1);
    v.Randomise(4 * seed + 2);
    d_out.Randomise(4 * seed + 3);
    RandomSequence random(seed, 9);
    for (int64_t i = 0; i < q.rows; ++i) token_keys.push_back(random.Next64());
  }

  AttentionArgs Args() {
    AttentionArgs args;
    args.heads = shape.heads;
    args.kv_heads = shape.kv_heads;
    args.head_dim = shape.head_dim;
    args.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(shape.head_dim)));
    args.causal = shape.causal;
    args.window = shape.window;
    args.segments = static_cast<int64_t>(shape.query_lengths.size());
    args.query_offsets = MakeTensor(query_offsets.data(), DType::kInt32, 1, args.segments + 1);
    args.key_offsets = MakeTensor(key_offsets.data(), DType::kInt32, 1, args.segments + 1);
    for (const int32_t n : shape.key_lengths)
      args.max_length = std::max<int64_t>(args.max_length, n);
    args.dropout.probability = shape.dropout;
    args.dropout.key = 0x1234567890abcdefu;
    args.dropout.site = 7;
    args.dropout.token_keys = MakeTensor(token_keys.data(), DType::kUInt64, 1, q.rows);
    return args;
  }
};

struct AttentionResult {
  Matrix out, log_sum_exp, d_q, d_k, d_v;
};

inline std::vector<std::byte> AttentionScratchFor(const AttentionProblem& p, int threads) {
  WorkspaceLimits limits;
  limits.dtype = p.shape.dtype;
  limits.max_tokens = p.q.rows;
  limits.max_segments = static_cast<int64_t>(p.shape.query_lengths.size());
  limits.heads = p.shape.heads;
  limits.head_dim = p.shape.head_dim;
  // Uninitialised memory may hold anything: 0xff is a NaN.
  return std::vector<std::byte>(static_cast<size_t>(cpu::AttentionScratchBytes(limits, threads)),
                                std::byte{0xff});
}

inline AttentionResult RunAttention(AttentionProblem& p, int threads, bool backward = true) {
  const AttentionArgs args = p.Args();
  std::vector<std::byte> scratch = AttentionScratchFor(p, threads);
  AttentionResult r;
  r.out = Matrix(p.shape.dtype, p.q.rows, p.q.cols);
  r.log_sum_exp = Matrix(DType::kFloat32, p.q.rows, p.shape.heads);
  cpu::Attention(args, p.q.tensor(), p.k.tensor(), p.v.tensor(), r.out.tensor(),
                 r.log_sum_exp.tensor(), scratch.data(), threads);
  if (!backward) return r;
  scratch.assign(scratch.size(), std::byte{0xff});
  r.d_q = Matrix(p.shape.dtype, p.q.rows, p.q.cols, p.shape.extra_stride);
  r.d_k = Matrix(p.shape.dtype, p.k.rows, p.k.cols, p.shape.extra_stride);
  r.d_v = Matrix(p.shape.dtype, p.v.rows, p.v.cols, p.shape.extra_stride);
  cpu::AttentionBackward(args, p.d_out.tensor(), p.q.tensor(), p.k.tensor(), p.v.tensor(),
                         r.out.tensor(), r.log_sum_exp.tensor(), r.d_q.tensor(), r.d_k.tensor(),
                         r.d_v.tensor(), scratch.data(), threads);
  return r;
}

struct AttentionTruth {
  std::vector<double> out, log_sum_exp, d_q, d_k, d_v;
};

inline AttentionTruth ReferenceAttention(AttentionProblem& p) {
  const AttentionArgs args = p.Args();
  const int64_t dim = args.head_dim, group = args.heads / args.kv_heads;
  const double scale = static_cast<double>(args.scale);
  const double kept = 1 / (1 - static_cast<double>(args.dropout.probability));
  AttentionTruth t;
  t.out.assign(static_cast<size_t>(p.q.rows * p.q.cols), 0);
  t.d_q = t.out;
  t.log_sum_exp.assign(static_cast<size_t>(p.q.rows * args.heads), 0);
  t.d_k.assign(static_cast<size_t>(p.k.rows * p.k.cols), 0);
  t.d_v = t.d_k;
  for (int64_t s = 0; s < args.segments; ++s) {
    const size_t i_s = static_cast<size_t>(s);
    const int64_t q0 = p.query_offsets[i_s], queries = p.query_offsets[i_s + 1] - q0;
    const int64_t k0 = p.key_offsets[i_s], keys = p.key_offsets[i_s + 1] - k0;
    for (int64_t h = 0; h < args.heads; ++h) {
      const int64_t hq = h * dim, hk = h / group * dim;
      for (int64_t i = 0; i < queries; ++i) {
        const int64_t position = i + keys - queries;
        std::vector<int64_t> seen;
        std::vector<double> scores, factors;
        for (int64_t j = 0; j < keys; ++j) {
          if (args.causal && j > position) continue;
          if (std::abs(position - j) > args.window) continue;
          double dot = 0;
          for (int64_t c = 0; c < dim; ++c) {
            dot += static_cast<double>(p.q.At(q0 + i, hq + c)) *
                   static_cast<double>(p.k.At(k0 + j, hk + c));
          }
          seen.push_back(j);
          scores.push_back(dot * scale);
          const uint32_t bits =
              DropoutBits(args.dropout.key, args.dropout.site,
                          p.token_keys[static_cast<size_t>(q0 + i)], AttentionDropoutElement(h, j));
          factors.push_back(UniformFloat(bits) >= args.dropout.probability ? kept : 0);
        }
        double max = -std::numeric_limits<double>::infinity(), sum = 0;
        for (const double x : scores) max = std::max(max, x);
        for (const double x : scores) sum += std::exp(x - max);
        t.log_sum_exp[static_cast<size_t>((q0 + i) * args.heads + h)] = max + std::log(sum);
        std::vector<double> probabilities, d_probabilities;
        double delta = 0;
        for (size_t n = 0; n < seen.size(); ++n) {
          const double probability = std::exp(scores[n] - max) / sum;
          double d_probability = 0;
          for (int64_t c = 0; c < dim; ++c) {
            const double d_o = static_cast<double>(p.d_out.At(q0 + i, hq + c));
            const double value = static_cast<double>(p.v.At(k0 + seen[n], hk + c));
            t.out[static_cast<size_t>((q0 + i) * p.q.cols + hq + c)] +=
                probability * factors[n] * value;
            t.d_v[static_cast<size_t>((k0 + seen[n]) * p.v.cols + hk + c)] +=
                probability * factors[n] * d_o;
            d_probability += factors[n] * d_o * value;
          }
          probabilities.push_back(probability);
          d_probabilities.push_back(d_probability);
          delta += probability * d_probability;
        }
        for (size_t n = 0; n < seen.size(); ++n) {
          const double d_score = probabilities[n] * (d_probabilities[n] - delta) * scale;
          for (int64_t c = 0; c < dim; ++c) {
            t.d_q[static_cast<size_t>((q0 + i) * p.q.cols + hq + c)] +=
                d_score * static_cast<double>(p.k.At(k0 + seen[n], hk + c));
            t.d_k[static_cast<size_t>((k0 + seen[n]) * p.k.cols + hk + c)] +=
                d_score * static_cast<double>(p.q.At(q0 + i, hq + c));
          }
        }
      }
    }
  }
  return t;
}

// The largest error in units of the largest magnitude of the truth, but of 1 at least: inputs are
// standard normal, and gradients that cancel to nothing keep the errors of their terms.
inline double RelativeError(const Matrix& got, const std::vector<double>& want) {
  double size = 1, worst = 0;
  for (const double x : want) size = std::max(size, std::abs(x));
  for (int64_t r = 0; r < got.rows; ++r) {
    for (int64_t c = 0; c < got.cols; ++c) {
      const double x = want[static_cast<size_t>(r * got.cols + c)];
      const double error = std::abs(static_cast<double>(got.At(r, c)) - x);
      if (!(error <= worst)) worst = error;
    }
  }
  return worst / size;
}

}  // namespace tranche::test
