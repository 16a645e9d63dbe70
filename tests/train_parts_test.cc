// The engine's layout and update, checkpoint files, and the session, each against its own truth.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "count_allocations.h"
#include "data_test_files.h"
#include "gtest/gtest.h"
#include "model/safetensors.h"
#include "tensor/plan_backend.h"
#include "trainer/checkpoint.h"
#include "trainer/rehearsal.h"
#include "trainer/session.h"
#include "trainer/state_file.h"
#include "trainer/weights.h"
#include "zero/group_layout.h"

namespace tranche {
namespace {

using ::testing::HasSubstr;

RunSetup SmallSetup(const std::string& precision = "fp32", const std::string& level = "none",
                    const std::vector<ParamGroup>& groups = {}) {
  Recipe recipe;
  recipe.model.init = "random";
  recipe.model.config = {
      {"model_type", "phi"},          {"vocab_size", 61},       {"hidden_size", 24},
      {"intermediate_size", 40},      {"num_hidden_layers", 3}, {"num_attention_heads", 2},
      {"max_position_embeddings", 16}};
  recipe.data.sequence_length = 16;
  recipe.data.sources = {{"none", std::nullopt}};
  recipe.training.max_steps = 4;
  recipe.training.global_batch_size = 4;
  recipe.training.micro_batch_size = 2;
  recipe.training.precision = precision;
  recipe.training.activation_checkpointing = level;
  recipe.optimizer.lr = 1e-2;
  recipe.optimizer.weight_decay = 0.1;
  recipe.optimizer.param_groups = groups;
  auto setup = SetUpRun(recipe, /*with_tokenizer=*/false);
  EXPECT_TRUE(setup.ok()) << setup.status();
  return *std::move(setup);
}

// A session on real memory of exactly the planned size.
struct Machine {
  explicit Machine(const RunSetup& run_setup, bool training = true) : setup(run_setup) {
    plan = *Rehearse(setup, training, 2);
    arena = std::make_unique<Arena>(*Arena::OnHost(plan.peak_bytes));
    backend = CreateCpuBackend(2);
    session = *Session::Create(setup, training, *backend, *arena);
    EXPECT_TRUE(SetFirstWeights(setup, session->engine(), *backend, session->stream()).ok());
  }
  std::vector<float> Read(Tensor tensor) {
    std::vector<float> values(static_cast<size_t>(tensor.size()));
    backend->CopyToHost(session->stream(), values.data(), tensor);
    backend->Synchronize(session->stream());
    return values;
  }
  void Step(int64_t step, MicroBatch batch) {
    const StepScale scale = {.predicted_tokens = batch.num_predicted(), .sequences = 2};
    session->BeginStep();
    session->ForwardBackward(std::move(batch), scale);
    session->FinishStep(1e-2f, step, static_cast<int>(step % Session::kInFlight));
  }
  const RunSetup& setup;
  Rehearsal plan;
  std::unique_ptr<Arena> arena;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Session> session;
};

TEST(Engine, ParametersLieOnLinesDecayedOnesFirstAndNothingOverlaps) {
  const RunSetup setup = SmallSetup();
  const Layout layout = BuildLayout(setup.specs);
  ASSERT_EQ(layout.groups.size(), 5u);
  std::vector<bool> seen(setup.specs.size());
  for (const GroupLayout& group : layout.groups) {
    int64_t end = 0;
    bool decays = true;
    for (const int param : group.params) {
      const auto index = static_cast<size_t>(param);
      EXPECT_EQ(layout.offsets[index] % kLineElements, 0);
      EXPECT_GE(layout.offsets[index], end);
      end = layout.offsets[index] + setup.specs[index].elements();
      EXPECT_TRUE(decays || !setup.specs[index].decay) << setup.specs[index].name;
      decays = setup.specs[index].decay;
      EXPECT_EQ(decays, setup.specs[index].rows > 1);
      EXPECT_FALSE(seen[index]);
      seen[index] = true;
    }
    EXPECT_LE(end, group.elements);
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), true), static_cast<int64_t>(seen.size()));
}

