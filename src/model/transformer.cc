#include "model/transformer.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "model/embedding_block.h"
#include "model/head_block.h"
#include "model/layer.h"
#include "model/next_sentence_head.h"
#include "model/overlay.h"

namespace tranche {
namespace {

class TransformerImpl : public Transformer {
 public:
  TransformerImpl(const ModelConfig& config, const std::vector<ParamSpec>& specs,
                  const TransformerOptions& options, Backend& backend, Arena& arena,
                  GroupAccess& groups)
      : config_(config),
        options_(options),
        backend_(backend),
        groups_(groups),
        tables_(config_, options, backend, arena),
        embedding_(config_, specs, groups),
        head_(config_, specs, options, groups),
        next_sentence_(config_, specs, groups) {
    for (int i = 0; i < num_layers(); ++i) {
      layers_.push_back(std::make_unique<Layer>(config_, i, specs, groups, tables_));
    }
    Allocate(arena);
  }

  void ForwardBackward(Stream& stream, const DeviceBatch& device_batch, float loss_scale,
                       float next_sentence_scale, uint64_t dropout_key, Tensor loss_sum,
                       Tensor next_sentence_loss_sum) override {
    TRANCHE_CHECK(options_.training) << "no memory for backward";
    const BatchView& batch = device_batch.view();
    const Pass pass{backend_, stream, batch, /*dropout=*/true, dropout_key};
    const bool idle = batch.predicted == 0 && batch.sequences == 0;
    Forward(pass, idle, {});
    const Tensor d = Rows(d_stream_, batch.tokens);
    WithHead(stream, [&] {
      if (idle) return;
      backend_.Fill(stream, d, 0);
      head_.LossAndGradient(pass, Boundary(num_layers(), batch), loss_scale, loss_sum, d);
      if (config_.next_sentence_head) {
        next_sentence_.LossAndGradient(pass, Boundary(num_layers(), batch), next_sentence_scale,
                                       next_sentence_loss_sum, d);
      }
    });
    groups_.Reduce(stream, HeadGroup());
    for (int i = num_layers() - 1; i >= 0; --i) {
      if (i > 0) groups_.Prefetch(i);
      groups_.Acquire(stream, i + 1);
      if (!idle) BackwardLayer(pass, i, d);
      groups_.Release(stream, i + 1);
      groups_.Reduce(stream, i + 1);
    }
    groups_.Acquire(stream, 0);
    if (!idle) {
      if (options_.recompute == Recompute::kFull && embedding_.has_norm()) {
        embedding_.Forward(pass, embedding_replay_, Boundary(0, batch));
      }
      embedding_.Backward(pass, embedding_replay_, d);
    }
    groups_.Release(stream, 0);
    groups_.Reduce(stream, 0);
  }

  void Evaluate(Stream& stream, const DeviceBatch& device_batch, Tensor loss_sum,
                Tensor next_sentence_loss_sum, Tensor row_losses) override {
    const BatchView& batch = device_batch.view();
    const Pass pass{backend_, stream, batch};
    const bool idle = batch.predicted == 0 && batch.sequences == 0;
    Forward(pass, idle, {});
    WithHead(stream, [&] {
      if (idle) return;
      const Tensor x = Boundary(num_layers(), batch);
      head_.Loss(pass, x, loss_sum, row_losses);
      if (config_.next_sentence_head) next_sentence_.Loss(pass, x, next_sentence_loss_sum);
    });
  }

  void Logits(Stream& stream, const DeviceBatch& device_batch, Tensor logits,
              Tensor next_sentence_logits) override {
    const BatchView& batch = device_batch.view();
    const Pass pass{backend_, stream, batch};
    const bool idle = batch.tokens == 0;
    Forward(pass, idle, {});
    WithHead(stream, [&] {
      if (idle) return;
      const Tensor x = Boundary(num_layers(), batch);
      head_.Logits(pass, x, logits);
      if (next_sentence_logits.defined()) next_sentence_.Logits(pass, x, next_sentence_logits);
    });
  }

