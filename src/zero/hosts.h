// The hosts of a group's ranks, and the ways of its collectives through them. What many ranks of a
// host need crosses to it once and is passed on there; what they add up crosses from it once.
//
// Part r of an array, rank r's own, has a *relay* on every host: the rank by which the part comes
// in and goes out there. On r's host that is r itself; elsewhere the ranks of a host share the
// parts evenly.
//
// Of an array of n bytes, what crosses the busiest host's link in its busier direction, with k
// ranks on each of h hosts:
//
//                    every rank for itself   through relays
//   all-gather       k · n (h-1)/h           n (h-1)/h
//   reduce-scatter   k · n (h-1)/h           n (h+1)/h, and n with two hosts
//
// A sum goes from host to host in the order of ranks, and then to its owner: the same sum to the
// bit as every rank's own. (Two levels of sums, in hosts and then of hosts, would move as little as
// the gather, and give other bits for every way in which ranks lie on hosts.)
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tranche {

class Hosts {
 public:
  // All `ranks` on one.
  static Hosts One(int ranks) { return Hosts({0, ranks}); }
  // By rank, equal where two share a host. Ranks of a host that are not neighbours are taken to be
  // on different ones.
  static Hosts Of(absl::Span<const std::string> identities);

  int ranks() const { return begins_.back(); }
  int count() const { return static_cast<int>(begins_.size()) - 1; }
  int begin(int host) const { return begins_[static_cast<size_t>(host)]; }
  int end(int host) const { return begins_[static_cast<size_t>(host) + 1]; }
  int HostOf(int rank) const;
  int Relay(int part, int host) const {
    return begin(host) + (part - begin(HostOf(part))) % (end(host) - begin(host));
  }

 private:
  explicit Hosts(std::vector<int> begins) : begins_(std::move(begins)) {}
  std::vector<int> begins_;  // the first rank of each, and the number of ranks
};

// Equal in two processes that share memory, process ids and local sockets.
absl::StatusOr<std::string> HostIdentity();

// A part on its way between a rank and a peer.
struct Way {
  int peer = 0;
  int part = 0;
};

// What one rank receives and sends in an all-gather. It has a part that it sends when that is its
// own or when it has received it.
struct GatherWays {
  std::vector<Way> receives;  // every part but its own, once; that of the rank after it comes first
  std::vector<Way> sends;
};
GatherWays WaysOfGather(const Hosts& hosts, int rank);

// What one rank does in a reduce-scatter.
struct SumWays {
  struct Sum {
    int part = 0;
    // What is added up, in order; the way of its own values has the rank itself as its peer, and
    // is no message.
    std::vector<Way> terms;
    int to = 0;  // who gets the sum; the rank itself: it is the result
  };
  std::vector<Way> sends;  // of its own values
  std::vector<Sum> sums;
};
SumWays WaysOfSums(const Hosts& hosts, int rank);

// Whether sums through relays take less time than every rank's own, for arrays of `bytes`.
bool SumsAreFasterThroughRelays(const Hosts& hosts, int64_t bytes);

}  // namespace tranche
