#include "data/tokenizer_regex.h"

#include <oniguruma.h>

#include <mutex>

#include "absl/strings/str_cat.h"

namespace tranche {
namespace {

constexpr size_t kMaxPatternBytes = 1 << 16;
constexpr unsigned long kMaxRetries = 10'000'000;  // per search; Oniguruma's own type

// Memory and recursion that one pattern may claim when compiled or run, set once for the process.
void LimitOniguruma() {
  static std::once_flag once;
  std::call_once(once, [] {
    OnigEncoding utf8 = ONIG_ENCODING_UTF8;
    onig_initialize(&utf8, 1);
    onig_set_parse_depth_limit(200);
    onig_set_retry_limit_in_match(kMaxRetries);
    onig_set_retry_limit_in_search(kMaxRetries);
    onig_set_match_stack_limit_size(1 << 20);
    onig_set_subexp_call_limit_in_search(1 << 20);
  });
}

// Repetitions are unrolled when compiled: nested counts multiply. Bounds their product before
// Oniguruma sees it.
bool CountsAreModest(absl::string_view pattern) {
  double product = 1;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '{') continue;
    double count = 0;
    for (size_t j = i + 1; j < pattern.size() && pattern[j] != '}'; ++j) {
      if (pattern[j] >= '0' && pattern[j] <= '9') {
        count = count * 10 + (pattern[j] - '0');
      } else if (pattern[j] == ',') {
        product *= count > 1 ? count : 1;
        count = 0;
      } else {
        break;
      }
    }
    product *= count > 1 ? count : 1;
    if (product > 1e6) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<Regex> Regex::Compile(absl::string_view pattern) {
  LimitOniguruma();
  if (pattern.size() > kMaxPatternBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the pattern has ", pattern.size(), " bytes; at most ", kMaxPatternBytes, " are read"));
  }
  if (!CountsAreModest(pattern)) {
    return absl::InvalidArgumentError(
        "the repetition counts of the pattern multiply to more than a million");
  }
  const auto* begin = reinterpret_cast<const OnigUChar*>(pattern.data());
  regex_t* compiled = nullptr;
  OnigErrorInfo info;
  const int error = onig_new(&compiled, begin, begin + pattern.size(), ONIG_OPTION_CAPTURE_GROUP,
                             ONIG_ENCODING_UTF8, ONIG_SYNTAX_RUBY, &info);
  if (error != ONIG_NORMAL) {
    OnigUChar message[ONIG_MAX_ERROR_MESSAGE_LEN];
    const int length = onig_error_code_to_str(message, error, &info);
    return absl::InvalidArgumentError(
        absl::StrCat("the pattern does not compile: ",
                     absl::string_view(reinterpret_cast<char*>(message), length)));
  }
  Regex regex;
  regex.compiled_ =
      std::shared_ptr<void>(compiled, [](void* r) { onig_free(static_cast<regex_t*>(r)); });
  return regex;
}

bool Regex::Search(absl::string_view text, size_t from, size_t* begin, size_t* end) const {
  const auto* data = reinterpret_cast<const OnigUChar*>(text.data());
  thread_local const std::unique_ptr<OnigRegion, void (*)(OnigRegion*)> region(
      onig_region_new(), [](OnigRegion* r) { onig_region_free(r, 1); });
  const int at = onig_search(static_cast<regex_t*>(compiled_.get()), data, data + text.size(),
                             data + from, data + text.size(), region.get(), ONIG_OPTION_NONE);
  if (at < 0) return false;
  *begin = static_cast<size_t>(region->beg[0]);
  *end = static_cast<size_t>(region->end[0]);
  return true;
}

}  // namespace tranche