struct Rates {
  double lr_scale = 1, weight_decay = 0.1;
};

// One step against the textbook in double, `rates` telling how each matrix is updated; vectors
// decay never.
void ExpectTextbookUpdate(const RunSetup& setup,
                          const std::function<Rates(const std::string&)>& rates) {
  Machine machine(setup);
  Engine& engine = machine.session->engine();
  std::vector<std::vector<float>> before;
  for (size_t i = 0; i < setup.specs.size(); ++i) {
    before.push_back(machine.Read(engine.Weight(static_cast<int>(i))));
  }
  machine.Step(1, TypicalBatch(setup));
  const Readback read = machine.session->Await(1);
  double squares = 0;
  std::vector<std::vector<float>> gradients;
  for (size_t i = 0; i < setup.specs.size(); ++i) {
    gradients.push_back(machine.Read(engine.Gradient(static_cast<int>(i))));
    for (const float g : gradients.back()) squares += double{g} * g;
  }
  const double norm = std::sqrt(squares);
  EXPECT_NEAR(read.control[0], norm, 1e-6 * norm);
  EXPECT_EQ(read.control[2], 1);
  const double factor = std::min(1.0, 1.0 / (norm + 1e-6));
  for (size_t i = 0; i < setup.specs.size(); ++i) {
    const std::string& name = setup.specs[i].name;
    const std::vector<float> after = machine.Read(engine.Weight(static_cast<int>(i)));
    const Rates own = rates(name);
    const double lr = 1e-2 * own.lr_scale, decay = setup.specs[i].rows > 1 ? own.weight_decay : 0;
    if (lr == 0) {
      EXPECT_EQ(after, before[i]) << name;
    }
    for (size_t j = 0; j < after.size(); ++j) {
      const double g = gradients[i][j] * factor;
      const double m = 0.1 * g, v = 0.05 * g * g;
      double p = before[i][j] * (1 - lr * decay);
      p -= lr / 0.1 * m / (std::sqrt(v) / std::sqrt(0.05) + 1e-8);
      ASSERT_NEAR(after[j], p, 2e-6) << name << ' ' << j;
    }
  }
}

TEST(Engine, NormClippingAndUpdateAreTheTextbooksInDouble) {
  ExpectTextbookUpdate(SmallSetup(), [](const std::string&) { return Rates{}; });
}

TEST(Engine, ParameterGroupsHaveTheirOwnRateAndDecayAndTheLaterTableDecides) {
  const std::vector<ParamGroup> groups = {{"layers.*", 0.25, 7.0},
                                          {"*.bias", 2.0, 0.9},
                                          {"layers.1.qkv.weight", std::nullopt, 0.0},
                                          {"embeddings.*", 0.0, std::nullopt}};
  ExpectTextbookUpdate(SmallSetup("fp32", "none", groups), [](const std::string& name) {
    Rates rates;
    if (name.rfind("layers.", 0) == 0) rates = {0.25, 7.0};
    if (name == "layers.1.qkv.weight") rates.weight_decay = 0;
    if (name.size() > 5 && name.substr(name.size() - 5) == ".bias") rates.lr_scale = 2;
    if (name.rfind("embeddings.", 0) == 0) rates.lr_scale = 0;
    return rates;
  });
}

TEST(Session, UsesExactlyThePlannedBytesAtEveryRecomputeLevelAndType) {
  for (const std::string precision : {"fp32", "bf16"}) {
    int64_t last = INT64_MAX;
    for (const std::string level : {"none", "selective", "full"}) {
      const RunSetup setup = SmallSetup(precision, level);
      Machine machine(setup);
      EXPECT_EQ(machine.arena->peak(), machine.plan.peak_bytes);
      EXPECT_LT(machine.plan.peak_bytes, last) << level;
      last = machine.plan.peak_bytes;
      int64_t sum = 0;
      for (const int64_t bytes : machine.plan.bytes_by_kind) sum += bytes;
      EXPECT_EQ(sum, machine.plan.peak_bytes);
    }
  }
}

