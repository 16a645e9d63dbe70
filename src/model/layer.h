// One layer: attention and mlp around the residual stream, with the norms where the model has them.
// The formulas stand at the top of model_config.h.
#pragma once

#include <array>
#include <string>

#include "model/attention_block.h"
#include "model/mlp_block.h"

namespace tranche {

class Layer {
 public:
  // H = hidden_size. Which exist depends on the place of the norms.
  struct Saved {
    Tensor normed;      // cheap [N, H], pre-norm: what attention reads, parallel: the mlp too
    Tensor statistics;  // cheap [N, 2] fp32 of the attention norm
    AttentionBlock::Saved attention;
    Tensor middle;          // costly [N, H], sequential: the stream after attention, before a norm
    Tensor mlp_input;       // cheap [N, H], sequential: the norm of middle
    Tensor mlp_statistics;  // cheap [N, 2] fp32 of the mlp norm
    MlpBlock::Saved mlp;
    Tensor sum;  // costly [N, H], post-norm: what the mlp norm reads

    Saved Top(int64_t rows) const;       // the first rows of each
    void Complete(const Saved& shared);  // takes what is undefined here from there

   private:
    std::array<Tensor*, 14> tensors();
  };
  struct Scratch {
    Tensor d_normed;  // [N, H], pre-norm
    AttentionBlock::Scratch attention;
    MlpBlock::Scratch mlp;
  };
  // Which part of Saved Forward makes: everything, or the cheap part with the costly one there.
  enum class Part { kAll, kCheap };

  Layer(const ModelConfig& config, int index, const std::vector<ParamSpec>& specs,
        GroupAccess& groups, const RotaryTables& tables);

  void AllocateCostly(const std::string& prefix, const TransformerOptions& options, Arena& arena,
                      Saved* saved) const;
  void AllocateCheap(const std::string& prefix, const TransformerOptions& options, Arena& arena,
                     Saved* saved) const;
  void AllocateScratch(const TransformerOptions& options, Arena& arena, Scratch* scratch) const;
  // [N, H] where the forward pass needs room beside Saved.
  Tensor AllocateTemporary(const TransformerOptions& options, Arena& arena) const;

  // out [N, H] may be x, or undefined where only Saved is wanted; a post-norm layer needs it, since
  // the statistics of its last norm come with it. `saved`: views of N rows.
  void Forward(const Pass& pass, Part part, Tensor x, const Saved& saved, Tensor temporary,
               KeyValueCache* cache, Tensor out) const;
  // d [N, H]: the gradient of out on entry, of x on return.
  void Backward(const Pass& pass, Tensor x, const Saved& saved, const Scratch& scratch,
                Tensor d) const;

  bool post_norm() const { return config_.norm_place == NormPlace::kPost; }

 private:
  bool parallel() const { return config_.parallel_residual; }
  bool reads_stream() const { return post_norm() || !layer_.attention_norm; }

  const ModelConfig& config_;
  const LayerConfig layer_;
  const GroupParams params_;
  const AttentionBlock attention_;
  const MlpBlock mlp_;
  const NormSpec attention_norm_, mlp_norm_;
};

}  // namespace tranche
