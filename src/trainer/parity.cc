#include "trainer/parity.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "model/transformer.h"
#include "tensor/plan_backend.h"
#include "zero/engine.h"

namespace tranche {
namespace {

double Difference(double ours, double theirs) {
  const double difference = std::abs(ours - theirs);
  return std::isfinite(difference) ? difference : std::numeric_limits<double>::infinity();
}

// Keeps the comparison that is furthest off, measured in tolerances.
class Worst {
 public:
  explicit Worst(std::string quantity) { result_.quantity = std::move(quantity); }

  void Add(double error, double tolerance, const std::string& where) {
    const double ratio = error / tolerance;
    if (ratio <= ratio_) return;
    ratio_ = ratio;
    result_.error = error;
    result_.tolerance = tolerance;
    result_.where = where;
  }
  const ParityResult& result() const { return result_; }

 private:
  double ratio_ = -1;
  ParityResult result_;
};

// Engine, model and scalars over one backend and arena; on a rehearsal arena, their plan.
class ParityRun {
 public:
  static absl::StatusOr<std::unique_ptr<ParityRun>> Create(const ParityCase& parity,
                                                           const ParityOptions& options,
                                                           Backend& backend, Arena& arena) {
    auto run = std::unique_ptr<ParityRun>(new ParityRun(parity, backend));
    const MicroBatch& batch = parity.every_row;
    TransformerOptions model_options;
    model_options.dtype = options.dtype;
    model_options.recompute = options.recompute;
    model_options.max_tokens = batch.num_tokens();
    model_options.max_segments = std::max(batch.num_segments(), batch.num_sequences());
    model_options.max_predicted = batch.num_tokens();
    const ModelConfig& config = parity.config;
    if (config.position_kind == PositionKind::kRotary)
      model_options.max_length = parity.rotary_length;
    for (const int32_t position : batch.positions) {
      model_options.max_length = std::max<int64_t>(model_options.max_length, position + 1);
    }
    run->engine_ = Engine::Create(parity.specs, {.dtype = options.dtype, .update = parity.update},
                                  backend, arena);
    run->batch_ = std::make_unique<DeviceBatch>(config, model_options, backend, arena);
    run->logits_ = arena.Allocate("logits", MemoryKind::kWorkspace, DType::kFloat32,
                                  batch.num_tokens(), config.vocab_size);
    if (config.next_sentence_head) {
      run->next_sentence_logits_ =
          arena.Allocate("next-sentence logits", MemoryKind::kWorkspace, DType::kFloat32,
                         static_cast<int64_t>(batch.next_sentence.size()), 2);
    }
    backend.ReserveWorkspace({.dtype = options.dtype,
                              .max_tokens = model_options.max_tokens,
                              .max_segments = model_options.max_segments,
                              .heads = config.num_heads,
                              .head_dim = config.head_dim},
                             arena);
    TRANCHE_ASSIGN_OR_RETURN(
        run->transformer_,
        Transformer::Create(config, parity.specs, model_options, backend, arena, *run->engine_));
    arena.Seal();
    return run;
  }

  void LoadWeights() {
    for (size_t i = 0; i < parity_.specs.size(); ++i) {
      const int64_t elements = parity_.specs[i].elements();
      std::vector<float> values(static_cast<size_t>(elements));
      parity_.weights.CopyElements(static_cast<int>(i), 0, elements, TensorType::kF32,
                                   values.data());
      backend_.CopyToDevice(*stream_, engine_->State(static_cast<int>(i), "master"), values.data());
      backend_.Synchronize(*stream_);
    }
    engine_->MasterChanged(*stream_);
  }

  std::vector<float> Logits() {
    batch_->Upload(*stream_, parity_.every_row, parity_.rotary_length);
    transformer_->Logits(*stream_, *batch_, logits_, next_sentence_logits_);
    return ToHost(logits_);
  }
  std::vector<float> NextSentenceLogits() { return ToHost(next_sentence_logits_); }

