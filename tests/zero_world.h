// Several ranks in one process, each a thread with its own backend, arena and session, over the
// in-process transport: what the tests of zero/ train small models with.
#pragma once

#include <algorithm>
#include <bit>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "gtest/gtest.h"
#include "trainer/rehearsal.h"
#include "trainer/session.h"
#include "trainer/weights.h"
#include "zero/comm.h"
#include "zero/group_layout.h"
#include "zero/transport.h"

namespace tranche {

// A causal model with a head of its own, or a masked one whose head is tied to the embeddings.
enum class ModelKind { kPhi, kBert };

inline RunSetup WorldSetup(ModelKind kind, const std::string& precision, const std::string& level,
                           int64_t global_batch, int64_t micro_batch) {
  Recipe recipe;
  recipe.model.init = "random";
  recipe.model.config = {{"model_type", kind == ModelKind::kPhi ? "phi" : "bert"},
                         {"vocab_size", 61},
                         {"hidden_size", 24},
                         {"intermediate_size", 40},
                         {"num_hidden_layers", 4},
                         {"num_attention_heads", 2},
                         {"max_position_embeddings", 16}};
  if (kind == ModelKind::kBert) {
    recipe.model.config["hidden_dropout_prob"] = 0.1;
    recipe.data.objective = "mlm";
  }
  recipe.data.sequence_length = 16;
  recipe.data.sources = {{"none", std::nullopt}};
  recipe.training.max_steps = 4;
  recipe.training.global_batch_size = global_batch;
  recipe.training.micro_batch_size = micro_batch;
  recipe.training.precision = precision;
  recipe.training.activation_checkpointing = level;
  recipe.training.max_grad_norm = 0.05;  // clipping acts
  recipe.optimizer.lr = 1e-2;
  recipe.optimizer.weight_decay = 0.1;
  auto setup = SetUpRun(recipe, /*with_tokenizer=*/false);
  EXPECT_TRUE(setup.ok()) << setup.status();
  return *std::move(setup);
}

// Micro-batch `slot` of `step`: sequences of unequal lengths, so that ranks predict unequal numbers
// of tokens.
inline MicroBatch WorldBatch(const RunSetup& setup, int64_t step, int64_t slot) {
  RandomSequence random(static_cast<uint64_t>(step * 1000 + slot));
  MicroBatch batch = EmptyBatch();
  for (int64_t s = 0; s < setup.recipe.training.micro_batch_size; ++s) {
    const int64_t length = 3 + static_cast<int64_t>(random.Below(14));
    const auto first = static_cast<int32_t>(batch.input_ids.size());
    for (int64_t i = 0; i < length; ++i) {
      batch.input_ids.push_back(static_cast<int32_t>(random.Below(61)));
      batch.token_types.push_back(0);
      batch.positions.push_back(static_cast<int32_t>(i));
      batch.token_keys.push_back(static_cast<uint64_t>(step * 64 + slot * 8 + s) << 20 |
                                 static_cast<uint64_t>(i));
      const bool predicted = setup.config.head == HeadKind::kMasked ? i % 3 == 1 : i + 1 < length;
      if (!predicted) continue;
      batch.predict_rows.push_back(first + static_cast<int32_t>(i));
      batch.labels.push_back(static_cast<int32_t>(random.Below(61)));
    }
    batch.cu_seqlens.push_back(static_cast<int32_t>(batch.input_ids.size()));
    batch.cu_sequences.push_back(static_cast<int32_t>(batch.input_ids.size()));
  }
  return batch;
}

struct WorldResult {
  std::vector<EngineTotals> totals;            // of each step
  std::vector<std::array<float, 4>> controls;  // of each step
  double evaluated = 0;                        // the loss of an evaluation at the end
  CommCounts last_step;                        // rank 0's
  int64_t arena_bytes = 0;                     // rank 0's
  // "master", "m", "v" of every parameter, put together from what each rank owns; an element that
  // no rank or more than one owns is NaN.
  std::map<std::string, std::vector<std::vector<float>>> state;