TEST(Session, AStepAfterTheFirstAllocatesNothing) {
  const RunSetup setup = SmallSetup();
  Machine machine(setup);
  for (int64_t step = 1; step <= 4; ++step) machine.Step(step, TypicalBatch(setup));
  machine.backend->Synchronize(machine.session->stream());
  MicroBatch batch = TypicalBatch(setup);
  const int64_t before = allocations.load();
  machine.Step(5, std::move(batch));
  machine.session->Await(1);
  EXPECT_EQ(allocations.load(), before);
}

// Fails the n-th write.
class FailingFileSystem : public FileSystem {
 public:
  explicit FailingFileSystem(int64_t writes) : writes_left(writes) {}
  absl::StatusOr<std::unique_ptr<AtomicFile>> Create(const std::string& path) override {
    auto file = FileSystem::Real().Create(path);
    if (!file.ok()) return file.status();
    return std::make_unique<File>(*std::move(file), writes_left);
  }
  int64_t writes_left;

 private:
  class File : public AtomicFile {
   public:
    File(std::unique_ptr<AtomicFile> file, int64_t& left) : file_(std::move(file)), left_(left) {}
    absl::Status Append(absl::string_view bytes) override {
      if (left_-- <= 0) return absl::ResourceExhaustedError("No space left on device");
      return file_->Append(bytes);
    }
    absl::Status WriteAt(int64_t offset, absl::string_view bytes) override {
      return file_->WriteAt(offset, bytes);
    }
    absl::Status Commit() override {
      if (left_-- <= 0) return absl::ResourceExhaustedError("No space left on device");
      return file_->Commit();
    }
    int64_t size() const override { return file_->size(); }

   private:
    std::unique_ptr<AtomicFile> file_;
    int64_t& left_;
  };
};

CheckpointContents ContentsAt(int64_t step) {
  CheckpointContents contents;
  contents.manifest.step = step;
  contents.manifest.global_batch_size = 4;
  contents.manifest.precision = "fp32";
  contents.manifest.data_fingerprint = "abc";
  contents.manifest.schedule_name = "cosine";
  contents.manifest.schedule = {ScheduleKind::kCosine, 0.1 + 0.2, 10, 3, 1.0 / 3, 0.1};
  contents.recipe = "[run]\n";
  contents.config = "{}\n";
  return contents;
}

TEST(Checkpoint, HoldsTheBytesThatWerePredictedAndGivesEveryArrayBack) {
  const RunSetup setup = SmallSetup();
  Machine machine(setup), other(setup);
  machine.Step(1, TypicalBatch(setup));
  machine.session->Await(1);
  TempDir dir;
  const CheckpointContents contents = ContentsAt(7);
  const auto path =
      SaveCheckpoint(FileSystem::Real(), dir.path(), contents, machine.session->engine(),
                     *machine.backend, machine.session->stream(), *World::Alone());
  ASSERT_TRUE(path.ok()) << path.status();
  const auto manifest = VerifyCheckpoint(*path);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->bytes(),
            CheckpointBytes(setup.specs, *CreateAdamW(setup.engine.update), contents));
  EXPECT_EQ(manifest->step, 7);
  EXPECT_EQ(manifest->schedule.peak, 0.1 + 0.2);
  EXPECT_EQ(manifest->schedule.min_ratio, 1.0 / 3);
  ASSERT_TRUE(
      LoadCheckpoint(*path, other.session->engine(), *other.backend, other.session->stream()).ok());
  for (const std::string array : {"master", "m", "v"}) {
    for (size_t i = 0; i < setup.specs.size(); ++i) {
      const int param = static_cast<int>(i);
      EXPECT_EQ(machine.Read(machine.session->engine().State(param, array)),
                other.Read(other.session->engine().State(param, array)))
          << array << ' ' << setup.specs[i].name;
    }
  }
}

