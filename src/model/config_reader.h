// Typed access to one JSON object of a config.json: null is as good as absent, and every fault is
// collected, so that one run tells all of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace tranche {

class ConfigReader {
 public:
  // `object` and `errors` must outlive the reader. `prefix` stands before keys in messages
  // ("rope_parameters.").
  ConfigReader(const nlohmann::ordered_json& object, std::string prefix,
               std::vector<std::string>* errors)
      : object_(object), prefix_(std::move(prefix)), errors_(errors) {}

  // The value, or nullptr where the key is absent or null.
  const nlohmann::ordered_json* Find(absl::string_view key) const;
  bool Has(absl::string_view key) const { return Find(key) != nullptr; }

  // Each returns `otherwise` where the key is absent or null, and also after noting a fault.
  int64_t Int(absl::string_view key, int64_t otherwise, int64_t low, int64_t high) const;
  double Number(absl::string_view key, double otherwise, double low, double high) const;
  bool Bool(absl::string_view key, bool otherwise) const;
  std::string String(absl::string_view key, absl::string_view otherwise) const;
  std::vector<double> Numbers(absl::string_view key) const;
  std::vector<std::string> Strings(absl::string_view key) const;
  // One integer or a list of them.
  std::vector<int64_t> Ints(absl::string_view key, std::vector<int64_t> otherwise) const;

  // Notes "PREFIXkey: message".
  void Error(absl::string_view key, absl::string_view message) const;
  const nlohmann::ordered_json& object() const { return object_; }
  const std::string& prefix() const { return prefix_; }
  std::vector<std::string>* errors() const { return errors_; }

 private:
  void WrongType(absl::string_view key, absl::string_view wanted,
                 const nlohmann::ordered_json& value) const;

  const nlohmann::ordered_json& object_;
  std::string prefix_;
  std::vector<std::string>* errors_;
};

// A JSON value for a message: at most 60 bytes of it.
std::string ShortJson(const nlohmann::ordered_json& value);

}  // namespace tranche
