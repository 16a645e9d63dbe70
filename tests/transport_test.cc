// The ranks' collectives: against naive sums and copies to the bit, over real processes and over
// threads.
#include "zero/transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "transport_ranks.h"

namespace tranche {
namespace {

using ::testing::Each;

constexpr TransportOptions kOptions = {.timeout_seconds = 60};

// A number whose sums depend on their order. Any rank knows every rank's.
float Value(int rank, int64_t i) {
  uint64_t x = (static_cast<uint64_t>(rank) << 40) + static_cast<uint64_t>(i) + 1;
  x *= 0x9e3779b97f4a7c15u;
  x ^= x >> 29;
  x *= 0xbf58476d1ce4e5b9u;
  const float unit = static_cast<float>(x >> 40) * 0x1p-23f - 1;
  return unit * static_cast<float>(1u << ((x >> 8) % 13));
}

template <typename T>
std::vector<T> Values(int rank, int64_t n) {
  std::vector<T> values(n);
  for (int64_t i = 0; i < n; ++i) values[i] = static_cast<T>(Value(rank, i));
  return values;
}

template <typename T>
std::string CompareBits(const std::vector<T>& got, const std::vector<T>& expected,
                        const std::string& what) {
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &expected[i], sizeof(T)) != 0) {
      return absl::StrCat(what, ": element ", i, " of ", got.size(), " is ",
                          static_cast<float>(got[i]), ", not ", static_cast<float>(expected[i]));
    }
  }
  return "";
}

std::string CheckAllGather(Transport& t, int64_t n, bool in_place) {
  const std::vector<float> mine = Values<float>(t.rank(), n);
  std::vector<float> expected;
  for (int r = 0; r < t.size(); ++r) {
    const std::vector<float> part = Values<float>(r, n);
    expected.insert(expected.end(), part.begin(), part.end());
  }
  std::vector<float> out(n * t.size(), -1);
  float* const place = out.data() + t.rank() * n;
  if (in_place) std::copy(mine.begin(), mine.end(), place);
  const absl::Status status =
      t.AllGather(out.data(), in_place ? place : mine.data(), n * int64_t{sizeof(float)});
  if (!status.ok()) return status.ToString();
  return CompareBits(out, expected, absl::StrCat("all_gather of ", n, in_place ? " in place" : ""));
}

template <typename T>
std::string CheckReduceScatter(Transport& t, int64_t n, bool accumulate, bool in_place) {
  std::vector<T> in = Values<T>(t.rank(), n * t.size());
  std::vector<float> before(n);
  if constexpr (sizeof(T) == sizeof(float)) {
    if (in_place) before.assign(in.begin() + t.rank() * n, in.begin() + (t.rank() + 1) * n);
  }
  if (!in_place) before = Values<float>(99, n);
  std::vector<float> expected(n);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t at = t.rank() * n + i;
    float sum = static_cast<float>(static_cast<T>(Value(0, at)));
    for (int r = 1; r < t.size(); ++r) sum += static_cast<float>(static_cast<T>(Value(r, at)));
    expected[i] = accumulate ? before[i] + sum : sum;
  }
  std::vector<float> out = before;
  float* const place = in_place ? reinterpret_cast<float*>(in.data()) + t.rank() * n : out.data();
  const absl::Status status = t.ReduceScatter(place, in.data(), DTypeOf<T>::value, n, accumulate);
  if (!status.ok()) return status.ToString();
  out.assign(place, place + n);
  return CompareBits(out, expected,
                     absl::StrCat("reduce_scatter of ", n, " ", DTypeName(DTypeOf<T>::value),
                                  accumulate ? " accumulated" : "", in_place ? " in place" : ""));
}

std::string CheckBroadcast(Transport& t, int64_t n, int root) {
  std::vector<float> data = Values<float>(t.rank(), n);
  const absl::Status status = t.Broadcast(data.data(), n * int64_t{sizeof(float)}, root);
  if (!status.ok()) return status.ToString();
  return CompareBits(data, Values<float>(root, n), absl::StrCat("broadcast of ", n));
}

