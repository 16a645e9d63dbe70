// `tranche tokenizer train` and `tranche tokenizer verify`.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/status.h"
#include "base/units.h"
#include "data/text_reader.h"
#include "data/tokenizer_trainer.h"
#include "data/tokenizer_verify.h"
#include "trainer/cli.h"
#include "trainer/exit_codes.h"
#include "trainer/verbs/text_flags.h"
#include "trainer/verbs/verbs.h"

namespace tranche {
namespace {

absl::StatusOr<TrainerOptions> ParseTrainerOptions(const Arguments& arguments) {
  using Model = TrainerOptions::Model;
  TrainerOptions options;
  TRANCHE_ASSIGN_OR_RETURN(options.model,
                           arguments.GetOneOf<Model>("model", {{"bpe", Model::kByteLevelBpe},
                                                               {"wordpiece", Model::kWordPiece}}));
  TRANCHE_ASSIGN_OR_RETURN(
      options.pattern, arguments.GetOneOf<ScanPattern>("pattern", {{"gpt2", ScanPattern::kGpt2},
                                                                   {"cl100k", ScanPattern::kCl100k},
                                                                   {"qwen2", ScanPattern::kQwen2},
                                                                   {"o200k", ScanPattern::kO200k},
                                                                   {"none", ScanPattern::kNone}}));
  const bool word_piece = options.model == Model::kWordPiece;
  if (word_piece && arguments.Has("pattern")) {
    return absl::InvalidArgumentError("--pattern: has no effect with --model wordpiece");
  }
  for (const char* flag : {"max-alphabet", "cased"}) {
    if (!word_piece && arguments.Has(flag)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", flag, ": has no effect without --model wordpiece"));
    }
  }
  constexpr int64_t kMost = int64_t{1} << 40;
  TRANCHE_ASSIGN_OR_RETURN(options.vocab_size,
                           arguments.GetInt("vocab-size", options.vocab_size, 1, kMost));
  TRANCHE_ASSIGN_OR_RETURN(options.min_frequency,
                           arguments.GetInt("min-frequency", options.min_frequency, 1, kMost));
  TRANCHE_ASSIGN_OR_RETURN(options.max_alphabet,
                           arguments.GetInt("max-alphabet", options.max_alphabet, 1, kMost));
  TRANCHE_ASSIGN_OR_RETURN(const int64_t threads, arguments.GetInt("threads", 0, 0, 4096));
  options.threads = static_cast<int>(threads);
  options.lowercase = !arguments.Has("cased");
  options.special_tokens = arguments.GetAll("special-token");
  return options;
}

absl::Status Train(const Arguments& arguments) {
  const std::string output = arguments.Get("output");
  if (output.empty())
    return absl::InvalidArgumentError("--output is needed; see tranche tokenizer train --help");
  TRANCHE_ASSIGN_OR_RETURN(const TrainerOptions options, ParseTrainerOptions(arguments));
  TRANCHE_ASSIGN_OR_RETURN(const TextOptions text, ParseTextFlags(arguments));
  if (FileExists(JoinPath(output, "tokenizer.json")) && !arguments.Has("overwrite")) {
    return absl::AlreadyExistsError(
        absl::StrCat(output, ": holds a tokenizer already; --overwrite replaces it"));
  }
  TRANCHE_ASSIGN_OR_RETURN(const std::unique_ptr<TextReader> reader,
                           TextReader::Open(arguments.positionals(), text));
  std::unique_ptr<ProgressBar> bar;
  std::string bar_phase;
  const auto progress = [&](absl::string_view phase, int64_t done, int64_t total) {
    if (bar == nullptr || bar_phase != phase) {
      bar_phase = std::string(phase);
      bar.reset();
      const bool reading = total == 0;
      bar = std::make_unique<ProgressBar>(reading ? "count words" : "join pairs",
                                          reading ? reader->total_file_bytes() : total);
    }
    if (total == 0) {
      bar->Update(reader->stats().file_bytes, absl::StrCat(FormatBytes(done), " of text"));
    } else {
      bar->Update(done, absl::StrCat(done, " tokens"));
    }
  };
  const auto start = std::chrono::steady_clock::now();
  const absl::StatusOr<TrainerReport> report = TrainTokenizer(
      options, [&](std::string* document) { return reader->Next(document); }, output, progress);
  bar.reset();
  TRANCHE_RETURN_IF_ERROR(report.status());
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  absl::PrintF("%s: %s tokens, %s merges, from %s documents (%s, %s distinct words) in %s\n",
               output, FormatInteger(report->vocab_size), FormatInteger(report->merges),
               FormatInteger(report->documents), FormatBytes(report->text_bytes),
               FormatInteger(report->distinct_pieces), FormatSeconds(seconds));
  if (report->vocab_size < options.vocab_size) {
    LogWarning(absl::StrCat("the text gives ", report->vocab_size, " tokens, not the ",
                            options.vocab_size, " asked for: no other pair occurs ",
                            options.min_frequency, " times"));
  }
  PrintTextFaults(reader->stats());
  return absl::OkStatus();
}

int RunTrain(const Arguments& arguments) {
  const absl::Status status = Train(arguments);
  return status.ok() ? kExitDone : ReportError(status);
}

absl::StatusOr<bool> Verify(const Arguments& arguments) {
  TRANCHE_ASSIGN_OR_RETURN(const int64_t shown, arguments.GetInt("show", 10, 0, 1 << 20));
  TRANCHE_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(arguments.positionals()[0]));
  for (const std::string& warning : tokenizer->warnings()) LogWarning(warning);
  bool equal = true;
  for (size_t i = 1; i < arguments.positionals().size(); ++i) {
    const std::string& goldens = arguments.positionals()[i];
    TRANCHE_ASSIGN_OR_RETURN(const TokenizerVerdict verdict,
                             VerifyTokenizer(*tokenizer, goldens, static_cast<int>(shown)));
    const bool all = verdict.equal_lines == verdict.lines;
    equal &= all;
    absl::PrintF("%s  %s: %s of %s lines equal\n", all ? "ok    " : "FAILED", goldens,
                 FormatInteger(verdict.equal_lines), FormatInteger(verdict.lines));
    if (all) continue;
    absl::PrintF("        differing in ids %d, ids_with_special %d, decoded %d\n", verdict.ids,
                 verdict.ids_with_special, verdict.decoded);
    for (const std::string& difference : verdict.differences)
      absl::PrintF("        %s\n", difference);
  }
  return equal;
}

int RunVerify(const Arguments& arguments) {
  const absl::StatusOr<bool> equal = Verify(arguments);
  if (!equal.ok()) return ReportError(equal.status());
  return *equal ? kExitDone : kExitFailed;
}

}  // namespace

