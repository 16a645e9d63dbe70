// Reading the parts of a tokenizer file: every error names the file and the place in it ("FILE:
// pre_tokenizer.pattern: …").
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace tranche {

// A value and where it stands. Refers to a document that must outlive it.
class JsonNode {
 public:
  JsonNode(const nlohmann::json* value, std::string place)
      : value_(value), place_(std::move(place)) {}

  const nlohmann::json& value() const { return *value_; }
  const std::string& place() const { return place_; }
  // True where the node is null or was absent.
  bool IsNull() const { return value_->is_null(); }

  // The member of an object; a null node where it is absent (or where this is no object).
  JsonNode Child(absl::string_view key) const;
  // The elements; an error where this is no array.
  absl::StatusOr<std::vector<JsonNode>> Elements() const;

  // Members with a default for absent or null ones; another type is an error.
  absl::StatusOr<bool> Bool(absl::string_view key, bool otherwise) const;
  absl::StatusOr<int64_t> Int(absl::string_view key, int64_t otherwise, int64_t low,
                              int64_t high) const;
  absl::StatusOr<std::string> String(absl::string_view key, absl::string_view otherwise) const;
  // Members that must be there.
  absl::StatusOr<std::string> RequiredString(absl::string_view key) const;
  absl::StatusOr<int64_t> RequiredInt(absl::string_view key, int64_t low, int64_t high) const;

  absl::Status Error(absl::string_view message) const;
  // Refuses the node's "type" and names those that are read.
  absl::Status UnknownType(const std::string& type, const std::vector<std::string>& known) const;

 private:
  const nlohmann::json* value_;
  std::string place_;
};

}  // namespace tranche
