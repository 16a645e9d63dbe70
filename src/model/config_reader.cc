#include "model/config_reader.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tranche {

std::string ShortJson(const nlohmann::ordered_json& value) {
  std::string text = value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  if (text.size() > 60) text = absl::StrCat(text.substr(0, 57), "...");
  return text;
}

const nlohmann::ordered_json* ConfigReader::Find(absl::string_view key) const {
  const auto found = object_.find(std::string(key));
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void ConfigReader::Error(absl::string_view key, absl::string_view message) const {
  errors_->push_back(absl::StrCat(prefix_, key, ": ", message));
}

void ConfigReader::WrongType(absl::string_view key, absl::string_view wanted,
                             const nlohmann::ordered_json& value) const {
  Error(key, absl::StrCat("must be ", wanted, ", not ", ShortJson(value)));
}

namespace {

bool IsInt64(const nlohmann::ordered_json& value) {
  return value.is_number_integer() &&
         (!value.is_number_unsigned() ||
          value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
}

}  // namespace

int64_t ConfigReader::Int(absl::string_view key, int64_t otherwise, int64_t low,
                          int64_t high) const {
  const auto* value = Find(key);
  if (value == nullptr) return otherwise;
  if (!IsInt64(*value)) {
    WrongType(key, "a whole number (digits only, without quotes or a decimal point)", *value);
    return otherwise;
  }
  const int64_t number = value->get<int64_t>();
  if (number < low || number > high) {
    Error(key, absl::StrFormat("%d is outside %d to %d", number, low, high));
    return otherwise;
  }
  return number;
}

double ConfigReader::Number(absl::string_view key, double otherwise, double low,
                            double high) const {
  const auto* value = Find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_number()) {
    WrongType(key, "a number", *value);
    return otherwise;
  }
  const double number = value->get<double>();
  if (!(number >= low && number <= high)) {
    Error(key, absl::StrFormat("%g is outside %g to %g", number, low, high));
    return otherwise;
  }
  return number;
}

bool ConfigReader::Bool(absl::string_view key, bool otherwise) const {
  const auto* value = Find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) {
    WrongType(key, "true or false", *value);
    return otherwise;
  }
  return value->get<bool>();
}

std::string ConfigReader::String(absl::string_view key, absl::string_view otherwise) const {
  const auto* value = Find(key);
  if (value == nullptr) return std::string(otherwise);
  if (!value->is_string()) {
    WrongType(key, "a string", *value);
    return std::string(otherwise);
  }
  return value->get<std::string>();
}

std::vector<double> ConfigReader::Numbers(absl::string_view key) const {
  const auto* value = Find(key);
  std::vector<double> numbers;
  if (value == nullptr) return numbers;
  bool good = value->is_array();
  for (size_t i = 0; good && i < value->size(); ++i) good = (*value)[i].is_number();
  if (!good) {
    WrongType(key, "a list of numbers", *value);
    return numbers;
  }
  for (const auto& item : *value) numbers.push_back(item.get<double>());
  return numbers;
}

std::vector<std::string> ConfigReader::Strings(absl::string_view key) const {
  const auto* value = Find(key);
  std::vector<std::string> strings;
  if (value == nullptr) return strings;
  bool good = value->is_array();
  for (size_t i = 0; good && i < value->size(); ++i) good = (*value)[i].is_string();
  if (!good) {
    WrongType(key, "a list of strings", *value);
    return strings;
  }
  for (const auto& item : *value) strings.push_back(item.get<std::string>());
  return strings;
}

std::vector<int64_t> ConfigReader::Ints(absl::string_view key,
                                        std::vector<int64_t> otherwise) const {
  const auto* value = Find(key);
  if (value == nullptr) return otherwise;
  if (IsInt64(*value)) return {value->get<int64_t>()};
  bool good = value->is_array();
  for (size_t i = 0; good && i < value->size(); ++i) good = IsInt64((*value)[i]);
  if (!good) {
    WrongType(key, "a whole number or a list of them", *value);
    return otherwise;
  }
  std::vector<int64_t> numbers;
  for (const auto& item : *value) numbers.push_back(item.get<int64_t>());
  return numbers;
}

}  // namespace tranche
