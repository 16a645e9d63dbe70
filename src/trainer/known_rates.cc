#include "trainer/known_rates.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "base/status.h"
#include "base/units.h"
#include "launch/socket.h"
#include "nlohmann/json.hpp"
#include "trainer/tuning.h"

namespace tranche {
namespace {

constexpr double kWeek = 7 * 24 * 3600;

std::string CacheFolder() {
  if (const char* folder = std::getenv("TRANCHE_CACHE_DIR")) return folder;
  if (const char* folder = std::getenv("XDG_CACHE_HOME"); folder != nullptr && *folder != '\0') {
    return JoinPath(folder, "tranche");
  }
  const char* const home = std::getenv("HOME");
  return home == nullptr || *home == '\0' ? "" : JoinPath(home, ".cache/tranche");
}

// The host, and what its user has told UCX: which of its links are used.
std::string ThisRank(Backend& backend) {
  std::vector<std::string> words = {HostName(), backend.Describe()};
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (absl::StartsWith(*variable, "UCX_")) words.emplace_back(*variable);
  }
  std::sort(words.begin() + 2, words.end());
  return absl::StrJoin(words, ", ");
}

// What the rates depend on, a line each: equal on all ranks.
absl::StatusOr<std::vector<std::string>> Origin(const RunSetup& setup, World& world,
                                                Backend& backend) {
  TRANCHE_ASSIGN_OR_RETURN(std::vector<std::string> lines,
                           world.Exchange("known rates", ThisRank(backend)));
  for (size_t rank = 0; rank < lines.size(); ++rank) {
    lines[rank] = absl::StrCat("rank ", rank, ": ", lines[rank]);
  }
  lines.push_back(absl::StrCat(DTypeName(setup.engine.dtype), ", ", setup.replicas, " replicas, ",
                               LargestMeasuredBytes(setup), " bytes at most"));
  return lines;
}

std::string FileOf(const std::vector<std::string>& origin) {
  const std::string folder = CacheFolder();
  if (folder.empty()) return "";
  const std::string hash = Hash128(absl::StrJoin(origin, "\n"));
  return JoinPath(folder, absl::StrCat("links-", hash.substr(0, 16), ".json"));
}

nlohmann::ordered_json ToJson(const std::vector<std::string>& origin, const MachineRates& rates) {
  nlohmann::ordered_json json = {{"origin", origin},
                                 {"measured_unix_seconds", static_cast<int64_t>(time(nullptr))},
                                 {"matmul_flops", rates.device.matmul_flops},
                                 {"memory_bytes_per_second", rates.device.memory_bytes}};
  for (const Collective kind : kMeasuredCollectives) {
    const CollectiveCost& cost = rates.collectives[static_cast<size_t>(kind)];
    json[std::string(CollectiveName(kind))] = {{"alpha_seconds", cost.alpha},
                                               {"beta_seconds_per_byte", cost.beta},
                                               {"core_seconds_per_byte", cost.core}};
  }
  return json;
}

// An error where the text of `path` is of no use here.
absl::StatusOr<KnownRates> Parse(absl::string_view text, const std::string& path,
                                 const std::vector<std::string>& origin) {
  TRANCHE_ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(text, path));
  KnownRates kept;
  bool sound = json.is_object() && json.contains("origin") && json["origin"] == origin;
  const auto number = [&](const nlohmann::json& object, const std::string& name) {
    sound = sound && object.contains(name) && object[name].is_number();
    const double value = sound ? object[name].get<double>() : 0;
    sound = sound && std::isfinite(value) && value >= 0;
    return value;
  };
  const double age = static_cast<double>(time(nullptr)) - number(json, "measured_unix_seconds");
  kept.rates.device.matmul_flops = number(json, "matmul_flops");
  kept.rates.device.memory_bytes = number(json, "memory_bytes_per_second");
  for (const Collective kind : kMeasuredCollectives) {
    const std::string name(CollectiveName(kind));
    sound = sound && json.contains(name);
    if (!sound) break;
    kept.rates.collectives[static_cast<size_t>(kind)] = {
        number(json[name], "alpha_seconds"), number(json[name], "beta_seconds_per_byte"),
        number(json[name], "core_seconds_per_byte")};
  }
  sound = sound && age >= 0 && age < kWeek && kept.rates.device.matmul_flops > 0 &&
          kept.rates.device.memory_bytes > 0;
  if (!sound) return absl::NotFoundError(absl::StrCat(path, ": nothing of these ranks"));
  kept.source = absl::StrCat("measured ", FormatSeconds(age), " ago (", path, ")");
  return kept;
}

void Keep(const std::string& path, const std::vector<std::string>& origin,
          const MachineRates& rates) {
  if (path.empty()) return;
  absl::Status status = FileSystem::Real().MakeDirs(DirName(path));
  if (status.ok()) status = WriteFileAtomic(path, ToJson(origin, rates).dump(2) + "\n");
  if (status.ok()) return;
  LogWarning(absl::StrCat("what was measured is not kept for the next start: ", status.message(),
                          "; TRANCHE_CACHE_DIR names another folder, or none"));
}

}  // namespace

absl::StatusOr<KnownRates> KnownOrMeasuredRates(const RunSetup& setup, World& world, Comm& comm,
                                                Backend& backend, int threads) {
  TRANCHE_ASSIGN_OR_RETURN(const std::vector<std::string> origin, Origin(setup, world, backend));
  const std::string path = FileOf(origin);
  const auto look_up = [&]() -> absl::StatusOr<std::string> {
    const absl::StatusOr<std::string> text = ReadFile(path);
    return text.ok() && Parse(*text, path, origin).ok() ? *text : "";
  };
  TRANCHE_ASSIGN_OR_RETURN(const std::string text, world.FromFirst("kept rates", look_up));
  if (!text.empty()) return Parse(text, path, origin);
  KnownRates measured = {.rates = {}, .source = "measured now"};
  TRANCHE_ASSIGN_OR_RETURN(const auto times, MeasureCollectives(setup, world, comm, backend));
  TRANCHE_ASSIGN_OR_RETURN(measured.rates,
                           MeasureRates(setup, world, comm, backend, threads, FitCosts(times)));
  if (world.first()) Keep(path, origin, measured.rates);
  return measured;
}

absl::Status KeepRates(const RunSetup& setup, World& world, Backend& backend,
                       const MachineRates& rates) {
  TRANCHE_ASSIGN_OR_RETURN(const std::vector<std::string> origin, Origin(setup, world, backend));
  if (world.first()) Keep(FileOf(origin), origin, rates);
  return absl::OkStatus();
}

}  // namespace tranche
