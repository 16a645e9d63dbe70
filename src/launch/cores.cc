#include "launch/cores.h"

#include <hwloc.h>
#include <hwloc/glibc-sched.h>

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tranche {
namespace {

struct TopologyCloser {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
struct BitmapCloser {
  void operator()(hwloc_bitmap_t bitmap) const { hwloc_bitmap_free(bitmap); }
};
using Topology = std::unique_ptr<hwloc_topology, TopologyCloser>;
using Bitmap = std::unique_ptr<hwloc_bitmap_s, BitmapCloser>;

// One set for each core (all its hardware threads) that this process is bound to, in hwloc's order:
// neighbours share caches and memory.
absl::StatusOr<std::vector<cpu_set_t>> UsableCores() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return absl::InternalError("hwloc cannot start");
  const Topology topology(raw);
  if (hwloc_topology_load(raw) != 0) {
    return absl::UnavailableError("hwloc cannot read this host's cores from /sys");
  }
  const Bitmap bound(hwloc_bitmap_alloc()), usable(hwloc_bitmap_alloc());
  if (hwloc_get_cpubind(raw, bound.get(), HWLOC_CPUBIND_PROCESS) != 0) {
    hwloc_bitmap_copy(bound.get(), hwloc_topology_get_allowed_cpuset(raw));
  }
  // Where hwloc knows no cores (some virtual machines), hardware threads stand for them.
  const hwloc_obj_type_t type =
      hwloc_get_nbobjs_by_type(raw, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
  std::vector<cpu_set_t> cores;
  for (hwloc_obj_t core = nullptr;
       (core = hwloc_get_next_obj_by_type(raw, type, core)) != nullptr;) {
    hwloc_bitmap_and(usable.get(), core->cpuset, bound.get());
    if (hwloc_bitmap_iszero(usable.get())) continue;
    cpu_set_t set;
    CPU_ZERO(&set);
    hwloc_cpuset_to_glibc_sched_affinity(raw, usable.get(), &set, sizeof(set));
    cores.push_back(set);
  }
  if (cores.empty()) return absl::UnavailableError("hwloc finds no core that may be used");
  return cores;
}

}  // namespace

absl::StatusOr<std::vector<RankCores>> DealCores(int ranks, bool oversubscribe) {
  TRANCHE_ASSIGN_OR_RETURN(const std::vector<cpu_set_t> cores, UsableCores());
  const int count = static_cast<int>(cores.size());
  if (ranks > count && !oversubscribe) {
    return absl::FailedPreconditionError(absl::StrCat(
        ranks, " ranks, but only ", count, count == 1 ? " core" : " cores",
        " may be used here; start fewer ranks, or let them share cores with --oversubscribe"));
  }
  const int each = std::max(1, count / ranks);
  std::vector<RankCores> dealt(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    RankCores& mine = dealt[static_cast<size_t>(rank)];
    CPU_ZERO(&mine.set);
    mine.cores = each;
    for (int k = 0; k < each; ++k) {
      CPU_OR(&mine.set, &mine.set, &cores[static_cast<size_t>((rank * each + k) % count)]);
    }
  }
  return dealt;
}

}  // namespace tranche
