// A model on plain arrays for the tests of model/: parameters without an engine, batches by hand,
// everything on one CPU backend and one arena sized by rehearsal.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "base/rng.h"
#include "model/initialize.h"
#include "model/model_config.h"
#include "model/transformer.h"
#include "nlohmann/json.hpp"
#include "tensor/plan_backend.h"

namespace tranche {

class FlatGroups : public GroupAccess {
 public:
  FlatGroups(const std::vector<ParamSpec>& specs, DType dtype, Arena& arena) {
    for (const ParamSpec& spec : specs) {
      weights_.push_back(
          arena.Allocate(spec.name, MemoryKind::kWeights, dtype, spec.rows, spec.cols));
      gradients_.push_back(
          arena.Allocate(spec.name, MemoryKind::kGradients, DType::kFloat32, spec.rows, spec.cols));
    }
  }
  void Prefetch(int) override {}
  void Acquire(Stream&, int group) override { held_[group] += 1; }
  void Release(Stream&, int group) override {
    TRANCHE_CHECK_LT(0, held_[group]);
    held_[group] -= 1;
  }
  void Reduce(Stream&, int group) override { reduced_.push_back(group); }
  Tensor Weight(int param) const override { return weights_[static_cast<size_t>(param)]; }
  Tensor Gradient(int param) const override { return gradients_[static_cast<size_t>(param)]; }

  std::vector<int> TakeReduced() { return std::exchange(reduced_, {}); }
  bool AllReleased() const {
    for (const auto& [group, count] : held_) {
      if (count != 0) return false;
    }
    return true;
  }

 private:
  std::vector<Tensor> weights_, gradients_;
  std::map<int, int> held_;
  std::vector<int> reduced_;
};

struct TestModelOptions {
  DType dtype = DType::kFloat32;
  Recompute recompute = Recompute::kNone;
  int threads = 2;
  int64_t max_tokens = 64, max_segments = 16, max_length = 32;
  int64_t head_chunk_rows = 0;
  double init_scale = 5;  // larger than a fresh model's, so that every part matters
};

using Gradients = std::vector<std::vector<float>>;  // by parameter

class TestModel {
 public:
  explicit TestModel(const std::string& config_json, const TestModelOptions& options = {})
      : options_(options),
        config_(ParseModelConfig(ParseOrderedJson(config_json, "test").value(), "test").value()),
        specs_(BuildParamSpecs(config_)),
        backend_(CreateCpuBackend(options.threads)),
        arena_(Arena::OnHost(PlannedBytes()).value()) {
    stream_ = backend_->CreateStream("test");
    Build(*backend_, arena_, &parts_);
    for (size_t i = 0; i < specs_.size(); ++i) {
      std::vector<float> values(static_cast<size_t>(specs_[i].elements()));
      InitialValues(specs_[i], 7, 0, specs_[i].elements(), values.data());
      // Biases and norms start as constants; move them so that their use shows.
      for (size_t e = 0; e < values.size(); ++e) {
        const float noise = UniformFloat(Philox(i, e, 1)[0]) - 0.5f;
        values[e] = specs_[i].rows == 1 ? values[e] + 0.2f * noise
                                        : values[e] * static_cast<float>(options.init_scale);
      }
      SetWeight(i, values);
    }
  }

  int64_t PlannedBytes() const {
    const std::unique_ptr<PlanBackend> plan = CreatePlanBackend(options_.threads);
    Arena rehearsal = Arena::Rehearsal();
    Parts parts;
    Build(*plan, rehearsal, &parts);
    return rehearsal.peak();
  }

  void SetWeight(size_t param, const std::vector<float>& values) {
    std::vector<BFloat16> rounded;
    const void* from = values.data();
    if (options_.dtype == DType::kBFloat16) {
      for (const float value : values) rounded.emplace_back(value);
      from = rounded.data();
    }
    backend_->CopyToDevice(*stream_, parts_.groups->Weight(static_cast<int>(param)), from);
    backend_->Synchronize(*stream_);
  }