  void Decode(Stream& stream, const DeviceBatch& device_batch, absl::Span<KeyValueCache> cache,
              Tensor logits) override {
    const BatchView& batch = device_batch.view();
    TRANCHE_CHECK(config_.causal && batch.segments == 1);
    TRANCHE_CHECK_EQ(static_cast<int>(cache.size()), num_layers());
    const Pass pass{backend_, stream, batch};
    Forward(pass, /*idle=*/false, cache);
    WithHead(stream, [&] { head_.Logits(pass, Boundary(num_layers(), batch), logits); });
  }

  int64_t head_chunk_rows() const override { return head_.chunk_rows(); }

 private:
  int num_layers() const { return static_cast<int>(config_.num_layers); }
  int HeadGroup() const { return num_layers() + 1; }
  // The stream [N, H] before layer i, or behind the last. Without backward one buffer serves all.
  Tensor Boundary(int i, const BatchView& batch) const {
    return Rows(boundaries_[options_.training ? static_cast<size_t>(i) : 0], batch.tokens);
  }

  void Allocate(Arena& arena) {
    const auto stream = [&](const std::string& name) {
      return arena.Allocate(name, MemoryKind::kActivations, options_.dtype, options_.max_tokens,
                            config_.hidden_size);
    };
    for (int i = 0; i <= (options_.training ? num_layers() : 0); ++i) {
      boundaries_.push_back(stream(absl::StrCat("stream.", i)));
    }
    const bool keep_costly = options_.training && options_.recompute != Recompute::kFull;
    const bool keep_cheap = options_.training && options_.recompute == Recompute::kNone;
    forward_saved_.resize(layers_.size());
    for (size_t i = 0; i < layers_.size(); ++i) {
      const std::string prefix = absl::StrCat("layers.", i, ".");
      if (keep_costly) layers_[i]->AllocateCostly(prefix, options_, arena, &forward_saved_[i]);
      if (keep_cheap) layers_[i]->AllocateCheap(prefix, options_, arena, &forward_saved_[i]);
    }
    if (keep_costly) embedding_.Allocate(options_, arena, &embedding_saved_);
    if (options_.training) d_stream_ = stream("d_stream");

    // What the layers share: the part of Saved that is not kept.
    const auto allocate_shared = [&](Arena& where, Layer::Saved* shared) {
      if (!keep_costly) layers_[0]->AllocateCostly("shared.", options_, where, shared);
      if (!keep_cheap) layers_[0]->AllocateCheap("shared.", options_, where, shared);
    };
    Layer::Saved forward_shared, replay_shared;
    const ArenaPhase forward_embedding = [&](Arena& where) {
      if (!keep_costly) embedding_.Allocate(options_, where, &embedding_saved_);
    };
    const ArenaPhase forward_layer = [&](Arena& where) {
      allocate_shared(where, &forward_shared);
      temporary_ = layers_[0]->AllocateTemporary(options_, where);
    };
    const ArenaPhase token_head = [&](Arena& where) { head_.Allocate(options_, where); };
    const ArenaPhase next_sentence_head = [&](Arena& where) {
      if (config_.next_sentence_head) next_sentence_.Allocate(options_, where);
    };
    const ArenaPhase backward_layer = [&](Arena& where) {
      if (!options_.training) return;
      allocate_shared(where, &replay_shared);
      layers_[0]->AllocateScratch(options_, where, &scratch_);
    };
    const ArenaPhase backward_embedding = [&](Arena& where) {
      if (options_.training && !keep_costly) {
        embedding_.Allocate(options_, where, &embedding_replay_);
      }
    };
    AllocateOverlaid(arena, {forward_embedding, forward_layer, token_head, next_sentence_head,
                             backward_layer, backward_embedding});
    if (keep_costly) embedding_replay_ = embedding_saved_;
    for (size_t i = 0; i < layers_.size(); ++i) {
      replay_saved_.push_back(forward_saved_[i]);
      replay_saved_[i].Complete(replay_shared);
      forward_saved_[i].Complete(forward_shared);
    }
  }