TEST(Checkpoint, AWriteThatFailsAnywhereLeavesTheFolderAsItWas) {
  const RunSetup setup = SmallSetup();
  Machine machine(setup);
  TempDir dir;
  const auto save = [&](FileSystem& fs, int64_t step) {
    return SaveCheckpoint(fs, dir.path(), ContentsAt(step), machine.session->engine(),
                          *machine.backend, machine.session->stream(), *World::Alone())
        .status();
  };
  ASSERT_TRUE(save(FileSystem::Real(), 1).ok());
  int64_t failures = 0;
  for (int64_t writes = 0;; ++writes) {
    FailingFileSystem fs(writes);
    const absl::Status status = save(fs, 2);
    if (status.ok()) break;
    ++failures;
    EXPECT_THAT(std::string(status.message()), HasSubstr("earlier checkpoints are untouched"));
    EXPECT_THAT(*ListDir(dir.path()), ::testing::ElementsAre("step-1"));
    EXPECT_TRUE(VerifyCheckpoint(dir.File("step-1")).ok());
  }
  EXPECT_GT(failures, 20);
  EXPECT_THAT(ListCheckpoints(dir.path()), ::testing::ElementsAre(2, 1));
}

TEST(Checkpoint, PiecesOfAnyCutMakeTheWholeAndAMissingPieceIsNamed) {
  const RunSetup setup = SmallSetup();
  Machine machine(setup), other(setup);
  TempDir dir;
  Engine& engine = machine.session->engine();
  const auto write = [&](int part, bool leave_one_out) {
    std::vector<TensorInfo> infos;
    std::map<std::string, std::string> bytes;
    for (size_t i = 0; i < setup.specs.size(); ++i) {
      const std::vector<float> values = machine.Read(engine.Weight(static_cast<int>(i)));
      const auto n = static_cast<int64_t>(values.size()), cut = n / 3;
      const int64_t begin = part == 0 ? 0 : cut, end = part == 0 ? cut : n;
      if (leave_one_out && i == 4) continue;
      const std::string name = absl::StrCat(setup.specs[i].name, "@", begin);
      infos.push_back({name, TensorType::kF32, {end - begin}});
      bytes[name].assign(reinterpret_cast<const char*>(values.data() + begin),
                         static_cast<size_t>(end - begin) * 4);
    }
    const std::string path = dir.File(absl::StrCat("master-", part, ".safetensors"));
    auto writer = *SafetensorsWriter::Create(FileSystem::Real(), path, infos, {});
    for (const TensorInfo& info : writer.order()) {
      EXPECT_TRUE(writer.Append(bytes[info.name]).ok());
    }
    EXPECT_TRUE(writer.Commit().ok());
    return path;
  };
  const std::vector<std::string> files = {write(0, false), write(1, false)};
  other.Step(1, TypicalBatch(setup));
  ASSERT_TRUE(ReadStateFiles(files, "two", "master", other.session->engine(), *other.backend,
                             other.session->stream())
                  .ok());
  for (size_t i = 0; i < setup.specs.size(); ++i) {
    const int param = static_cast<int>(i);
    EXPECT_EQ(machine.Read(engine.Weight(param)),
              other.Read(other.session->engine().Weight(param)));
  }
  const absl::Status missing =
      ReadStateFiles({files[0], write(1, true)}, "two", "master", other.session->engine(),
                     *other.backend, other.session->stream());
  EXPECT_THAT(std::string(missing.message()),
              HasSubstr(absl::StrCat("no file holds master of ", setup.specs[4].name,
                                     " from element ", setup.specs[4].elements() / 3)));
}

TEST(Checkpoint, AManifestWithAnyByteChangedOrCutIsRefused) {
  const std::string text = PrintManifest(ContentsAt(7).manifest);
  ASSERT_TRUE(ParseManifest(text, "m").ok());
  for (size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    EXPECT_FALSE(ParseManifest(changed, "m").ok()) << i;
    EXPECT_FALSE(ParseManifest(text.substr(0, i), "m").ok()) << i;
  }
}

}  // namespace
}  // namespace tranche