  bool SameNumbers(const WorldResult& other) const {
    for (size_t i = 0; i < totals.size(); ++i) {
      if (std::bit_cast<uint64_t>(totals[i].loss_sum) !=
              std::bit_cast<uint64_t>(other.totals[i].loss_sum) ||
          controls[i] != other.controls[i]) {
        return false;
      }
    }
    return state == other.state &&
           std::bit_cast<uint64_t>(evaluated) == std::bit_cast<uint64_t>(other.evaluated);
  }
};

// Trains `steps` steps on `ranks` ranks.
inline WorldResult TrainWorld(const RunSetup& setup, int ranks, int64_t steps) {
  WorldResult result;
  const double nan = std::nan("");
  for (const char* array : {"master", "m", "v"}) {
    for (const ParamSpec& spec : setup.specs) {
      result.state[array].emplace_back(static_cast<size_t>(spec.elements()), nan);
    }
  }
  using Transports = std::vector<std::unique_ptr<Transport>>;
  const TransportOptions options = {.timeout_seconds = 60};
  const Transports transports = CreateLocalTransports(ranks, options);
  std::vector<Transports> shard_transports, replica_transports;
  for (int r = 0; r < setup.replicas; ++r) {
    shard_transports.push_back(CreateLocalTransports(ranks / setup.replicas, options));
  }
  for (int s = 0; s < ranks / setup.replicas; ++s) {
    replica_transports.push_back(CreateLocalTransports(setup.replicas, options));
  }
  std::mutex mutex;
  const auto run = [&](int rank) {
    const std::unique_ptr<Backend> backend = CreateCpuBackend(1);
    std::vector<std::unique_ptr<Comm>> comms;
    const auto connect = [&](const Transports& group, int place) {
      comms.push_back(std::make_unique<Comm>(*backend, *group[static_cast<size_t>(place)]));
      return comms.back().get();
    };
    CommGroups groups;
    if (ranks > 1) groups.world = groups.shards = connect(transports, rank);
    const int shards = ranks / setup.replicas;
    if (setup.replicas > 1) {
      groups.shards = connect(shard_transports[static_cast<size_t>(rank / shards)], rank % shards);
      groups.replicas =
          connect(replica_transports[static_cast<size_t>(rank % shards)], rank / shards);
    }
    Arena arena = *Arena::OnHost(int64_t{32} << 20);
    const auto session = *Session::Create(setup, /*training=*/true, *backend, arena, groups);
    ASSERT_TRUE(SetFirstWeights(setup, session->engine(), *backend, session->stream()).ok());
    const int64_t slots = setup.micro_batches();
    const auto batch_of = [&](int64_t step, int64_t round) {
      const int64_t slot = round * ranks + rank;
      return slot < slots ? WorldBatch(setup, step, slot) : EmptyBatch();
    };
    for (int64_t step = 1; step <= steps; ++step) {
      StepScale scale;
      scale.dropout_key = static_cast<uint64_t>(step);
      scale.sequences = setup.recipe.training.global_batch_size;
      for (int64_t slot = 0; slot < slots; ++slot) {
        scale.predicted_tokens += WorldBatch(setup, step, slot).num_predicted();
      }
      groups.ResetCounts();
      session->BeginStep();
      for (int64_t round = 0; round < session->Rounds(slots); ++round) {
        session->ForwardBackward(batch_of(step, round), scale);
      }
      session->FinishStep(1e-2f, step, 0, {.requests = 1, .numbers = {1.0 * rank, 0, 0, 1}});
      const Readback read = session->Await(0);
      ASSERT_TRUE(session->status().ok()) << session->status();
      if (rank > 0) continue;
      result.totals.push_back(read.totals);
      result.controls.push_back(read.control);
    }
    if (rank == 0) result.last_step = groups.counts();
    session->BeginEvaluation();
    for (int64_t round = 0; round < session->Rounds(slots); ++round) {
      session->Evaluate(batch_of(99, round));
    }
    const double evaluated = session->FinishEvaluation().totals.loss_sum;
    const std::lock_guard<std::mutex> lock(mutex);
    if (rank == 0) {
      result.evaluated = evaluated;
      result.arena_bytes = arena.peak();
    }
    for (auto& [array, params] : result.state) {
      for (size_t i = 0; i < params.size(); ++i) {
        for (const Engine::Stretch& stretch : session->engine().Owned(static_cast<int>(i), array)) {
          std::vector<float> values(static_cast<size_t>(stretch.values.cols));
          backend->CopyToHost(session->stream(), values.data(), stretch.values);
          backend->Synchronize(session->stream());
          for (size_t j = 0; j < values.size(); ++j) {
            float& element = params[i][static_cast<size_t>(stretch.begin) + j];
            element = std::isnan(element) ? values[j] : static_cast<float>(nan);
          }
        }
      }
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(run, rank);
  for (std::thread& thread : threads) thread.join();
  return result;
}

}  // namespace tranche
