// The ways of collectives through hosts, without any message: what arrives where, how often a link
// is crossed, and in which order is added up.
#include "zero/hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

namespace tranche {
namespace {

using ::testing::SizeIs;

Hosts HostsOf(const std::string& letters) {
  std::vector<std::string> identities;
  for (const char letter : letters) identities.emplace_back(1, letter);
  return Hosts::Of(identities);
}

class HostWays : public ::testing::TestWithParam<const char*> {
 protected:
  const Hosts hosts_ = HostsOf(GetParam());
};

TEST_P(HostWays, AGatherBringsEveryPartOnceToEveryRankAndOnceToEveryOtherHost) {
  std::map<std::pair<int, int>, int> crossings;  // of a part into a host
  std::set<std::vector<int>> sent;               // {from, to, part}
  for (int rank = 0; rank < hosts_.ranks(); ++rank) {
    for (const Way& way : WaysOfGather(hosts_, rank).sends) {
      EXPECT_TRUE(sent.insert({rank, way.peer, way.part}).second);
      if (hosts_.HostOf(rank) == hosts_.HostOf(way.peer)) continue;
      ++crossings[{way.part, hosts_.HostOf(way.peer)}];
    }
  }
  for (int rank = 0; rank < hosts_.ranks(); ++rank) {
    const std::vector<Way> receives = WaysOfGather(hosts_, rank).receives;
    ASSERT_THAT(receives, SizeIs(hosts_.ranks() - 1));
    for (size_t i = 0; i < receives.size(); ++i) {
      EXPECT_EQ(receives[i].part, (rank + 1 + static_cast<int>(i)) % hosts_.ranks());
      EXPECT_EQ(sent.erase({receives[i].peer, rank, receives[i].part}), 1u);
    }
  }
  EXPECT_THAT(sent, SizeIs(0)) << "sent, and not received";
  EXPECT_THAT(crossings, SizeIs(hosts_.ranks() * (hosts_.count() - 1)));
  for (const auto& [way, times] : crossings) EXPECT_EQ(times, 1);
}

// Sums as the lists of ranks whose values are in them.
TEST_P(HostWays, SumsAreTakenInTheOrderOfRanksAndLeaveEveryHostAtMostOnce) {
  std::map<std::vector<int>, std::vector<int>> messages;  // {from, to, part}
  std::map<int, std::vector<int>> results;                // by part
  int crossings = 0;
  for (int rank = 0; rank < hosts_.ranks(); ++rank) {
    for (const Way& way : WaysOfSums(hosts_, rank).sends) {
      EXPECT_EQ(hosts_.HostOf(rank), hosts_.HostOf(way.peer));
      messages[{rank, way.peer, way.part}] = {rank};
    }
  }
  // Ranks in ascending order have what a sum needs of the host before; results come last.
  for (const bool last : {false, true}) {
    for (int rank = 0; rank < hosts_.ranks(); ++rank) {
      const SumWays ways = WaysOfSums(hosts_, rank);
      for (const SumWays::Sum& sum : ways.sums) {
        const bool from_last_host = sum.terms.size() == 1 && sum.terms[0].peer != rank &&
                                    hosts_.HostOf(sum.terms[0].peer) > hosts_.HostOf(rank);
        if (from_last_host != last) continue;
        std::vector<int> value;
        for (const Way& term : sum.terms) {
          std::vector<int> more = {rank};
          if (term.peer != rank) {
            const auto message = messages.find({term.peer, rank, sum.part});
            ASSERT_NE(message, messages.end()) << rank << " waits for " << term.peer;
            more = message->second;
            messages.erase(message);
          }
          value.insert(value.end(), more.begin(), more.end());
        }
        if (sum.to == rank) {
          EXPECT_EQ(sum.part, rank);
          EXPECT_TRUE(results.emplace(rank, value).second);
        } else {
          crossings += hosts_.HostOf(sum.to) != hosts_.HostOf(rank) ? 1 : 0;
          messages[{rank, sum.to, sum.part}] = value;
        }
      }
    }
  }
  EXPECT_THAT(messages, SizeIs(0)) << "sent, and not received";
  ASSERT_THAT(results, SizeIs(hosts_.ranks()));
  std::vector<int> all;
  for (int rank = 0; rank < hosts_.ranks(); ++rank) all.push_back(rank);
  for (const auto& [part, value] : results) EXPECT_EQ(value, all) << "part " << part;
  EXPECT_LE(crossings, hosts_.ranks() * hosts_.count());
}

INSTANTIATE_TEST_SUITE_P(Hosts, HostWays,
                         ::testing::Values("a", "aaaaa", "ab", "abc", "aabb", "aabbcc", "abbb",
                                           "aaab", "aaabb", "aabbbcc", "abab",
                                           "aaaaaaaabbbbbbbbcccccccc"));

TEST(Hosts, SumsGoThroughRelaysOnlyWhereThatCrossesTheBusiestLinkLess) {
  const int64_t large = int64_t{64} << 20, small = int64_t{32} << 10;
  for (const char* hosts : {"aaaa", "abcd", "ab", "aabb", "aabbcc", "aaaab"}) {
    EXPECT_FALSE(SumsAreFasterThroughRelays(HostsOf(hosts), large)) << hosts;
  }
  for (const char* hosts : {"aaabbb", "aabbccdd", "aaaabbbb", "aaabb", "aaabbbccc"}) {
    EXPECT_TRUE(SumsAreFasterThroughRelays(HostsOf(hosts), large)) << hosts;
    EXPECT_FALSE(SumsAreFasterThroughRelays(HostsOf(hosts), small)) << hosts;
  }
}

}  // namespace
}  // namespace tranche
