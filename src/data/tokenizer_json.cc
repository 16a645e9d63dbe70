#include "data/tokenizer_json.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "base/text.h"

namespace tranche {
namespace {

const nlohmann::json& Null() {
  static const nlohmann::json& null = *new nlohmann::json();
  return null;
}

}  // namespace

JsonNode JsonNode::Child(absl::string_view key) const {
  const std::string place = absl::StrCat(place_, absl::EndsWith(place_, ": ") ? "" : ".", key);
  if (!value_->is_object()) return {&Null(), place};
  const auto member = value_->find(std::string(key));
  return {member == value_->end() ? &Null() : &*member, place};
}

absl::StatusOr<std::vector<JsonNode>> JsonNode::Elements() const {
  if (!value_->is_array()) return Error("an array is needed here");
  std::vector<JsonNode> elements;
  elements.reserve(value_->size());
  for (size_t i = 0; i < value_->size(); ++i)
    elements.emplace_back(&(*value_)[i], absl::StrCat(place_, "[", i, "]"));
  return elements;
}

absl::StatusOr<bool> JsonNode::Bool(absl::string_view key, bool otherwise) const {
  const JsonNode child = Child(key);
  if (child.IsNull()) return otherwise;
  if (!child.value().is_boolean()) return child.Error("true or false is needed here");
  return child.value().get<bool>();
}

absl::StatusOr<int64_t> JsonNode::Int(absl::string_view key, int64_t otherwise, int64_t low,
                                      int64_t high) const {
  if (Child(key).IsNull()) return otherwise;
  return RequiredInt(key, low, high);
}

absl::StatusOr<int64_t> JsonNode::RequiredInt(absl::string_view key, int64_t low,
                                              int64_t high) const {
  const JsonNode child = Child(key);
  const nlohmann::json& value = child.value();
  const bool fits = value.is_number_unsigned()
                        ? value.get<uint64_t>() <= static_cast<uint64_t>(high) &&
                              static_cast<int64_t>(value.get<uint64_t>()) >= low
                        : value.is_number_integer() && value.get<int64_t>() >= low &&
                              value.get<int64_t>() <= high;
  if (!fits)
    return child.Error(absl::StrCat("a whole number from ", low, " to ", high, " is needed here"));
  return value.get<int64_t>();
}

absl::StatusOr<std::string> JsonNode::String(absl::string_view key,
                                             absl::string_view otherwise) const {
  if (Child(key).IsNull()) return std::string(otherwise);
  return RequiredString(key);
}

absl::StatusOr<std::string> JsonNode::RequiredString(absl::string_view key) const {
  const JsonNode child = Child(key);
  if (!child.value().is_string()) return child.Error("a string is needed here");
  return child.value().get<std::string>();
}

absl::Status JsonNode::Error(absl::string_view message) const {
  return absl::InvalidArgumentError(
      absl::StrCat(place_, absl::EndsWith(place_, ": ") ? "" : ": ", message));
}

absl::Status JsonNode::UnknownType(const std::string& type,
                                   const std::vector<std::string>& known) const {
  return Error(absl::StrCat("type \"", type, "\" is not supported", DidYouMean(type, known),
                            "; supported are ", absl::StrJoin(known, ", ")));
}

}  // namespace tranche
