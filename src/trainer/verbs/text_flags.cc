#include "trainer/verbs/text_flags.h"

#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/units.h"

namespace tranche {

std::vector<Flag> WithTextFlags(std::vector<Flag> flags) {
  flags.insert(
      flags.end(),
      {{"documents", "RULE",
        "What ends a document of plain text: blank-line (default), line, separator or file."},
       {"separator", "LINE",
        "The line between documents with --documents separator; default \"%\"."},
       {"json-field", "NAME", "The field of .jsonl files that holds the text; default \"text\"."},
       {"on-error", "WHAT",
        "At invalid UTF-8 or JSON: stop (default), skip the document and count it, or replace bad "
        "bytes by U+FFFD and count them."}});
  return flags;
}

absl::StatusOr<TextOptions> ParseTextFlags(const Arguments& arguments) {
  TextOptions options;
  TRANCHE_ASSIGN_OR_RETURN(options.rule, arguments.GetOneOf<DocumentRule>(
                                             "documents", {{"blank-line", DocumentRule::kBlankLine},
                                                           {"line", DocumentRule::kLine},
                                                           {"separator", DocumentRule::kSeparator},
                                                           {"file", DocumentRule::kFile}}));
  TRANCHE_ASSIGN_OR_RETURN(options.on_error, arguments.GetOneOf<OnTextError>(
                                                 "on-error", {{"stop", OnTextError::kStop},
                                                              {"skip", OnTextError::kSkip},
                                                              {"replace", OnTextError::kReplace}}));
  if (arguments.Has("separator") && options.rule != DocumentRule::kSeparator) {
    return absl::InvalidArgumentError("--separator: has no effect without --documents separator");
  }
  options.separator = arguments.Get("separator", options.separator);
  options.json_field = arguments.Get("json-field", options.json_field);
  return options;
}

void PrintTextFaults(const TextStats& stats) {
  if (stats.replaced_sequences > 0) {
    absl::PrintF("%s invalid UTF-8 sequence(s) replaced by U+FFFD\n",
                 FormatInteger(stats.replaced_sequences));
  }
  if (stats.skipped_documents > 0) {
    absl::PrintF("%s invalid document(s) left out; the first: %s\n",
                 FormatInteger(stats.skipped_documents), stats.first_skipped);
  }
  for (const std::string& path : stats.empty_files) absl::PrintF("%s: no document in it\n", path);
}

}  // namespace tranche