  std::vector<float> GetWeight(size_t param) {
    TRANCHE_CHECK(options_.dtype == DType::kFloat32);
    return ToHost(parts_.groups->Weight(static_cast<int>(param)));
  }

  void ClearGradients() {
    for (size_t i = 0; i < specs_.size(); ++i) {
      backend_->Fill(*stream_, parts_.groups->Gradient(static_cast<int>(i)), 0);
    }
  }

  // The summed loss; gradients are added. `scale`: of the gradient of every predicted token.
  double ForwardBackward(const MicroBatch& batch, float scale, uint64_t dropout_key = 0) {
    parts_.batch->Upload(*stream_, batch);
    backend_->Fill(*stream_, parts_.loss, 0);
    backend_->Fill(*stream_, parts_.next_sentence_loss, 0);
    parts_.transformer->ForwardBackward(*stream_, *parts_.batch, scale, scale, dropout_key,
                                        parts_.loss, NextSentenceLoss());
    return ReadLoss();
  }

  double Evaluate(const MicroBatch& batch, std::vector<float>* row_losses = nullptr) {
    parts_.batch->Upload(*stream_, batch);
    backend_->Fill(*stream_, parts_.loss, 0);
    backend_->Fill(*stream_, parts_.next_sentence_loss, 0);
    const Tensor rows = parts_.row_losses.SliceCols(0, batch.num_predicted());
    parts_.transformer->Evaluate(*stream_, *parts_.batch, parts_.loss, NextSentenceLoss(),
                                 row_losses != nullptr ? rows : Tensor());
    const double loss = ReadLoss();
    if (row_losses != nullptr) *row_losses = ToHost(rows);
    return loss;
  }

  // [predicted, V]
  std::vector<float> Logits(const MicroBatch& batch) {
    parts_.batch->Upload(*stream_, batch);
    const Tensor logits = parts_.logits.SliceRows(0, batch.num_predicted());
    parts_.transformer->Logits(*stream_, *parts_.batch, logits, Tensor());
    return ToHost(logits);
  }

  Gradients GetGradients() {
    Gradients gradients;
    for (size_t i = 0; i < specs_.size(); ++i) {
      gradients.push_back(ToHost(parts_.groups->Gradient(static_cast<int>(i))));
    }
    return gradients;
  }

  Gradients Train(const MicroBatch& batch, uint64_t dropout_key = 0, double* loss = nullptr) {
    ClearGradients();
    const double sum =
        ForwardBackward(batch, 1.0f / static_cast<float>(batch.num_predicted()), dropout_key);
    if (loss != nullptr) *loss = sum;
    return GetGradients();
  }

  const ModelConfig& config() const { return config_; }
  const std::vector<ParamSpec>& specs() const { return specs_; }
  size_t param(const std::string& name) const {
    for (size_t i = 0; i < specs_.size(); ++i) {
      if (specs_[i].name == name) return i;
    }
    TRANCHE_CHECK(false) << "no parameter " << name;
    return 0;
  }
  int64_t arena_peak() const { return arena_.peak(); }
  FlatGroups& groups() { return *parts_.groups; }
  Transformer& transformer() { return *parts_.transformer; }

 private:
  struct Parts {
    std::unique_ptr<FlatGroups> groups;
    std::unique_ptr<DeviceBatch> batch;
    std::unique_ptr<Transformer> transformer;
    Tensor loss, next_sentence_loss, row_losses, logits;
  };

