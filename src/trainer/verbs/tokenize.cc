// `tranche tokenize`: text to a dataset in Megatron's format.
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/status.h"
#include "base/text.h"
#include "base/units.h"
#include "data/tokenize.h"
#include "data/tokenizer.h"
#include "trainer/cli.h"
#include "trainer/exit_codes.h"
#include "trainer/verbs/verbs.h"

namespace tranche {
namespace {

template <typename Value>
absl::StatusOr<Value> OneOf(const Arguments& arguments, const std::string& flag,
                            const std::vector<std::pair<std::string, Value>>& choices) {
  const std::string given = arguments.Get(flag, choices.front().first);
  std::vector<std::string> names;
  for (const auto& [name, value] : choices) {
    if (name == given) return value;
    names.push_back(name);
  }
  return absl::InvalidArgumentError(absl::StrCat("--", flag, " ", given, ": is not one of ",
                                                 absl::StrJoin(names, ", "),
                                                 DidYouMean(given, names)));
}

absl::StatusOr<TokenizeOptions> ParseOptions(const Arguments& arguments) {
  TokenizeOptions options;
  options.inputs = arguments.positionals();
  options.output = arguments.Get("output");
  for (const char* needed : {"output", "tokenizer"}) {
    if (arguments.Get(needed).empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", needed, " is needed; see tranche tokenize --help"));
    }
  }
  TRANCHE_ASSIGN_OR_RETURN(options.text.rule,
                           OneOf<DocumentRule>(arguments, "documents",
                                               {{"blank-line", DocumentRule::kBlankLine},
                                                {"line", DocumentRule::kLine},
                                                {"separator", DocumentRule::kSeparator},
                                                {"file", DocumentRule::kFile}}));
  TRANCHE_ASSIGN_OR_RETURN(options.text.on_error,
                           OneOf<OnTextError>(arguments, "on-error",
                                              {{"stop", OnTextError::kStop},
                                               {"skip", OnTextError::kSkip},
                                               {"replace", OnTextError::kReplace}}));
  if (arguments.Has("separator") && options.text.rule != DocumentRule::kSeparator) {
    return absl::InvalidArgumentError("--separator: has no effect without --documents separator");
  }
  options.text.separator = arguments.Get("separator", options.text.separator);
  options.text.json_field = arguments.Get("json-field", options.text.json_field);
  options.append_eos = arguments.Has("append-eos");
  options.add_bos = arguments.Has("add-bos");
  options.overwrite = arguments.Has("overwrite");
  if (arguments.Has("validation-fraction")) {
    TRANCHE_ASSIGN_OR_RETURN(options.validation_fraction,
                             arguments.GetDouble("validation-fraction", 0, 1e-9, 0.999));
  }
  TRANCHE_ASSIGN_OR_RETURN(const int64_t threads, arguments.GetInt("threads", 0, 0, 4096));
  options.threads = static_cast<int>(threads);
  return options;
}

void PrintReport(const TokenizeReport& report, double seconds) {
  for (const TokenizeReport::Output& output : report.outputs) {
    absl::PrintF("%s.bin, .idx: %s documents, %s tokens (%s), %s bytes of text, %.2f bytes/token\n",
                 output.prefix, FormatInteger(output.documents), FormatInteger(output.tokens),
                 report.token_type, FormatInteger(output.text_bytes),
                 static_cast<double>(output.text_bytes) / static_cast<double>(output.tokens));
  }
  absl::PrintF(
      "%d file(s), %s in %s: %s/s with %d thread(s)\n", report.text.files,
      FormatBytes(report.text.file_bytes), FormatSeconds(seconds),
      FormatBytes(static_cast<int64_t>(static_cast<double>(report.text.file_bytes) / seconds)),
      report.threads);
  if (report.empty_documents > 0)
    absl::PrintF("%s empty document(s) dropped\n", FormatInteger(report.empty_documents));
  if (report.text.replaced_sequences > 0) {
    absl::PrintF("%s invalid UTF-8 sequence(s) replaced by U+FFFD\n",
                 FormatInteger(report.text.replaced_sequences));
  }
  if (report.text.skipped_documents > 0) {
    absl::PrintF("%s invalid document(s) left out; the first: %s\n",
                 FormatInteger(report.text.skipped_documents), report.text.first_skipped);
  }
  for (const std::string& path : report.text.empty_files)
    absl::PrintF("%s: no document in it\n", path);
}

absl::Status Tokenize(const Arguments& arguments) {
  TRANCHE_ASSIGN_OR_RETURN(TokenizeOptions options, ParseOptions(arguments));
  TRANCHE_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(arguments.Get("tokenizer")));
  for (const std::string& warning : tokenizer->warnings()) LogWarning(warning);
  const Tokenizer::Specials& specials = tokenizer->specials();
  if (!options.append_eos && specials.eos >= 0 && specials.mask < 0) {
    LogNote(absl::StrCat("documents do not end with ", tokenizer->IdToToken(specials.eos),
                         "; a model that shall learn where they end needs --append-eos"));
  }
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [start] {
    return std::max(
        1e-9, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  };
  std::unique_ptr<ProgressBar> bar;
  options.progress = [&](int64_t done, int64_t total, int64_t tokens) {
    if (bar == nullptr) bar = std::make_unique<ProgressBar>("tokenize", total);
    bar->Update(
        done,
        absl::StrFormat("%s tokens, %s/s", FormatCount(static_cast<double>(tokens)),
                        FormatBytes(static_cast<int64_t>(static_cast<double>(done) / seconds()))));
  };
  const absl::StatusOr<TokenizeReport> report = TokenizeCorpus(*tokenizer, options);
  bar.reset();
  TRANCHE_RETURN_IF_ERROR(report.status());
  PrintReport(*report, seconds());
  return absl::OkStatus();
}

int Run(const Arguments& arguments) {
  const absl::Status status = Tokenize(arguments);
  return status.ok() ? kExitDone : ReportError(status);
}

}  // namespace

Verb TokenizeVerb() {
  Verb verb;
  verb.name = "tokenize";
  verb.summary = "Turn text files into a dataset of token ids (.bin and .idx, Megatron's format).";
  verb.usage = "INPUT... --tokenizer PATH --output PREFIX [flags]";
  verb.example =
      "tranche tokenize corpus/*.txt.gz more.jsonl --tokenizer phi-2 --output data/corpus "
      "--append-eos "
      "--validation-fraction 0.01";
  verb.flags = {
      {"tokenizer", "PATH",
       "A folder with tokenizer.json, vocab.txt, or vocab.json and merges.txt; or a "
       "tokenizer.json."},
      {"output", "PREFIX", "Writes PREFIX.bin, PREFIX.idx and PREFIX.meta.json."},
      {"documents", "RULE",
       "What ends a document of plain text: blank-line (default), line, separator or file."},
      {"separator", "LINE",
       "The line between documents with --documents separator; default \"%\"."},
      {"json-field", "NAME", "The field of .jsonl files that holds the text; default \"text\"."},
      {"append-eos", "", "End every document with exactly one end-of-text token."},
      {"add-bos", "", "Begin every document with exactly one begin-of-text token."},
      {"on-error", "WHAT",
       "At invalid UTF-8 or JSON: stop (default), skip the document, or replace bad bytes by "
       "U+FFFD; both are counted."},
      {"validation-fraction", "F",
       "Write PREFIX-train and PREFIX-valid; each document's text decides where it goes."},
      {"threads", "N", "Threads; default: all cores. The result does not depend on it."},
      {"overwrite", "", "Replace a dataset of that name."},
  };
  verb.min_positionals = 1;
  verb.max_positionals = -1;
  verb.run = Run;
  return verb;
}

}  // namespace tranche
