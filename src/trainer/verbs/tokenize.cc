// `tranche tokenize`: text to a dataset in Megatron's format.
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/status.h"
#include "base/units.h"
#include "data/tokenize.h"
#include "data/tokenizer.h"
#include "trainer/cli.h"
#include "trainer/exit_codes.h"
#include "trainer/verbs/text_flags.h"
#include "trainer/verbs/verbs.h"

namespace tranche {
namespace {

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
  TRANCHE_ASSIGN_OR_RETURN(options.text, ParseTextFlags(arguments));
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
  PrintTextFaults(report.text);
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
      "--append-eos --validation-fraction 0.01";
  verb.flags = WithTextFlags({
      {"tokenizer", "PATH",
       "A folder with tokenizer.json, vocab.txt, or vocab.json and merges.txt; or a "
       "tokenizer.json."},
      {"output", "PREFIX", "Writes PREFIX.bin, PREFIX.idx and PREFIX.meta.json."},
      {"append-eos", "", "End every document with exactly one end-of-text token."},
      {"add-bos", "", "Begin every document with exactly one begin-of-text token."},
      {"validation-fraction", "F",
       "Write PREFIX-train and PREFIX-valid; each document's text decides where it goes."},
      {"threads", "N", "Threads; default: all cores. The result does not depend on it."},
      {"overwrite", "", "Replace a dataset of that name."},
  });
  verb.min_positionals = 1;
  verb.max_positionals = -1;
  verb.run = Run;
  return verb;
}

}  // namespace tranche
