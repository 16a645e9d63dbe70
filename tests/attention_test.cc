// Attention and its gradients against plain double arithmetic, over shapes, masks, segments and
// types.
#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "attention_reference.h"

namespace tranche {
namespace {

using test::AttentionCase;
using test::AttentionProblem;
using test::AttentionResult;
using test::AttentionTruth;
using test::Matrix;
using test::ReferenceAttention;
using test::RelativeError;
using test::RunAttention;

struct NamedCase {
  std::string name;
  AttentionCase shape;
  friend void PrintTo(const NamedCase& c, std::ostream* out) { *out << c.name; }
};

AttentionCase Same(std::vector<int32_t> lengths, int64_t heads, int64_t kv_heads, int64_t head_dim,
                   bool causal) {
  AttentionCase c;
  c.query_lengths = lengths;
  c.key_lengths = lengths;
  c.heads = heads;
  c.kv_heads = kv_heads;
  c.head_dim = head_dim;
  c.causal = causal;
  return c;
}

std::vector<NamedCase> Cases() {
  std::vector<NamedCase> cases;
  for (const int64_t dim : {1, 3, 8, 16, 31, 64, 80, 96, 128, 144}) {
    for (const bool causal : {false, true}) {
      cases.push_back({"Dim" + std::to_string(dim) + (causal ? "Causal" : "Full"),
                       Same({70, 1, 129}, 2, 2, dim, causal)});
    }
  }
  for (const int32_t length :
       {1, 2, 5, 6, 7, 15, 16, 17, 33, 47, 48, 49, 63, 64, 65, 96, 193, 385}) {
    for (const bool causal : {false, true}) {
      cases.push_back({"Length" + std::to_string(length) + (causal ? "Causal" : "Full"),
                       Same({length}, 1, 1, 20, causal)});
    }
  }
  cases.push_back({"Grouped", Same({50, 77}, 6, 2, 24, true)});
  cases.push_back({"MultiQuery", Same({101}, 5, 1, 16, false)});
  cases.push_back({"EmptySegments", Same({0, 40, 0, 0, 3, 0}, 2, 1, 16, true)});
  for (const int64_t window : {0, 1, 5, 16, 64, 100}) {
    for (const bool causal : {false, true}) {
      AttentionCase c = Same({200, 33}, 2, 1, 16, causal);
      c.window = window;
      cases.push_back({"Window" + std::to_string(window) + (causal ? "Causal" : "Both"), c});
    }
  }
  for (const bool causal : {false, true}) {
    AttentionCase c = Same({1, 3, 70, 0}, 4, 2, 16, causal);
    c.key_lengths = {150, 3, 90, 5};
    cases.push_back({std::string("Cached") + (causal ? "Causal" : "Full"), c});
    c.window = 20;
    cases.push_back({std::string("CachedWindow") + (causal ? "Causal" : "Full"), c});
  }
  AttentionCase unseeing = Same({9, 30}, 2, 1, 16, true);
  unseeing.key_lengths = {0, 30};
  cases.push_back({"NoKeys", unseeing});
  // More queries than keys: the first ones stand before every key and see none.
  unseeing.key_lengths = {4, 12};
  cases.push_back({"FewerKeysThanQueries", unseeing});
  AttentionCase strided = Same({66, 20}, 3, 3, 12, true);
  strided.extra_stride = 29;
  cases.push_back({"Strided", strided});
  const size_t plain = cases.size();
  for (size_t i = 0; i < plain; i += 3) {
    NamedCase dropped = cases[i];
    dropped.name += "Dropout";
    dropped.shape.dropout = i % 2 == 0 ? 0.1f : 0.5f;
    cases.push_back(dropped);
  }
  const size_t all = cases.size();
  for (size_t i = 1; i < all; i += 4) {
    NamedCase narrow = cases[i];
    narrow.name += "Bf16";
    narrow.shape.dtype = DType::kBFloat16;
    cases.push_back(narrow);
  }
  return cases;
}

class AttentionShapes : public ::testing::TestWithParam<NamedCase> {};

TEST_P(AttentionShapes, OutputAndGradientsEqualPlainDoubleArithmetic) {
  AttentionProblem p(GetParam().shape);
  const AttentionResult got = RunAttention(p, 2);
  const AttentionTruth want = ReferenceAttention(p);
  const bool wide = p.shape.dtype == DType::kFloat32;
  // A bf16 result is off by half a unit of 2^-8 of its own size; `out` is rounded before delta is
  // taken from it, which adds to d_q and d_k.
  const double tolerance = wide ? 3e-6 : 6e-3;
  EXPECT_LT(RelativeError(got.out, want.out), tolerance);
  EXPECT_LT(RelativeError(got.d_q, want.d_q), tolerance);
  EXPECT_LT(RelativeError(got.d_k, want.d_k), tolerance);
  EXPECT_LT(RelativeError(got.d_v, want.d_v), tolerance);
  for (int64_t r = 0; r < got.log_sum_exp.rows; ++r) {
    for (int64_t h = 0; h < got.log_sum_exp.cols; ++h) {
      const double lse = want.log_sum_exp[static_cast<size_t>(r * p.shape.heads + h)];
      if (std::isinf(lse)) {
        EXPECT_EQ(got.log_sum_exp.At(r, h), lse);
      } else {
        EXPECT_NEAR(static_cast<double>(got.log_sum_exp.At(r, h)), lse, 2e-6 * (1 + std::abs(lse)));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, AttentionShapes, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tranche