  void Build(Backend& backend, Arena& arena, Parts* parts) const {
    TransformerOptions options;
    options.dtype = options_.dtype;
    options.recompute = options_.recompute;
    options.max_tokens = options.max_predicted = options_.max_tokens;
    options.max_segments = options_.max_segments;
    options.max_length = options_.max_length;
    options.head_chunk_rows = options_.head_chunk_rows;
    parts->groups = std::make_unique<FlatGroups>(specs_, options.dtype, arena);
    parts->batch = std::make_unique<DeviceBatch>(config_, options, backend, arena);
    const auto workspace = [&](const char* name, DType dtype, int64_t rows, int64_t cols) {
      return arena.Allocate(name, MemoryKind::kWorkspace, dtype, rows, cols);
    };
    parts->loss = workspace("loss", DType::kFloat64, 1, 1);
    parts->next_sentence_loss = workspace("next sentence", DType::kFloat64, 1, 1);
    parts->row_losses = workspace("row losses", DType::kFloat32, 1, options.max_predicted);
    parts->logits = workspace("logits", DType::kFloat32, options.max_predicted, config_.vocab_size);
    backend.ReserveWorkspace({options.dtype, options.max_tokens, options.max_segments,
                              config_.num_heads, config_.head_dim},
                             arena);
    parts->transformer =
        Transformer::Create(config_, specs_, options, backend, arena, *parts->groups).value();
    arena.Seal();
  }

  Tensor NextSentenceLoss() const {
    return config_.next_sentence_head ? parts_.next_sentence_loss : Tensor();
  }

  double ReadLoss() {
    double sums[2];
    backend_->CopyToHost(*stream_, &sums[0], parts_.loss);
    backend_->CopyToHost(*stream_, &sums[1], parts_.next_sentence_loss);
    backend_->Synchronize(*stream_);
    return sums[0] + sums[1];
  }

  std::vector<float> ToHost(Tensor tensor) {
    std::vector<float> values(static_cast<size_t>(tensor.size()));
    if (!values.empty()) backend_->CopyToHost(*stream_, values.data(), tensor);
    backend_->Synchronize(*stream_);
    return values;
  }

  const TestModelOptions options_;
  const ModelConfig config_;
  const std::vector<ParamSpec> specs_;
  const std::unique_ptr<Backend> backend_;
  Arena arena_;
  std::unique_ptr<Stream> stream_;
  Parts parts_;
};

// Documents of token ids packed one behind the other. Causal models predict each next token inside
// a document, masked ones every third token. `sample`: identity of the first document.
struct BatchOptions {
  bool causal = true;
  int64_t vocab = 32;
  uint64_t sample = 0;
};
inline MicroBatch MakeBatch(const std::vector<std::vector<int32_t>>& documents,
                            const BatchOptions& options) {
  MicroBatch batch;
  batch.cu_seqlens = {0};
  batch.cu_sequences = {0};
  for (size_t d = 0; d < documents.size(); ++d) {
    const std::vector<int32_t>& document = documents[d];
    for (size_t t = 0; t < document.size(); ++t) {
      const int32_t row = static_cast<int32_t>(batch.num_tokens());
      batch.input_ids.push_back(document[t]);
      batch.positions.push_back(static_cast<int32_t>(t));
      batch.token_types.push_back(t * 2 >= document.size() ? 1 : 0);
      batch.token_keys.push_back(((options.sample + d) << 20) | t);
      if (options.causal ? t + 1 < document.size() : t % 3 == 1) {
        batch.predict_rows.push_back(row);
        batch.labels.push_back(options.causal
                                   ? document[t + 1]
                                   : static_cast<int32_t>((document[t] * 7 + 3) % options.vocab));
      }
    }
    batch.cu_seqlens.push_back(static_cast<int32_t>(batch.num_tokens()));
    batch.cu_sequences.push_back(static_cast<int32_t>(batch.num_tokens()));
  }
  return batch;
}

inline std::vector<int32_t> RandomDocument(uint64_t seed, size_t length, int64_t vocab = 32) {
  std::vector<int32_t> document;
  for (size_t t = 0; t < length; ++t) {
    // Ids 0..3 stay free for padding and the like.
    document.push_back(
        static_cast<int32_t>(4 + Philox(seed, t, 9)[0] % static_cast<uint32_t>(vocab - 4)));
  }
  return document;
}

}  // namespace tranche