  // Gradients of one step, and its mean loss.
  double ForwardBackward() {
    const MicroBatch& batch = parity_.batch;
    const double tokens = static_cast<double>(batch.num_predicted());
    const double sequences = static_cast<double>(batch.next_sentence.size());
    batch_->Upload(*stream_, batch, parity_.rotary_length);
    engine_->BeginStep(*stream_, /*micro_batches=*/1);
    transformer_->ForwardBackward(
        *stream_, *batch_, static_cast<float>(1 / std::max(tokens, 1.0)),
        static_cast<float>(1 / std::max(sequences, 1.0)), /*dropout_key=*/0, engine_->loss_sum(0),
        parity_.config.next_sentence_head ? engine_->loss_sum(1) : Tensor());
    double sums[2] = {0, 0};
    backend_.CopyToHost(*stream_, &sums[0], engine_->loss_sum(0));
    backend_.CopyToHost(*stream_, &sums[1], engine_->loss_sum(1));
    backend_.Synchronize(*stream_);
    return sums[0] / std::max(tokens, 1.0) + sums[1] / std::max(sequences, 1.0);
  }

  std::vector<float> Gradient(size_t param) {
    return ToHost(engine_->Gradient(static_cast<int>(param)));
  }
  std::vector<float> Master(size_t param) {
    return ToHost(engine_->State(static_cast<int>(param), "master"));
  }

  // The norm of the gradients before clipping.
  double Step(int64_t step) {
    engine_->Step(*stream_, static_cast<float>(parity_.learning_rate), step, {});
    return ToHost(engine_->control())[0];
  }

 private:
  ParityRun(const ParityCase& parity, Backend& backend)
      : parity_(parity), backend_(backend), stream_(backend.CreateStream("parity")) {}

  std::vector<float> ToHost(Tensor tensor) {
    std::vector<float> values(static_cast<size_t>(tensor.size()));
    backend_.CopyToHost(*stream_, values.data(), tensor);
    backend_.Synchronize(*stream_);
    return values;
  }

