// The main job through the real program: a pretrained model is continued on another language, gets
// better at it, and leaves as a Hugging Face folder that transformers reads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/json.h"
#include "nlohmann/json.hpp"

namespace tranche {
namespace {

std::string Shared() {
  const char* given = std::getenv("TRANCHE_SHARED");
  return given != nullptr ? given : TRANCHE_SOURCE_DIR "/../shared";
}

struct Outcome {
  int exit_code;
  std::string output;  // stdout and stderr
};

Outcome Shell(const std::string& command) {
  std::FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  Outcome outcome{-1, ""};
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof(buffer), pipe))
    outcome.output.append(buffer, n);
  outcome.exit_code = WEXITSTATUS(::pclose(pipe));
  return outcome;
}

Outcome Tranche(const std::string& arguments) {
  return Shell(absl::StrCat(TRANCHE_BINARY, " ", arguments));
}

double EvalLoss(const std::string& model, const std::string& data) {
  const Outcome outcome = Tranche(
      absl::StrCat("eval ", model, " --data ", data, " --set data.sequence_length=128 --json"));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  const size_t brace = outcome.output.find('{');
  EXPECT_NE(brace, std::string::npos) << outcome.output;
  const auto line =
      ParseJson(outcome.output.substr(brace, outcome.output.find('\n', brace) - brace), "eval");
  EXPECT_TRUE(line.ok()) << line.status();
  return line.ok() ? line->value("loss", 0.0) : 0.0;
}

TEST(Pipeline, ContinuesAPretrainedModelOnDutchAndExportsIt) {
  const std::string model = Shared() + "/fixtures/stories260K/hf";
  const std::string text = Shared() + "/fixtures/text/nl.txt";
  if (!FileExists(model) || !FileExists(text)) GTEST_SKIP() << "no fixtures at " << Shared();
  const std::string work = testing::TempDir() + "/pipeline";
  std::filesystem::remove_all(work);
  std::filesystem::create_directories(work);

  const Outcome tokenized =
      Tranche(absl::StrCat("tokenize ", text, " --tokenizer ", model,
                           " --add-bos --validation-fraction 0.1 --output ", work, "/nl"));
  ASSERT_EQ(tokenized.exit_code, 0) << tokenized.output;

  std::ofstream(work + "/recipe.toml")
      << "[run]\noutput_dir = \"" << work << "/run\"\n[model]\npath = \"" << model
      << "\"\n[data]\nsequence_length = 128\nsources = [{path = \"" << work
      << "/nl-train\"}]\n[training]\nmax_steps = 60\nglobal_batch_size = 8\n"
      << "[optimizer]\nlr = 2e-3\n[lr_scheduler]\nname = \"cosine\"\nwarmup_steps = 5\n";
  const double before = EvalLoss(model, work + "/nl-valid");
  const Outcome trained = Tranche(absl::StrCat("train ", work, "/recipe.toml"));
  ASSERT_EQ(trained.exit_code, 0) << trained.output;
  const double after = EvalLoss(work + "/run", work + "/nl-valid");
  // The model has never seen Dutch: it starts above 5 nats per token, and 60 steps bring it
  // under 4.
  EXPECT_GT(before, 5);
  EXPECT_LT(after, before - 1.5);

  const Outcome exported = Tranche(absl::StrCat("export ", work, "/run ", work, "/model"));
  ASSERT_EQ(exported.exit_code, 0) << exported.output;
  EXPECT_NEAR(EvalLoss(work + "/model", work + "/nl-valid"), after, 1e-9);

  const char* python = std::getenv("TRANCHE_PYTHON");
  const std::string interpreter = python != nullptr ? python : "python3";
  if (Shell(interpreter + " -c 'import torch, transformers'").exit_code != 0) {
    GTEST_SKIP() << interpreter << " has no torch and transformers: the export was not tried there";
  }
  const Outcome loaded = Shell(absl::StrCat(
      interpreter,
      " -c \"import torch, transformers as t; m, i = t.AutoModelForCausalLM.from_pretrained('",
      work,
      "/model', output_loading_info=True); assert not i['missing_keys'] and not "
      "i['unexpected_keys'], i; ",
      "ids = torch.tensor([[1, 403, 407, 261]]); print('loss', float(m(input_ids=ids, "
      "labels=ids).loss))\""));
  EXPECT_EQ(loaded.exit_code, 0) << loaded.output;
}

}  // namespace
}  // namespace tranche