Verb TokenizerTrainVerb() {
  Verb verb;
  verb.name = "tokenizer train";
  verb.summary = "Make a tokenizer (byte-level BPE or WordPiece) from text files.";
  verb.usage = "INPUT... --output FOLDER [flags]";
  verb.example = "tranche tokenizer train corpus/*.txt.gz --output tokenizer --vocab-size 32000";
  verb.flags = WithTextFlags({
      {"output", "FOLDER",
       "Writes tokenizer.json and tokenizer_config.json there (vocab.txt too for WordPiece)."},
      {"model", "KIND", "bpe (byte-level, default) or wordpiece."},
      {"vocab-size", "N", "Tokens in all, special ones included; default 32000."},
      {"min-frequency", "N", "Pairs that occur less often are not joined; default 2."},
      {"special-token", "TEXT",
       "A special token; may be repeated; they take the first ids. Default <|endoftext|>, or "
       "BERT's five.",
       true},
      {"pattern", "NAME", "How BPE cuts text: gpt2 (default), cl100k, qwen2, o200k or none."},
      {"cased", "", "WordPiece: keep capitals and accents."},
      {"max-alphabet", "N",
       "WordPiece: keep this many of the most frequent characters; default 1000."},
      {"threads", "N", "Threads; default: all cores. The result does not depend on it."},
      {"overwrite", "", "Replace a tokenizer in the folder."},
  });
  verb.min_positionals = 1;
  verb.max_positionals = -1;
  verb.run = RunTrain;
  return verb;
}

Verb TokenizerVerifyVerb() {
  Verb verb;
  verb.name = "tokenizer verify";
  verb.summary =
      "Compare a tokenizer with recorded answers of the reference library, line by line.";
  verb.usage = "TOKENIZER GOLDENS.jsonl...";
  verb.example = "tranche tokenizer verify phi-2 goldens/phi-2.jsonl";
  verb.flags = {{"show", "N", "Differences to show; default 10."}};
  verb.min_positionals = 2;
  verb.max_positionals = -1;
  verb.run = RunVerify;
  return verb;
}

}  // namespace tranche