  void Forward(const Pass& pass, bool idle, absl::Span<KeyValueCache> cache) {
    groups_.Acquire(pass.stream, 0);
    groups_.Prefetch(1);
    if (!idle) embedding_.Forward(pass, embedding_saved_, Boundary(0, pass.batch));
    groups_.Release(pass.stream, 0);
    for (int i = 0; i < num_layers(); ++i) {
      groups_.Acquire(pass.stream, i + 1);
      groups_.Prefetch(i + 2);
      if (!idle) {
        const size_t at = static_cast<size_t>(i);
        layers_[at]->Forward(pass, Layer::Part::kAll, Boundary(i, pass.batch),
                             forward_saved_[at].Top(pass.batch.tokens),
                             Rows(temporary_, pass.batch.tokens),
                             cache.empty() ? nullptr : &cache[at], Boundary(i + 1, pass.batch));
      }
      groups_.Release(pass.stream, i + 1);
    }
  }

  void BackwardLayer(const Pass& pass, int i, Tensor d) {
    const size_t at = static_cast<size_t>(i);
    const Tensor x = Boundary(i, pass.batch);
    const Layer::Saved saved = replay_saved_[at].Top(pass.batch.tokens);
    if (options_.recompute != Recompute::kNone) {
      const bool all = options_.recompute == Recompute::kFull;
      layers_[at]->Forward(pass, all ? Layer::Part::kAll : Layer::Part::kCheap, x, saved, Tensor(),
                           nullptr,
                           layers_[at]->post_norm() ? Boundary(i + 1, pass.batch) : Tensor());
    }
    layers_[at]->Backward(pass, x, saved, scratch_, d);
  }

  // The head's group, and the embeddings' where the decoder is tied to them.
  template <typename Work>
  void WithHead(Stream& stream, const Work& work) {
    groups_.Acquire(stream, HeadGroup());
    if (config_.tied) groups_.Acquire(stream, 0);
    work();
    if (config_.tied) groups_.Release(stream, 0);
    groups_.Release(stream, HeadGroup());
  }

  const ModelConfig config_;
  const TransformerOptions options_;
  Backend& backend_;
  GroupAccess& groups_;
  const RotaryTables tables_;
  const EmbeddingBlock embedding_;
  std::vector<std::unique_ptr<Layer>> layers_;
  HeadBlock head_;
  NextSentenceHead next_sentence_;

  std::vector<Tensor> boundaries_;  // [max_tokens, H]
  Tensor d_stream_;                 // [max_tokens, H]
  Tensor temporary_;
  // Where the forward pass leaves what it saves, and where the backward pass finds or remakes it.
  EmbeddingBlock::Saved embedding_saved_, embedding_replay_;
  std::vector<Layer::Saved> forward_saved_, replay_saved_;
  Layer::Scratch scratch_;
};

}  // namespace

absl::StatusOr<Recompute> ParseRecompute(absl::string_view name) {
  for (const Recompute level : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    if (name == Name(level)) return level;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("recompute level \"", name, "\" is not one of none, selective, full"));
}

absl::string_view Name(Recompute recompute) {
  switch (recompute) {
    case Recompute::kNone:
      return "none";
    case Recompute::kSelective:
      return "selective";
    case Recompute::kFull:
      return "full";
  }
  return "?";
}

absl::StatusOr<std::unique_ptr<Transformer>> Transformer::Create(
    const ModelConfig& config, const std::vector<ParamSpec>& specs,
    const TransformerOptions& options, Backend& backend, Arena& arena, GroupAccess& groups) {
  const int64_t positions = config.max_positions - config.position_offset;
  if (config.position_kind == PositionKind::kLearned && options.max_length > positions) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sequences of ", options.max_length, " tokens, but the model has learned positions for ",
        positions, ": shorten the sequences or take a model with more positions"));
  }
  return std::make_unique<TransformerImpl>(config, specs, options, backend, arena, groups);
}

}  // namespace tranche
