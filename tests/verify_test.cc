// The reference's parity folders: ten architectures, every quantity, every recompute level.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/file.h"
#include "trainer/parity.h"
#include "trainer/version.h"

namespace tranche {
namespace {

std::string ParityFolder() {
  const char* shared = std::getenv("TRANCHE_SHARED");
  return JoinPath(shared != nullptr ? shared : TRANCHE_SOURCE_DIR "/../shared", "fixtures/parity");
}

std::vector<std::string> Folders() {
  std::vector<std::string> folders;
  const auto names = ListDir(ParityFolder());
  if (!names.ok()) return {""};
  for (const std::string& name : *names) {
    if (IsDirectory(JoinPath(ParityFolder(), name))) folders.push_back(name);
  }
  return folders;
}

// Layer norm's sums along a row have as many parts as a vector has lanes, and ten steps of AdamW
// amplify the rounding of gradients near its eps. The folders' own tolerance holds where it was
// measured, with AVX2 (and `tranche verify` knows no other); elsewhere the norms may drift further.
double NormFactor() { return ChosenInstructionSet() == "AVX2" ? 1 : 20; }

class ParityTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam().empty()) GTEST_SKIP() << ParityFolder() << " is not there";
  }
  static void ExpectInside(const ParityOptions& options) {
    const auto parity = ReadParityCase(JoinPath(ParityFolder(), GetParam()));
    ASSERT_TRUE(parity.ok()) << parity.status();
    const auto results = RunParity(*parity, options);
    ASSERT_TRUE(results.ok()) << results.status();
    for (const ParityResult& result : *results) {
      const double factor = result.quantity == "gradient norms" ? NormFactor() : 1;
      EXPECT_LE(result.error, factor * result.tolerance)
          << result.quantity << " at " << result.where;
      EXPECT_GT(result.tolerance, 0) << result.quantity << " was compared with nothing";
    }
    EXPECT_EQ(results->size(), options.dtype == DType::kFloat32 ? 6u : 2u);
  }
};

INSTANTIATE_TEST_SUITE_P(Folders, ParityTest, testing::ValuesIn(Folders()),
                         [](const auto& info) { return info.param.empty() ? "none" : info.param; });

TEST_P(ParityTest, EverythingInsideToleranceWithEverythingSaved) { ExpectInside({}); }
TEST_P(ParityTest, EverythingInsideToleranceWithSelectiveRecompute) {
  ExpectInside({.recompute = Recompute::kSelective});
}
TEST_P(ParityTest, EverythingInsideToleranceWithFullRecompute) {
  ExpectInside({.recompute = Recompute::kFull});
}
TEST_P(ParityTest, LossesInBf16StayNearThoseOfTheReference) {
  for (const Recompute level : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    ExpectInside({.dtype = DType::kBFloat16, .recompute = level});
  }
}

// A comparison that cannot fail proves nothing: one weight moved by a hair must show.
TEST_P(ParityTest, AChangedExpectationIsFoundInEveryQuantity) {
  auto parity = ReadParityCase(JoinPath(ParityFolder(), GetParam()));
  ASSERT_TRUE(parity.ok()) << parity.status();
  const std::string tensor = parity->specs.back().parts[0].name;
  parity->expected["loss"][0] += 1e-3f;
  parity->expected["losses"].back() += 1e-3f;
  parity->expected["grad_norms"][0] *= 1.001f;
  parity->expected["logits"][static_cast<size_t>(parity->row_in_expected.back()) *
                             static_cast<size_t>(parity->config.vocab_size)] += 1e-3f;
  parity->expected["grad." + tensor][0] += 1.0f;
  parity->expected["after." + tensor][0] += 1.0f;
  const auto results = RunParity(*parity, {});
  ASSERT_TRUE(results.ok()) << results.status();
  for (const ParityResult& result : *results) EXPECT_FALSE(result.passed()) << result.quantity;
}

TEST(ParityCaseTest, AFolderThatIsNoneIsRefusedByName) {
  const auto absent = ReadParityCase("/nowhere/at/all");
  ASSERT_FALSE(absent.ok());
  EXPECT_THAT(std::string(absent.status().message()), testing::HasSubstr("/nowhere/at/all"));
}

}  // namespace
}  // namespace tranche