// The first fault of all collectives at sizes about every border: one element, vector tails,
// messages sent at once and read by the receiver, one chunk and many.
std::string CheckCollectives(Transport& t) {
  for (const int n : {1, 3, 64, 1000, 4097, 20011, 600000 / t.size() + 1}) {
    for (const bool second : {false, true}) {
      for (const std::string& fault :
           {CheckAllGather(t, n, second), CheckReduceScatter<float>(t, n, second, false),
            CheckReduceScatter<float>(t, n, second, true),
            CheckReduceScatter<BFloat16>(t, n, second, false),
            CheckBroadcast(t, n, second ? t.size() - 1 : 0)}) {
        if (!fault.empty()) return absl::StrCat("rank ", t.rank(), ": ", fault);
      }
    }
    const absl::Status status = t.Barrier();
    if (!status.ok()) return status.ToString();
  }
  return "";
}

class TransportOfRanks : public ::testing::TestWithParam<int> {};

TEST_P(TransportOfRanks, ProcessesGetWhatNaiveLoopsGiveToTheBit) {
  EXPECT_THAT(RunRanks(GetParam(),
                       [](const RankGroup& group) {
                         const auto transport = group.Connect(kOptions);
                         return CheckCollectives(*transport);
                       }),
              Each(""));
}

TEST_P(TransportOfRanks, ThreadsGetWhatNaiveLoopsGiveToTheBit) {
  const auto transports = CreateLocalTransports(GetParam(), kOptions);
  std::vector<std::string> faults(transports.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < transports.size(); ++r) {
    threads.emplace_back([&, r] { faults[r] = CheckCollectives(*transports[r]); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(faults, Each(""));
}

INSTANTIATE_TEST_SUITE_P(Ranks, TransportOfRanks, ::testing::Values(1, 2, 3, 4, 5, 7, 8));

TEST(Transport, ProcessesThatOnlyShareANetworkGetTheSameBits) {
  EXPECT_THAT(RunRanks(3,
                       [](const RankGroup& group) {
                         setenv("UCX_TLS", "tcp,self", 1);
                         const auto transport = group.Connect(kOptions);
                         return CheckCollectives(*transport);
                       }),
              Each(""));
}

// By rank, the host that it says it is on: none, all and some with several ranks, evenly and not,
// and ranks of a host that are not neighbours.
class TransportOfHosts : public ::testing::TestWithParam<const char*> {};

TEST_P(TransportOfHosts, HoweverRanksLieOnHostsTheBitsAreTheSame) {
  const std::string hosts = GetParam();
  EXPECT_THAT(RunRanks(static_cast<int>(hosts.size()),
                       [&](const RankGroup& group) {
                         TransportOptions options = kOptions;
                         options.host = hosts[static_cast<size_t>(group.rank())];
                         const auto transport = group.Connect(options);
                         return CheckCollectives(*transport);
                       }),
              Each(""));
}

INSTANTIATE_TEST_SUITE_P(Hosts, TransportOfHosts,
                         ::testing::Values("ab", "aabb", "aabbcc", "aaabbb", "abb", "aaab", "abbb",
                                           "aaabb", "aabbbcc", "abab", "aabbaa", "aaaabbbb"));

// Ranks in IPC namespaces of their own count as hosts, and messages between hosts are cut.
TEST(Transport, HostsThatOnlyShareANetworkGetTheSameBits) {
  const std::vector<std::string> faults = RunRanks(4, [](const RankGroup& group) -> std::string {
    if (unshare(CLONE_NEWIPC) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWIPC) != 0)
      return "no namespace";
    setenv("UCX_TLS", "tcp,self", 1);
    const auto transport = group.Connect(kOptions);
    return CheckCollectives(*transport);
  });
  if (faults[0] == "no namespace") GTEST_SKIP() << "this user may not make namespaces";
  EXPECT_THAT(faults, Each(""));
}

TEST(Transport, TwoGroupsOfTheSameProcessesDoNotMixTheirMessages) {
  EXPECT_THAT(RunRanks(3,
                       [](const RankGroup& group) -> std::string {
                         const auto first = group.Connect(kOptions);
                         const int turned = (group.rank() + 1) % group.size();
                         std::filesystem::create_directory(group.Path("second"));
                         const auto second = CreateUcxTransport(
                             turned, group.size(),
                             FolderExchange(group.Path("second"), turned, group.size(), 60),
                             kOptions);
                         if (!second.ok()) return second.status().ToString();
                         return absl::StrCat(CheckAllGather(*first, 70000, false),
                                             CheckAllGather(**second, 70000, false),
                                             CheckCollectives(**second), CheckCollectives(*first));
                       }),
              Each(""));
}

}  // namespace
}  // namespace tranche
