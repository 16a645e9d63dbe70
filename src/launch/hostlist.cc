#include "launch/hostlist.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace tranche {

std::optional<std::string> FirstHost(absl::string_view hostlist) {
  std::string host;
  for (size_t i = 0; i < hostlist.size() && hostlist[i] != ','; ++i) {
    if (hostlist[i] == ']') return std::nullopt;
    if (hostlist[i] != '[') {
      host.push_back(hostlist[i]);
      continue;
    }
    const size_t close = hostlist.find(']', i);
    if (close == absl::string_view::npos) return std::nullopt;
    const absl::string_view inside = hostlist.substr(i + 1, close - i - 1);
    // The digits of the range's first number, leading zeros and all.
    const absl::string_view first = inside.substr(0, inside.find_first_of(",-"));
    if (first.empty() || first.find_first_not_of("0123456789") != absl::string_view::npos) {
      return std::nullopt;
    }
    host.append(first.data(), first.size());
    i = close;
  }
  if (host.empty()) return std::nullopt;
  return host;
}

std::optional<int> NthCount(absl::string_view counts, int index) {
  for (absl::string_view part : absl::StrSplit(counts, ',')) {
    int count = 0, times = 1;
    if (const size_t bracket = part.find("(x"); bracket != absl::string_view::npos) {
      absl::string_view repeat = part.substr(bracket + 2);
      if (!absl::ConsumeSuffix(&repeat, ")") || !absl::SimpleAtoi(repeat, &times)) {
        return std::nullopt;
      }
      part = part.substr(0, bracket);
    }
    if (!absl::SimpleAtoi(part, &count) || count < 1 || times < 1) return std::nullopt;
    if (index < times) return count;
    index -= times;
  }
  return std::nullopt;
}

}  // namespace tranche