  const ParityCase& parity_;
  Backend& backend_;
  const std::unique_ptr<Stream> stream_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<DeviceBatch> batch_;
  std::unique_ptr<Transformer> transformer_;
  Tensor logits_, next_sentence_logits_;
};

// Calls compare(tensor name, our first element, count, is a matrix) for each Hugging Face tensor.
template <typename Values, typename Compare>
absl::Status ForEachTensor(const ParityCase& parity, const Values& values, const Compare& compare) {
  for (size_t i = 0; i < parity.specs.size(); ++i) {
    const std::vector<float> ours = values(i);
    int64_t begin = 0;
    for (const HfPart& part : parity.specs[i].parts) {
      TRANCHE_RETURN_IF_ERROR(
          compare(part.name, ours.data() + begin, part.elements(), part.shape.size() > 1));
      begin += part.elements();
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ParityResult> CompareGradients(const ParityCase& parity, ParityRun& run) {
  Worst worst("gradients");
  TRANCHE_RETURN_IF_ERROR(ForEachTensor(
      parity, [&](size_t i) { return run.Gradient(i); },
      [&](const std::string& name, const float* ours, int64_t count, bool) -> absl::Status {
        TRANCHE_ASSIGN_OR_RETURN(const std::vector<float>* theirs,
                                 parity.Expected("grad." + name, count));
        double largest = 0;
        for (const float value : *theirs) {
          largest = std::max<double>(largest, std::abs(value));
        }
        double error = 0;
        for (int64_t i = 0; i < count; ++i) {
          error = std::max(error, Difference(ours[i], (*theirs)[static_cast<size_t>(i)]));
        }
        worst.Add(error, 1e-5 * largest + 1e-6, name);
        return absl::OkStatus();
      }));
  return worst.result();
}

absl::StatusOr<ParityResult> CompareWeights(const ParityCase& parity, ParityRun& run) {
  Worst worst("weights after");
  const double tolerance =
      1e-3 * parity.learning_rate * static_cast<double>(std::max<int64_t>(parity.steps, 1));
  TRANCHE_RETURN_IF_ERROR(ForEachTensor(
      parity, [&](size_t i) { return run.Master(i); },
      [&](const std::string& name, const float* ours, int64_t count, bool matrix) -> absl::Status {
        TRANCHE_ASSIGN_OR_RETURN(const std::vector<float>* theirs,
                                 parity.Expected("after." + name, count));
        TRANCHE_ASSIGN_OR_RETURN(const std::vector<float>* gradient,
                                 parity.Expected("grad." + name, count));
        for (int64_t i = 0; i < count; ++i) {
          const float g = (*gradient)[static_cast<size_t>(i)];
          if (std::abs(g) < 1e-6f && !(matrix && g == 0)) continue;
          worst.Add(Difference(ours[i], (*theirs)[static_cast<size_t>(i)]), tolerance, name);
        }
        return absl::OkStatus();
      }));
  return worst.result();
}

absl::StatusOr<ParityResult> CompareLogits(const ParityCase& parity, ParityRun& run) {
  Worst worst("logits");
  const int64_t vocabulary = parity.config.vocab_size;
  TRANCHE_ASSIGN_OR_RETURN(const std::vector<float>* theirs,
                           parity.Expected("logits", parity.padded_rows * vocabulary));
  const std::vector<float> ours = run.Logits();
  for (size_t row = 0; row < parity.row_in_expected.size(); ++row) {
    const float* expected = theirs->data() + parity.row_in_expected[row] * vocabulary;
    const float* got = ours.data() + static_cast<int64_t>(row) * vocabulary;
    double error = 0;
    for (int64_t i = 0; i < vocabulary; ++i)
      error = std::max(error, Difference(got[i], expected[i]));
    worst.Add(error, 5e-5, absl::StrCat("row ", parity.row_in_expected[row]));
  }
  if (parity.config.next_sentence_head) {
    const std::vector<float> logits = run.NextSentenceLogits();
    TRANCHE_ASSIGN_OR_RETURN(theirs,
                             parity.Expected("nsp_logits", static_cast<int64_t>(logits.size())));
    for (size_t i = 0; i < logits.size(); ++i) {
      worst.Add(Difference(logits[i], (*theirs)[i]), 5e-5, "next sentence");
    }
  }
  return worst.result();
}

}  // namespace

absl::StatusOr<std::vector<ParityResult>> RunParity(const ParityCase& parity,
                                                    const ParityOptions& options) {
  const std::unique_ptr<PlanBackend> plan = CreatePlanBackend(options.threads);
  Arena rehearsal = Arena::Rehearsal();
  TRANCHE_RETURN_IF_ERROR(ParityRun::Create(parity, options, *plan, rehearsal).status());
  const std::unique_ptr<Backend> backend = CreateCpuBackend(options.threads);
  TRANCHE_ASSIGN_OR_RETURN(Arena arena, Arena::OnHost(rehearsal.peak()));
  TRANCHE_ASSIGN_OR_RETURN(const std::unique_ptr<ParityRun> run,
                           ParityRun::Create(parity, options, *backend, arena));
  run->LoadWeights();

  const bool exact = options.dtype == DType::kFloat32;
  const double loss_tolerance = exact ? 5e-5 : 0.1;
  TRANCHE_ASSIGN_OR_RETURN(const std::vector<float>* loss, parity.Expected("loss", 1));
  TRANCHE_ASSIGN_OR_RETURN(const std::vector<float>* losses,
                           parity.Expected("losses", parity.steps));
  TRANCHE_ASSIGN_OR_RETURN(const std::vector<float>* norms,
                           parity.Expected("grad_norms", parity.steps));
  std::vector<ParityResult> results;
  Worst first("loss"), trained("losses"), norm("gradient norms");
  first.Add(Difference(run->ForwardBackward(), (*loss)[0]), loss_tolerance, "");
  results.push_back(first.result());
  if (exact) {
    TRANCHE_ASSIGN_OR_RETURN(ParityResult gradients, CompareGradients(parity, *run));
    TRANCHE_ASSIGN_OR_RETURN(ParityResult logits, CompareLogits(parity, *run));
    results.push_back(std::move(logits));
    results.push_back(std::move(gradients));
  }
  for (int64_t step = 1; step <= parity.steps; ++step) {
    const size_t i = static_cast<size_t>(step - 1);
    const std::string where = absl::StrCat("step ", step);
    trained.Add(Difference(run->ForwardBackward(), (*losses)[i]), loss_tolerance, where);
    norm.Add(Difference(run->Step(step), (*norms)[i]),
             1e-5 * std::max(std::abs((*norms)[i]), 1e-30f), where);
  }
  results.push_back(trained.result());
  if (exact) {
    TRANCHE_ASSIGN_OR_RETURN(ParityResult weights, CompareWeights(parity, *run));
    results.push_back(norm.result());
    results.push_back(std::move(weights));
  }
  return results;
}

}  // namespace tranche
