// Which rank a process is, from the environments that launchers make and that people make by
// mistake.
#include "launch/rank.h"

#include <map>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launch/hostlist.h"

namespace tranche {
namespace {

using Variables = std::map<std::string, std::string>;
using ::testing::HasSubstr;

absl::StatusOr<RankEnvironment> Read(const Variables& variables) {
  return ReadRankEnvironment([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

Variables With(Variables variables, const Variables& changes) {
  for (const auto& [name, value] : changes) variables[name] = value;
  return variables;
}

const Variables kLauncher = {
    {"TRANCHE_RANK", "2"},       {"TRANCHE_WORLD_SIZE", "4"},       {"TRANCHE_LOCAL_RANK", "2"},
    {"TRANCHE_JOB", "launch 7"}, {"TRANCHE_LOCAL_WORLD_SIZE", "4"}, {"TRANCHE_STORE", "::1:4711"},
    {"TRANCHE_SECRET", "5ec"}};
const Variables kTorch = {
    {"RANK", "3"}, {"WORLD_SIZE", "8"}, {"MASTER_ADDR", "node0"}, {"MASTER_PORT", "29500"}};
// As srun of Slurm 22.05 sets them for the third task of two nodes with two tasks each.
const Variables kSlurm = {{"SLURM_PROCID", "2"},
                          {"SLURM_STEP_ID", "0"},
                          {"SLURM_STEP_NUM_TASKS", "4"},
                          {"SLURM_NTASKS", "16"},
                          {"SLURM_LOCALID", "0"},
                          {"SLURM_NODEID", "1"},
                          {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                          {"SLURM_STEP_NODELIST", "node[3,7-9]"},
                          {"SLURM_JOB_NODELIST", "node[1-9]"},
                          {"SLURM_JOB_ID", "815"}};

TEST(RankEnvironment, NothingSetIsOneRankAlone) {
  const auto rank = Read({{"HOME", "/root"}, {"MASTER_PORT", "29500"}});
  ASSERT_TRUE(rank.ok()) << rank.status();
  EXPECT_EQ(rank->rank, 0);
  EXPECT_EQ(rank->world_size, 1);
  EXPECT_FALSE(rank->HasStore());
}

TEST(RankEnvironment, TheLauncherServesTheRanksThatItStarts) {
  const auto rank = Read(kLauncher);
  ASSERT_TRUE(rank.ok()) << rank.status();
  EXPECT_EQ(rank->rank, 2);
  EXPECT_EQ(rank->world_size, 4);
  EXPECT_EQ(rank->local_rank, 2);
  EXPECT_EQ(rank->local_world_size, 4);
  EXPECT_EQ(rank->store_host, "::1");
  EXPECT_EQ(rank->store_port, 4711);
  EXPECT_TRUE(rank->launcher_serves);
  EXPECT_EQ(rank->job, "launch 7");
  EXPECT_EQ(rank->secret, "5ec");
}

// `srun -n1 tranche launch` and a launcher inside a batch script.
TEST(RankEnvironment, WhatTheLauncherSetsComesBeforeAllElse) {
  Variables variables = With(kLauncher, kTorch);
  variables = With(variables, kSlurm);
  const auto rank = Read(variables);
  ASSERT_TRUE(rank.ok()) << rank.status();
  EXPECT_EQ(rank->rank, 2);
  EXPECT_EQ(rank->world_size, 4);
}

TEST(RankEnvironment, RankZeroServesAtTheMasterAddress) {
  const auto rank = Read(With(kTorch, {{"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}}));
  ASSERT_TRUE(rank.ok()) << rank.status();
  EXPECT_EQ(rank->rank, 3);
  EXPECT_EQ(rank->world_size, 8);
  EXPECT_EQ(rank->local_rank, 1);
  EXPECT_EQ(rank->local_world_size, 2);
  EXPECT_EQ(rank->store_host, "node0");
  EXPECT_EQ(rank->store_port, 29500);
  EXPECT_FALSE(rank->launcher_serves);
  EXPECT_EQ(Read(kTorch)->local_rank, -1);
  EXPECT_EQ(Read(kTorch)->secret, rank->secret);
}

TEST(RankEnvironment, SlurmStepsComeBeforeTheirJob) {
  const auto rank = Read(kSlurm);
  ASSERT_TRUE(rank.ok()) << rank.status();
  EXPECT_EQ(rank->rank, 2);
  EXPECT_EQ(rank->world_size, 4);
  EXPECT_EQ(rank->local_rank, 0);
  EXPECT_EQ(rank->local_world_size, 2);
  EXPECT_EQ(rank->store_host, "node3");
}

// Jobs, steps and restarts that share a host must not meet; tasks of one step must.
TEST(RankEnvironment, SlurmPlaceAndSecretFollowFromTheStep) {
  const auto rank = Read(kSlurm), other_task = Read(With(kSlurm, {{"SLURM_PROCID", "3"}}));
  EXPECT_EQ(rank->store_port, other_task->store_port);
  EXPECT_EQ(rank->secret, other_task->secret);
  EXPECT_EQ(rank->job, other_task->job);
  for (const Variables& change :
       {Variables{{"SLURM_JOB_ID", "816"}}, Variables{{"SLURM_STEP_ID", "1"}},
        Variables{{"SLURM_RESTART_COUNT", "1"}}}) {
    const auto other = Read(With(kSlurm, change));
    EXPECT_NE(rank->store_port, other->store_port);
    EXPECT_NE(rank->secret, other->secret);
    EXPECT_GE(other->store_port, 20000);
    EXPECT_LT(other->store_port, 30000);
  }
  const auto placed = Read(With(kSlurm, {{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "77"}}));
  ASSERT_TRUE(placed.ok()) << placed.status();
  EXPECT_EQ(placed->store_host, "10.0.0.1");
  EXPECT_EQ(placed->store_port, 77);
}

TEST(RankEnvironment, OneTaskOfSlurmIsOneRankAlone) {
  EXPECT_EQ(Read({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}})->world_size, 1);
  EXPECT_EQ(Read({{"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "1"}})->world_size, 1);  // salloc's shell
}

struct Mistake {
  const char* name;
  Variables variables;
  std::string says;
};

class RankMistake : public ::testing::TestWithParam<Mistake> {};

TEST_P(RankMistake, IsRefusedByNamingTheVariable) {
  const auto rank = Read(GetParam().variables);
  ASSERT_FALSE(rank.ok());
  EXPECT_EQ(rank.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(rank.status().message()), HasSubstr(GetParam().says));
}

INSTANTIATE_TEST_SUITE_P(
    All, RankMistake,
    ::testing::Values(
        Mistake{"RankAtSize", With(kTorch, {{"RANK", "8"}}), "RANK=8 is not below WORLD_SIZE=8"},
        Mistake{"NegativeRank", With(kTorch, {{"RANK", "-1"}}), "RANK=\"-1\""},
        Mistake{"NoNumber", With(kTorch, {{"WORLD_SIZE", "eight"}}), "WORLD_SIZE=\"eight\""},
        Mistake{"NoSize", {{"RANK", "0"}}, "not WORLD_SIZE"},
        Mistake{"NoRank", {{"WORLD_SIZE", "2"}}, "not RANK"},
        Mistake{"NoMaster", {{"RANK", "0"}, {"WORLD_SIZE", "2"}}, "not MASTER_ADDR, MASTER_PORT"},
        Mistake{"NoPort", With(kTorch, {{"MASTER_PORT", ""}}), "not MASTER_PORT"},
        Mistake{"WrongPort", With(kTorch, {{"MASTER_PORT", "123456"}}), "MASTER_PORT=\"123456\""},
        Mistake{"LocalAtSize", With(kTorch, {{"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}}),
                "LOCAL_WORLD_SIZE=2 contradicts"},
        Mistake{"LocalAbove", With(kTorch, {{"LOCAL_RANK", "4"}}), "LOCAL_RANK=4 is above RANK=3"},
        Mistake{
            "LoopbackOfManyHosts",
            With(kTorch,
                 {{"MASTER_ADDR", "localhost"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}}),
            "MASTER_ADDR=localhost, but only 2 of 8"},
        Mistake{"TwoWorlds", With(kSlurm, kTorch), "RANK=3 of WORLD_SIZE=8, but Slurm says task 2"},
        Mistake{"HalfALauncher",
                {{"TRANCHE_RANK", "0"}, {"TRANCHE_JOB", "x"}},
                "not TRANCHE_WORLD_SIZE, TRANCHE_LOCAL_RANK"},
        Mistake{"NoStore", With(kLauncher, {{"TRANCHE_STORE", "node0"}}), "is not HOST:PORT"},
        Mistake{"BatchScript", {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}, "with srun"},
        Mistake{"NoHost", With(kSlurm, {{"SLURM_STEP_NODELIST", "node[3"}}), "names no host"}),
    [](const auto& info) { return info.param.name; });

TEST(Hostlist, FirstHostIsTheFirstOfEveryBracket) {
  EXPECT_EQ(FirstHost("node0"), "node0");
  EXPECT_EQ(FirstHost("node0,node1"), "node0");
  EXPECT_EQ(FirstHost("node[0-3,7],gpu[01-03]"), "node0");
  EXPECT_EQ(FirstHost("gpu[007,009-012]"), "gpu007");
  EXPECT_EQ(FirstHost("rack[2-3]n[01-04]-ib,x"), "rack2n01-ib");
  EXPECT_EQ(FirstHost("a.b-c.example[5]"), "a.b-c.example5");
  for (const char* wrong : {"", ",node1", "node[", "node[]", "node]", "node[a-b]", "node[-3]"}) {
    EXPECT_EQ(FirstHost(wrong), std::nullopt) << wrong;
  }
}

TEST(Hostlist, CountsPerNodeAreRunLengths) {
  EXPECT_EQ(NthCount("2(x3),1", 0), 2);
  EXPECT_EQ(NthCount("2(x3),1", 2), 2);
  EXPECT_EQ(NthCount("2(x3),1", 3), 1);
  EXPECT_EQ(NthCount("4", 0), 4);
  for (const char* wrong : {"", "2(x3", "(x3)", "2(x)", "-1", "0(x9)", "2(x-9)"}) {
    EXPECT_EQ(NthCount(wrong, 0), std::nullopt) << wrong;
  }
  EXPECT_EQ(NthCount("2(x3),1", 4), std::nullopt);
}

}  // namespace
}  // namespace tranche
