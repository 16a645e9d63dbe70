#include "zero/hosts.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"

namespace tranche {
namespace {

// What a link carries in the time that a message takes to reach the next host: 50 us at 10 Gbit/s.
constexpr double kBytesPerHop = 64 << 10;

// Calls with every other rank, beginning after `rank`: so that no rank is everybody's first.
template <class Visit>
void ForOthers(const Hosts& hosts, int rank, const Visit& visit) {
  for (int d = 1; d < hosts.ranks(); ++d) visit((rank + d) % hosts.ranks());
}

}  // namespace

Hosts Hosts::Of(absl::Span<const std::string> identities) {
  std::vector<int> begins;
  for (size_t rank = 0; rank < identities.size(); ++rank) {
    if (rank == 0 || identities[rank] != identities[rank - 1]) {
      begins.push_back(static_cast<int>(rank));
    }
  }
  begins.push_back(static_cast<int>(identities.size()));
  return Hosts(std::move(begins));
}

int Hosts::HostOf(int rank) const {
  const auto after = std::upper_bound(begins_.begin(), begins_.end(), rank);
  return static_cast<int>(after - begins_.begin()) - 1;
}

absl::StatusOr<std::string> HostIdentity() {
  TRANCHE_ASSIGN_OR_RETURN(std::string identity, ReadFile("/proc/sys/kernel/random/boot_id"));
  for (const char* space : {"ipc", "pid", "net"}) {
    std::array<char, 64> name = {};
    const std::string path = absl::StrCat("/proc/self/ns/", space);
    if (readlink(path.c_str(), name.data(), name.size() - 1) < 0) {
      return ErrnoStatus(path, "reading a namespace");
    }
    identity += name.data();
  }
  return identity;
}

GatherWays WaysOfGather(const Hosts& hosts, int rank) {
  const int host = hosts.HostOf(rank);
  GatherWays ways;
  ForOthers(hosts, rank, [&](int peer) {
    if (hosts.Relay(rank, hosts.HostOf(peer)) == peer || hosts.HostOf(peer) == host) {
      ways.sends.push_back({peer, rank});
    }
  });
  ForOthers(hosts, rank, [&](int part) {
    const int relay = hosts.Relay(part, host);
    if (hosts.HostOf(part) == host || relay == rank) {
      ways.receives.push_back({part, part});
    } else {
      ways.receives.push_back({relay, part});
    }
    if (hosts.HostOf(part) == host || relay != rank) return;
    ForOthers(hosts, rank, [&](int peer) {
      if (hosts.HostOf(peer) == host) ways.sends.push_back({peer, part});
    });
  });
  return ways;
}

SumWays WaysOfSums(const Hosts& hosts, int rank) {
  const int host = hosts.HostOf(rank);
  SumWays ways;
  ForOthers(hosts, rank, [&](int part) {
    const int relay = hosts.Relay(part, host);
    if (relay != rank) ways.sends.push_back({relay, part});
  });
  for (int part = 0; part < hosts.ranks(); ++part) {
    if (hosts.Relay(part, host) != rank) continue;
    SumWays::Sum sum = {.part = part, .terms = {}, .to = part};
    if (host > 0) sum.terms.push_back({hosts.Relay(part, host - 1), part});
    for (int peer = hosts.begin(host); peer < hosts.end(host); ++peer) {
      sum.terms.push_back({peer, part});
    }
    if (host + 1 < hosts.count()) sum.to = hosts.Relay(part, host + 1);
    ways.sums.push_back(std::move(sum));
  }
  // The whole sum of its own part, which ends on the last host.
  const int last = hosts.Relay(rank, hosts.count() - 1);
  if (last != rank) ways.sums.push_back({.part = rank, .terms = {{last, rank}}, .to = rank});
  return ways;
}

bool SumsAreFasterThroughRelays(const Hosts& hosts, int64_t bytes) {
  // Shares of `bytes` on the busiest link. A host between the first and the last takes in all sums
  // so far, and then the results of its own parts.
  double direct = 0, relayed = 1;
  for (int host = 0; host < hosts.count(); ++host) {
    const double here = hosts.end(host) - hosts.begin(host);
    direct = std::max(direct, here * (1 - here / hosts.ranks()));
    if (host > 0 && host + 1 < hosts.count()) relayed = std::max(relayed, 1 + here / hosts.ranks());
  }
  return (direct - relayed) * static_cast<double>(bytes) > kBytesPerHop * (hosts.count() - 1);
}

}  // namespace tranche
