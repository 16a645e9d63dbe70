#include "trainer/cli.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/log.h"
#include "base/text.h"
#include "trainer/exit_codes.h"

namespace tranche {
namespace {

const Flag* FindFlag(const Verb& verb, absl::string_view name) {
  for (const Flag& flag : verb.flags) {
    if (flag.name == name) return &flag;
  }
  return nullptr;
}

absl::Status UnknownFlag(const Verb& verb, absl::string_view name) {
  std::vector<std::string> names;
  for (const Flag& flag : verb.flags) names.push_back(absl::StrCat("--", flag.name));
  names.push_back("--help");
  // Underscores and capitals are the likeliest slips.
  const std::string likely =
      absl::StrCat("--", absl::StrReplaceAll(absl::AsciiStrToLower(name), {{"_", "-"}}));
  std::string hint = DidYouMean(likely, names);
  if (hint.empty()) hint = absl::StrCat("; allowed: ", absl::StrJoin(names, ", "));
  return absl::InvalidArgumentError(
      absl::StrCat("tranche ", verb.name, ": unknown flag --", name, hint));
}

absl::Status WrongCount(const Verb& verb, const std::vector<std::string>& given) {
  return absl::InvalidArgumentError(absl::StrCat(
      "tranche ", verb.name, ": ",
      static_cast<int>(given.size()) < verb.min_positionals
          ? "too few words"
          : absl::StrCat("one word too many: ", given[static_cast<size_t>(verb.max_positionals)]),
      "; usage: tranche ", verb.name, " ", verb.usage));
}

// "-5" and "-" are words, "-x" is a mistyped flag.
bool LooksLikeFlag(absl::string_view word) {
  return word.size() > 1 && word[0] == '-' &&
         !absl::ascii_isdigit(static_cast<unsigned char>(word[1])) && word[1] != '.';
}

}  // namespace

bool Arguments::Has(absl::string_view flag) const {
  return std::any_of(flags_.begin(), flags_.end(),
                     [&](const auto& given) { return given.first == flag; });
}

std::string Arguments::Get(absl::string_view flag, absl::string_view otherwise) const {
  for (auto given = flags_.rbegin(); given != flags_.rend(); ++given) {
    if (given->first == flag) return given->second;
  }
  return std::string(otherwise);
}

std::vector<std::string> Arguments::GetAll(absl::string_view flag) const {
  std::vector<std::string> values;
  for (const auto& [name, value] : flags_) {
    if (name == flag) values.push_back(value);
  }
  return values;
}

absl::StatusOr<int64_t> Arguments::GetInt(absl::string_view flag, int64_t otherwise, int64_t low,
                                          int64_t high) const {
  if (!Has(flag)) return otherwise;
  const std::string text = Get(flag);
  int64_t value = 0;
  if (absl::SimpleAtoi(text, &value) && value >= low && value <= high) return value;
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, ": \"", text, "\" is not a whole number from ", low, " to ", high));
}

absl::StatusOr<double> Arguments::GetDouble(absl::string_view flag, double otherwise, double low,
                                            double high) const {
  if (!Has(flag)) return otherwise;
  const std::string text = Get(flag);
  double value = 0;
  if (absl::SimpleAtod(text, &value) && value >= low && value <= high) return value;
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, ": \"", text, "\" is not a number from ", low, " to ", high));
}

absl::StatusOr<size_t> Arguments::GetChoice(absl::string_view flag,
                                            const std::vector<std::string>& words) const {
  const std::string given = Get(flag, words.front());
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == given) return i;
  }
  return absl::InvalidArgumentError(absl::StrCat("--", flag, " ", given, ": is not one of ",
                                                 absl::StrJoin(words, ", "),
                                                 DidYouMean(given, words)));
}

absl::StatusOr<Arguments> ParseArguments(const Verb& verb, absl::Span<const std::string> words) {
  Arguments arguments;
  bool flags_end = false;
  for (size_t i = 0; i < words.size(); ++i) {
    absl::string_view word = words[i];
    if (flags_end || !LooksLikeFlag(word)) {
      arguments.positionals_.push_back(words[i]);
      continue;
    }
    if (word == "--") {
      flags_end = true;
      continue;
    }
    if (word == "-n" && FindFlag(verb, "ranks") != nullptr) word = "--ranks";
    if (!absl::ConsumePrefix(&word, "--")) {
      return UnknownFlag(verb, word.substr(1));
    }
    const size_t equals = word.find('=');
    const absl::string_view name = word.substr(0, equals);
    const Flag* flag = FindFlag(verb, name);
    if (flag == nullptr) return UnknownFlag(verb, name);
    if (!flag->repeated && arguments.Has(name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tranche ", verb.name, ": --", name, " is given twice"));
    }
    std::string value;
    if (flag->value.empty()) {
      if (equals != absl::string_view::npos) {
        return absl::InvalidArgumentError(
            absl::StrCat("tranche ", verb.name, ": --", name, " takes no value"));
      }
    } else if (equals != absl::string_view::npos) {
      value = std::string(word.substr(equals + 1));
    } else if (i + 1 < words.size() && !LooksLikeFlag(words[i + 1])) {
      value = words[++i];
    } else {
      return absl::InvalidArgumentError(absl::StrCat("tranche ", verb.name, ": --", name,
                                                     " needs a value: --", name, " ", flag->value));
    }
    arguments.flags_.emplace_back(flag->name, std::move(value));
  }
  const auto count = static_cast<int>(arguments.positionals_.size());
  if (count < verb.min_positionals || (verb.max_positionals >= 0 && count > verb.max_positionals)) {
    return WrongCount(verb, arguments.positionals_);
  }
  return arguments;
}

int ReportError(const absl::Status& status) {
  LogError(status.message());
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kAlreadyExists:
      return kExitBadInput;
    case absl::StatusCode::kAborted:
      return kExitPeerFailed;
    default:
      return kExitFailed;
  }
}

}  // namespace tranche
