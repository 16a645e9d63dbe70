// Self-attention of one layer: projection to queries, keys and values, their norms and rotation,
// softmax attention inside segments, output projection.
//
//   [q | k | v] = x·W_qkvᵀ + b;  q, k = rotate(norm?(q)), rotate(norm?(k));
//   a = attention(q, k, v);  out = residual + dropout(a·W_oᵀ + b_o)
//
// Q = num_heads·head_dim, K = num_kv_heads·head_dim; N tokens.
#pragma once

#include <string>

#include "model/key_value_cache.h"
#include "model/pass.h"
#include "model/rotary_tables.h"

namespace tranche {

class AttentionBlock {
 public:
  // What Forward leaves for Backward. The cheap part can be made again from the costly one.
  struct Saved {
    Tensor qkv;                               // costly [N, Q + 2K]: rotated where there is no norm
    Tensor output;                            // costly [N, Q]
    Tensor log_sum_exp;                       // costly [N, num_heads] fp32
    Tensor query_statistics, key_statistics;  // cheap, with a norm [N, 2·heads] fp32
    Tensor normed;                            // cheap, with a norm [N, Q + K]: normed and rotated
  };
  struct Scratch {
    Tensor d_branch;  // [N, H] where the output has dropout
    Tensor d_output;  // [N, Q]
    Tensor d_qkv;     // [N, Q + 2K]
  };

  AttentionBlock(const ModelConfig& config, int layer, const GroupParams& params,
                 const RotaryTables& tables);

  void AllocateCostly(const std::string& prefix, const TransformerOptions& options, Arena& arena,
                      Saved* saved) const;
  void AllocateCheap(const std::string& prefix, const TransformerOptions& options, Arena& arena,
                     Saved* saved) const;
  void AllocateScratch(const std::string& prefix, const TransformerOptions& options, Arena& arena,
                       Scratch* scratch) const;

  // Up to saved.output. `cache` may be nullptr. With `cheap_only` the costly part is there and only
  // the cheap one is made again.
  void Forward(const Pass& pass, bool cheap_only, Tensor x, const Saved& saved,
               KeyValueCache* cache) const;
  // out [N, H] as above; see AffineDropoutResidual for residual and temporary.
  void Project(const Pass& pass, const Saved& saved, Tensor residual, Tensor temporary,
               Tensor out) const;
  // d_out is the gradient of Project's out. d_x = gradient through this block (+ residual); d_x may
  // be residual and d_out.
  void Backward(const Pass& pass, Tensor d_out, Tensor x, const Saved& saved,
                const Scratch& scratch, Tensor residual, Tensor d_x) const;

 private:
  AttentionArgs MakeAttentionArgs(const Pass& pass) const;
  DropoutArgs OutputDropout(const Pass& pass) const;
  void Rotate(const Pass& pass, Tensor queries_and_keys, bool inverse) const;
  Tensor Queries(Tensor t) const { return t.SliceCols(0, query_cols_); }
  Tensor Keys(Tensor t) const { return t.SliceCols(query_cols_, key_cols_); }
  Tensor Values(Tensor t) const { return t.SliceCols(query_cols_ + key_cols_, key_cols_); }

  const ModelConfig& config_;
  const int group_;
  const GroupParams& params_;
  const RotaryTables& tables_;
  const int64_t query_cols_, key_cols_;
  const bool has_norm_;
  NormSpec query_norm_, key_norm_;
};

// Σ over queries of the keys that each may see, in segments with these borders. reach: the distance
// up to which keys are seen, on both sides or, causal, backwards. history: keys before the first
// query of each segment.
int64_t CountPairs(const std::vector<int32_t>& offsets, bool causal, int64_t reach,
                   int64_t history);

}  // namespace tranche
