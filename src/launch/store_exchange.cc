// The server's exchanges: blobs come in, and go out to all when the last is there; who waits in
// vain is told whom it waits for.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/units.h"
#include "launch/store_state.h"

namespace tranche {
namespace {

constexpr int64_t kOpenExchanges = 64;  // of one rank

// {1, 2, 3, 5} -> "ranks 1-3 and 5".
std::string NameRanks(const std::vector<int>& ranks) {
  std::vector<std::string> runs;
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (last > i + 1) {
      runs.push_back(absl::StrCat(ranks[i], "-", ranks[last]));
    } else {
      for (size_t k = i; k <= last; ++k) runs.push_back(absl::StrCat(ranks[k]));
    }
    i = last + 1;
  }
  const std::string end = runs.back();
  runs.pop_back();
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(runs, ", "),
                      runs.empty() ? "" : " and ", end);
}

}  // namespace

bool StoreServer::Contribute(Connection* connection, FrameKind kind, FrameReader body) {
  const std::string name = body.Bytes(kMaxTextBytes);
  const double seconds = body.Number() / 1e3;
  std::string blob = body.Bytes(kMaxBlobBytes);
  const auto rank = static_cast<size_t>(connection->rank);
  if (!body.Done() || (kind == FrameKind::kGoodbye) != (name == kGoodbyeName) ||
      members_[rank].leaving) {
    return false;
  }
  if (failure_.has_value()) return true;  // it will have read so by now
  const auto open = std::count_if(gatherings_.begin(), gatherings_.end(), [&](const auto& entry) {
    return entry.second[rank].has_value();
  });
  if (open >= kOpenExchanges) return false;
  Gathering& gathering = gatherings_[name];
  gathering.resize(members_.size());
  if (gathering[rank].has_value()) return false;
  gathering[rank] = Contribution{std::move(blob), seconds, SteadyClock::now() + Seconds(seconds)};
  members_[rank].leaving = kind == FrameKind::kGoodbye;
  if (!std::all_of(gathering.begin(), gathering.end(), [](const auto& c) { return !!c; })) {
    return true;
  }
  all_left_ = kind == FrameKind::kGoodbye;
  FrameWriter writer(FrameKind::kGathered);
  writer.Bytes(name).Number(static_cast<uint32_t>(members_.size()));
  for (const auto& contribution : gathering) writer.Bytes(contribution->blob);
  const std::string whole = writer.Finish();
  gatherings_.erase(name);
  for (const auto& member : connections_) {
    if (member->rank >= 0) Send(member.get(), whole);
  }
  return true;
}

std::string StoreServer::DescribeMissing(const std::string& name, const Gathering& gathering,
                                         absl::string_view within) const {
  std::vector<int> missing;
  std::vector<std::string> details;
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    if (gathering[rank].has_value()) continue;
    missing.push_back(static_cast<int>(rank));
    const Member& member = members_[rank];
    std::string does = !member.joined         ? "has not joined"
                       : member.phase.empty() ? "has joined"
                                              : absl::StrCat("is in phase \"", member.phase, "\"");
    for (const auto& [other, waits] : gatherings_) {
      if (waits[rank].has_value()) does = absl::StrCat("waits in \"", other, "\"");
    }
    if (member.leaving) does = "has said goodbye";
    details.push_back(absl::StrCat("rank ", rank, " ", does));
  }
  constexpr size_t kDetailed = 8;
  if (details.size() > kDetailed) {
    details.resize(kDetailed);
    details.push_back("…");
  }
  return absl::StrCat(NameRanks(missing), " of ", members_.size(),
                      missing.size() == 1 ? " has" : " have", " not come to \"", name, "\"", within,
                      " (", absl::StrJoin(details, "; "), ")");
}

bool StoreServer::GiveUpOn(const std::string& name, const Gathering& gathering,
                           SteadyClock::time_point now) {
  bool hopeless = false;  // who is missing has said goodbye
  std::string within;
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    const std::optional<Contribution>& given = gathering[rank];
    hopeless |= !given.has_value() && members_[rank].leaving;
    if (given.has_value() && given->deadline <= now) {
      within = absl::StrCat(" within ", FormatSeconds(given->seconds));
    }
  }
  if (!hopeless && within.empty()) return false;
  const std::string frame = FrameWriter(FrameKind::kNotGathered)
                                .Bytes(name)
                                .Bytes(DescribeMissing(name, gathering, within))
                                .Finish();
  for (const auto& connection : connections_) {
    if (connection->rank < 0) continue;
    if (gathering[static_cast<size_t>(connection->rank)].has_value()) Send(connection.get(), frame);
  }
  return true;
}

}  // namespace tranche
