#include "trainer/verbs/inspect_data.h"

#include <algorithm>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "base/text.h"
#include "base/units.h"
#include "data/token_file.h"

namespace tranche {
namespace {

constexpr int64_t kShownPieces = 64;

// On one line, control characters made visible.
std::string OneLine(absl::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      absl::StrAppendFormat(&out, "\\x%02x", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  int64_t replaced = 0;  // ids may begin or end inside a character
  return ReplaceInvalidUtf8(out, &replaced);
}

std::string Text(const std::vector<int32_t>& ids, const Tokenizer* tokenizer) {
  if (tokenizer != nullptr) return OneLine(tokenizer->Decode(ids, /*skip_special=*/false));
  return absl::StrJoin(ids, " ");
}

std::string Quoted(int32_t id, const Tokenizer* tokenizer) {
  return tokenizer == nullptr ? absl::StrCat(id) : absl::StrCat("\"", Text({id}, tokenizer), "\"");
}

std::string Lengths(const TokenFile& file) {
  int64_t shortest = INT64_MAX, longest = 0, empty = 0;
  for (int64_t d = 0; d < file.num_documents(); ++d) {
    const int64_t length = file.DocumentBegin(d + 1) - file.DocumentBegin(d);
    shortest = std::min(shortest, length);
    longest = std::max(longest, length);
    empty += length == 0;
  }
  if (file.num_documents() == 0) return "";
  return absl::StrFormat(
      "document length: shortest %s, mean %.1f, longest %s tokens%s\n", FormatInteger(shortest),
      static_cast<double>(file.num_tokens()) / static_cast<double>(file.num_documents()),
      FormatInteger(longest), empty > 0 ? absl::StrCat("; ", FormatInteger(empty), " empty") : "");
}

std::string Made(const DatasetMeta& meta, const Tokenizer* tokenizer) {
  const auto added = [&](int32_t id) { return id < 0 ? std::string("none") : absl::StrCat(id); };
  return absl::StrFormat(
      "tokenizer: %s%s, vocabulary %s; EOS appended: %s, BOS added: %s\n"
      "text: %s bytes, %.3f bytes/token\n",
      meta.tokenizer,
      tokenizer == nullptr                         ? ""
      : tokenizer->fingerprint() == meta.tokenizer ? " (the given one)"
                                                   : " (NOT the given one)",
      FormatInteger(meta.vocab_size), added(meta.eos), added(meta.bos),
      FormatInteger(meta.text_bytes),
      static_cast<double>(meta.text_bytes) /
          static_cast<double>(std::max<int64_t>(1, meta.tokens)));
}

// One line a row.
std::string Rows(const MicroBatch& batch, int32_t begin, int32_t end,
                 const std::map<int32_t, int32_t>& label_of, const Tokenizer* tokenizer) {
  std::string out = "    row  position      id  piece -> label\n";
  for (int32_t row = begin; row < end; ++row) {
    const size_t r = static_cast<size_t>(row);
    absl::StrAppendFormat(&out, "  %5d  %8d  %6d  %s", row - begin, batch.positions[r],
                          batch.input_ids[r], Quoted(batch.input_ids[r], tokenizer));
    if (const auto it = label_of.find(row); it != label_of.end()) {
      absl::StrAppend(&out, " -> ", it->second);
      if (tokenizer != nullptr) absl::StrAppend(&out, " ", Quoted(it->second, tokenizer));
    }
    out += '\n';
  }
  return out;
}

// The text of each document's part, then what is predicted there.
std::string Documents(const MicroBatch& batch, int32_t begin, const Loader::SampleInfo& info,
                      const std::map<int32_t, int32_t>& label_of, const LoaderOptions& options) {
  std::string out;
  for (const auto& part : info.parts) {
    const int32_t first = begin + static_cast<int32_t>(part.row),
                  last = first + static_cast<int32_t>(part.size) - 1;
    absl::StrAppendFormat(&out, "  --- document %d, tokens %d to %d%s: rows %d to %d\n",
                          part.document, part.begin, part.begin + part.size - 1,
                          part.ends_document ? " (its end)" : "", part.row,
                          part.row + part.size - 1);
    const std::vector<int32_t> ids(batch.input_ids.begin() + first,
                                   batch.input_ids.begin() + last + 1);
    absl::StrAppend(&out, "  ", Text(ids, options.tokenizer), "\n");
    if (options.objective == Objective::kClm) {
      const auto label = label_of.find(last);
      absl::StrAppend(&out, "  last label: ",
                      label == label_of.end() ? "none" : Quoted(label->second, options.tokenizer),
                      "\n");
      continue;
    }
    for (auto it = label_of.lower_bound(first); it != label_of.end() && it->first <= last; ++it) {
      const int32_t shown = batch.input_ids[static_cast<size_t>(it->first)];
      const bool masked = shown == options.tokenizer->specials().mask;
      absl::StrAppend(&out, "  row ", it->first - begin, ": ",
                      Quoted(it->second, options.tokenizer),
                      masked ? " is masked"
                      : shown == it->second
                          ? " is kept"
                          : absl::StrCat(" is replaced by ", Quoted(shown, options.tokenizer)),
                      "\n");
    }
  }
  return out;
}

}  // namespace

absl::StatusOr<std::string> InspectDataset(const std::string& path, absl::string_view token_dtype,
                                           const Tokenizer* tokenizer) {
  TRANCHE_ASSIGN_OR_RETURN(const auto file, TokenFile::Open(path, TokenFormat::kAuto, token_dtype));
  TRANCHE_RETURN_IF_ERROR(file->CheckIds(INT32_MAX));
  std::string out = absl::StrFormat("%s: %s, %s\n", file->path(), file->format_name(),
                                    TokenTypeName(file->type()));
  if (file->has_index()) {
    absl::StrAppend(&out, FormatInteger(file->num_documents()), " documents, ",
                    FormatInteger(file->num_sequences()), " sequences, ",
                    FormatInteger(file->num_tokens()), " tokens\n", Lengths(*file));
  } else {
    absl::StrAppend(&out, FormatInteger(file->num_tokens()),
                    " tokens; where documents end is not known\n");
  }
  if (file->meta()) out += Made(*file->meta(), tokenizer);
  int64_t document = 0;  // the first that is not empty
  while (document < file->num_documents() && file->DocumentBegin(document + 1) == 0) ++document;
  if (document == file->num_documents()) return out;
  const int64_t length = file->DocumentBegin(document + 1);
  std::vector<int32_t> ids(static_cast<size_t>(std::min(length, kShownPieces)));
  TRANCHE_RETURN_IF_ERROR(file->Read(0, absl::MakeSpan(ids), INT32_MAX));
  absl::StrAppend(&out, "first document (", FormatInteger(length), " tokens): ");
  for (const int32_t id : ids) {
    absl::StrAppend(&out, id);
    if (tokenizer != nullptr) absl::StrAppend(&out, Quoted(id, tokenizer));
    out += ' ';
  }
  absl::StrAppend(&out, length > kShownPieces ? "…\n" : "\n");
  if (tokenizer != nullptr) absl::StrAppend(&out, "  as text: ", Text(ids, tokenizer), "\n");
  return out;
}

absl::StatusOr<std::string> InspectStep(const LoaderOptions& options, int64_t step, bool rows) {
  TRANCHE_ASSIGN_OR_RETURN(const auto loader, Loader::Create(options));
  TRANCHE_ASSIGN_OR_RETURN(const int64_t predicted, loader->PredictedTokens(step));
  const int64_t first = step * options.global_batch_size;
  std::string out = absl::StrFormat(
      "step %d: samples %d to %d, %s labels; an epoch is %s samples, %s steps\n", step, first,
      first + options.global_batch_size - 1, FormatInteger(predicted),
      FormatInteger(loader->samples_per_epoch()), FormatInteger(loader->steps_per_epoch()));
  for (const Loader::SourceReport& source : loader->report()) {
    absl::StrAppendFormat(
        &out, "source %s: share %.4f, %s documents, %s tokens, %s samples, %s tokens unused%s\n",
        source.path, source.share, FormatInteger(source.documents), FormatInteger(source.tokens),
        FormatInteger(source.samples), FormatInteger(source.unused_tokens),
        source.unused_reason.empty() ? "" : absl::StrCat(" (", source.unused_reason, ")"));
  }
  for (int64_t slot = 0; slot < loader->slots(); ++slot) {
    TRANCHE_ASSIGN_OR_RETURN(const MicroBatch batch, loader->Get(step, slot));
    std::map<int32_t, int32_t> label_of;
    for (size_t p = 0; p < batch.labels.size(); ++p)
      label_of[batch.predict_rows[p]] = batch.labels[p];
    for (int64_t q = 0; q < batch.num_sequences(); ++q) {
      const int64_t g = batch.first_sample + q;
      const int32_t begin = batch.cu_sequences[static_cast<size_t>(q)];
      const int32_t end = batch.cu_sequences[static_cast<size_t>(q) + 1];
      const Loader::SampleInfo info = loader->Describe(g);
      const auto labels = std::distance(label_of.lower_bound(begin), label_of.lower_bound(end));
      const auto segments =
          std::count_if(batch.cu_seqlens.begin(), batch.cu_seqlens.end(),
                        [&](int32_t border) { return border >= begin && border < end; });
      absl::StrAppendFormat(
          &out,
          "\nsample %d (slot %d): %s, epoch %d, its sample %d; %d rows, %d segment(s), %d labels",
          g, slot, info.path, info.epoch, info.sample, end - begin, segments, labels);
      if (!batch.next_sentence.empty()) {
        out += batch.next_sentence[static_cast<size_t>(q)] == 0 ? "; B follows A"
                                                                : "; B is from elsewhere";
      }
      out += '\n';
      out += rows ? Rows(batch, begin, end, label_of, options.tokenizer)
                  : Documents(batch, begin, info, label_of, options);
    }
  }
  return out;
}

}  // namespace tranche
