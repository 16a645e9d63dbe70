#include "trainer/checkpoint_manifest.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/status.h"
#include "trainer/recipe_toml.h"

namespace tranche {
namespace {

constexpr absl::string_view kChecksumKey = "\nmanifest_checksum = \"";

// Names every scalar once, for printing and for reading.
template <typename Manifest, typename Visitor>
void VisitManifest(Manifest& m, Visitor& visit) {
  visit("step", m.step);
  visit("total_tokens", m.total_tokens);
  visit("nonfinite_steps", m.nonfinite_steps);
  visit("no_target_steps", m.no_target_steps);
  visit("seconds", m.seconds);
  visit("seed", m.seed);
  visit("global_batch_size", m.global_batch_size);
  visit("sequence_length", m.sequence_length);
  visit("precision", m.precision);
  visit("data_fingerprint", m.data_fingerprint);
  visit("schedule", m.schedule_name);
  visit("peak_lr", m.schedule.peak);
  visit("total_steps", m.schedule.total_steps);
  visit("warmup_steps", m.schedule.warmup_steps);
  visit("min_lr_ratio", m.schedule.min_ratio);
  visit("decay_ratio", m.schedule.decay_ratio);
}

struct Printer {
  std::string text;
  void operator()(absl::string_view key, int64_t value) { Line(key, absl::StrCat(value)); }
  void operator()(absl::string_view key, double value) { Line(key, TomlNumber(value)); }
  void operator()(absl::string_view key, const std::string& value) { Line(key, TomlString(value)); }
  void Line(absl::string_view key, absl::string_view value) {
    absl::StrAppend(&text, key, " = ", value, "\n");
  }
};

struct Reader {
  const TomlValue& table;
  std::string missing;

  const TomlValue* Find(absl::string_view key, TomlValue::Kind kind) {
    const TomlValue* value = table.Find(key);
    if (value != nullptr && value->kind == kind) return value;
    if (missing.empty()) missing = std::string(key);
    return nullptr;
  }
  void operator()(absl::string_view key, int64_t& value) {
    if (const auto* found = Find(key, TomlValue::Kind::kInteger)) value = found->integer;
  }
  void operator()(absl::string_view key, double& value) {
    const TomlValue* found = table.Find(key);
    if (found != nullptr && found->kind == TomlValue::Kind::kInteger) {
      value = static_cast<double>(found->integer);
    } else if ((found = Find(key, TomlValue::Kind::kFloat)) != nullptr) {
      value = found->number;
    }
  }
  void operator()(absl::string_view key, std::string& value) {
    if (const auto* found = Find(key, TomlValue::Kind::kString)) value = found->text;
  }
};

absl::Status Damaged(const std::string& source, absl::string_view why) {
  return absl::DataLossError(absl::StrCat(source, ": ", why));
}

}  // namespace

int64_t CheckpointManifest::bytes() const {
  int64_t sum = 0;
  for (const File& file : files) sum += file.bytes;
  return sum;
}

std::string PrintManifest(const CheckpointManifest& manifest) {
  Printer printer;
  printer("format", CheckpointManifest::kFormat);
  VisitManifest(manifest, printer);
  absl::StrAppend(&printer.text, "files = [\n");
  for (const auto& file : manifest.files) {
    absl::StrAppend(&printer.text, "  {name = ", TomlString(file.name), ", bytes = ", file.bytes,
                    ", xxh3_128 = ", TomlString(file.checksum), "},\n");
  }
  absl::StrAppend(&printer.text, "]");
  const std::string checksum = Hash128(printer.text);
  return absl::StrCat(printer.text, kChecksumKey, checksum, "\"\n");
}

absl::StatusOr<CheckpointManifest> ParseManifest(absl::string_view text,
                                                 const std::string& source) {
  const size_t end = text.rfind(kChecksumKey);
  if (end == absl::string_view::npos) return Damaged(source, "has no checksum: it was cut off");
  const absl::string_view body = text.substr(0, end);
  if (text.substr(end) != absl::StrCat(kChecksumKey, Hash128(body), "\"\n")) {
    return Damaged(source, "its checksum does not fit its text");
  }
  TRANCHE_ASSIGN_OR_RETURN(const TomlValue root, ParseToml(body, source));
  Reader reader{root};
  int64_t format = 0;
  reader("format", format);
  if (format != CheckpointManifest::kFormat) {
    return absl::FailedPreconditionError(absl::StrCat(source, ": format ", format,
                                                      " is not known; this program reads format ",
                                                      CheckpointManifest::kFormat));
  }
  CheckpointManifest manifest;
  VisitManifest(manifest, reader);
  const TomlValue* files = reader.Find("files", TomlValue::Kind::kArray);
  if (files != nullptr) {
    for (const TomlValue& item : files->items) {
      Reader entry{item};
      CheckpointManifest::File file;
      entry("name", file.name);
      entry("bytes", file.bytes);
      entry("xxh3_128", file.checksum);
      if (!entry.missing.empty())
        return Damaged(source, absl::StrCat("a file has no ", entry.missing));
      if (file.name.empty() || absl::StrContains(file.name, "/")) {
        return Damaged(source, absl::StrCat("\"", file.name, "\" is not a file of this folder"));
      }
      manifest.files.push_back(std::move(file));
    }
  }
  if (!reader.missing.empty()) return Damaged(source, absl::StrCat(reader.missing, " is missing"));
  TRANCHE_ASSIGN_OR_RETURN(manifest.schedule.kind, ParseScheduleKind(manifest.schedule_name));
  if (manifest.step < 0 || manifest.global_batch_size < 1 || manifest.schedule.total_steps < 1) {
    return Damaged(source, "its numbers are impossible");
  }
  return manifest;
}

}  // namespace tranche
