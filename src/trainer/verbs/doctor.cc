// `tranche doctor`.
#include <algorithm>
#include <string>
#include <unistd.h>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "nlohmann/json.hpp"
#include "trainer/cli.h"
#include "trainer/doctor.h"
#include "trainer/exit_codes.h"
#include "trainer/verbs/verbs.h"

namespace tranche {
namespace {

const char* Name(Severity severity) {
  switch (severity) {
    case Severity::kFact:
      return "ok";
    case Severity::kSlow:
      return "slow";
    case Severity::kBroken:
      return "broken";
  }
  return "";
}

void PrintJson(const std::vector<Finding>& findings) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"name", finding.name},
                    {"value", finding.value},
                    {"state", Name(finding.severity)},
                    {"advice", finding.advice}});
  }
  using Json = nlohmann::ordered_json;
  // Names from the system may be any bytes.
  absl::PrintF("%s\n",
               Json{{"findings", list}}.dump(2, ' ', false, Json::error_handler_t::replace));
}

void PrintTable(const std::vector<Finding>& findings) {
  const bool color = UseColor(STDOUT_FILENO);
  size_t width = 0;
  int slow = 0, broken = 0;
  for (const Finding& finding : findings) width = std::max(width, finding.name.size());
  for (const Finding& finding : findings) {
    slow += finding.severity == Severity::kSlow ? 1 : 0;
    broken += finding.severity == Severity::kBroken ? 1 : 0;
    absl::PrintF("%-*s  %s\n", static_cast<int>(width), finding.name, finding.value);
    if (finding.severity == Severity::kFact) continue;
    const char* shade = finding.severity == Severity::kSlow ? "\x1b[33m" : "\x1b[31m";
    absl::PrintF("%-*s  %s%s:%s %s\n", static_cast<int>(width), "", color ? shade : "",
                 Name(finding.severity), color ? "\x1b[0m" : "", finding.advice);
  }
  absl::PrintF("\n%s\n", slow + broken == 0
                             ? std::string("nothing here would slow a run down")
                             : absl::StrCat(slow, " would slow a run down, ", broken, " broken"));
}

int Run(const Arguments& arguments) {
  const std::vector<Finding> findings = Diagnose(MachineSources::ThisMachine());
  if (arguments.Has("json")) {
    PrintJson(findings);
  } else {
    PrintTable(findings);
  }
  const bool broken = std::any_of(findings.begin(), findings.end(), [](const Finding& finding) {
    return finding.severity == Severity::kBroken;
  });
  return broken ? kExitFailed : kExitDone;
}

}  // namespace

Verb DoctorVerb() {
  return {
      .name = "doctor",
      .summary = "Says what this machine is, what would slow a run down, and what to do about it.",
      .usage = "[--json]",
      .example = "tranche doctor",
      .flags = {{"json", "", "Prints the findings as JSON."}},
      .run = Run};
}

}  // namespace tranche
