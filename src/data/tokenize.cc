#include "data/tokenize.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/status.h"
#include "data/indexed_writer.h"

namespace tranche {
namespace {

// One block of text, tokenized: what goes to each output.
struct Tokens {
  struct Part {
    std::string bytes;
    std::vector<int64_t> lengths;
    int64_t text_bytes = 0;
  };
  std::array<Part, 2> parts;
  TextStats stats;
  int64_t empty_documents = 0;
};

// [0, 1) from a document's text alone.
double TextFraction(absl::string_view text) {
  const std::string hash = Hash128(text);
  uint64_t bits = 0;
  std::from_chars(hash.data(), hash.data() + 13, bits, 16);
  return static_cast<double>(bits) * 0x1p-52;
}

class Encoder {
 public:
  Encoder(const Tokenizer& tokenizer, const TokenizeOptions& options)
      : tokenizer_(tokenizer),
        options_(options),
        type_(TypeForVocabulary(tokenizer.vocab_size())) {}

  absl::StatusOr<Tokens> Encode(RawBlock raw) const {
    TRANCHE_ASSIGN_OR_RETURN(TextBlock block, DecodeBlock(std::move(raw), options_.text));
    Tokens tokens;
    tokens.stats = std::move(block.stats);
    std::vector<int32_t> ids;
    for (const std::string& document : block.documents) {
      ids.assign(options_.add_bos ? 1 : 0, tokenizer_.specials().bos);
      const size_t before = ids.size();
      tokenizer_.Encode(document, /*add_special=*/false, &ids);
      if (ids.size() == before) {
        ++tokens.empty_documents;
        continue;
      }
      absl::Span<const int32_t> kept(ids);
      // The text may spell its own, even more than once.
      while (options_.add_bos && kept.size() > 1 && kept[1] == kept[0]) kept.remove_prefix(1);
      if (options_.append_eos) {
        const int32_t eos = tokenizer_.specials().eos;
        const size_t skipped = ids.size() - kept.size();
        while (ids.size() > skipped + 1 && ids.back() == eos) ids.pop_back();
        if (ids.back() != eos) ids.push_back(eos);
        kept = absl::Span<const int32_t>(ids).subspan(skipped);
      }
      const bool valid =
          options_.validation_fraction > 0 && TextFraction(document) < options_.validation_fraction;
      Tokens::Part& part = tokens.parts[valid ? 1 : 0];
      AppendIds(kept, type_, &part.bytes);
      part.lengths.push_back(static_cast<int64_t>(kept.size()));
      part.text_bytes += static_cast<int64_t>(document.size());
    }
    return tokens;
  }

  TokenType type() const { return type_; }

 private:
  const Tokenizer& tokenizer_;
  const TokenizeOptions& options_;
  const TokenType type_;
};

// Threads take blocks from the reader in turn and encode them; Next hands the results out in the
// order of the text. At most 2 blocks a thread are under way.
class ParallelEncoder {
 public:
  ParallelEncoder(TextReader& reader, const Encoder& encoder, int threads)
      : reader_(reader), encoder_(encoder), most_(2 * threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
  }
  ~ParallelEncoder() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  // False at the end.
  absl::StatusOr<bool> Next(Tokens* tokens) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock,
                  [&] { return done_.count(next_out_) > 0 || (at_end_ && next_out_ == next_in_); });
    const auto it = done_.find(next_out_);
    if (it == done_.end()) return false;
    absl::StatusOr<Tokens> result = std::move(it->second);
    done_.erase(it);
    ++next_out_;
    lock.unlock();
    changed_.notify_all();
    TRANCHE_RETURN_IF_ERROR(result.status());
    *tokens = *std::move(result);
    return true;
  }

 private:
  void Work() {
    for (;;) {
      std::unique_lock<std::mutex> reading(reader_mutex_);
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [&] { return stop_ || at_end_ || next_in_ - next_out_ < most_; });
        if (stop_ || at_end_) return;
      }
      RawBlock raw;
      const absl::StatusOr<bool> more = reader_.NextBlock(&raw);
      int64_t number;
      {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!more.ok()) done_.emplace(next_in_++, more.status());
        at_end_ = !more.ok() || !*more;
        number = next_in_;
        if (!at_end_) ++next_in_;
      }
      reading.unlock();
      changed_.notify_all();
      if (!more.ok() || !*more) return;
      absl::StatusOr<Tokens> tokens = encoder_.Encode(std::move(raw));
      {
        std::lock_guard<std::mutex> lock(mutex_);
        done_.emplace(number, std::move(tokens));
      }
      changed_.notify_all();
    }
  }

  TextReader& reader_;
  const Encoder& encoder_;
  const int64_t most_;       // blocks under way
  std::mutex reader_mutex_;  // taken before mutex_
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int64_t, absl::StatusOr<Tokens>> done_;
  int64_t next_in_ = 0, next_out_ = 0;
  bool at_end_ = false, stop_ = false;
  std::vector<std::thread> threads_;
};

absl::Status CheckOptions(const Tokenizer& tokenizer, const TokenizeOptions& options,
                          const std::vector<std::string>& prefixes) {
  if (options.append_eos && tokenizer.specials().eos < 0) {
    return absl::InvalidArgumentError(
        "the tokenizer has no EOS token to append: leave --append-eos out ([CLS] and [SEP] are put "
        "around a sample when it is read), or name one as eos_token in tokenizer_config.json");
  }
  if (options.add_bos && tokenizer.specials().bos < 0) {
    return absl::InvalidArgumentError(
        "the tokenizer has no BOS token to add: leave --add-bos out, or name one as bos_token in "
        "tokenizer_config.json");
  }
  for (const std::string& prefix : prefixes) {
    for (const char* suffix : {".bin", ".idx", ".meta.json"}) {
      if (!options.overwrite && FileExists(prefix + suffix)) {
        return absl::AlreadyExistsError(absl::StrCat(
            prefix, suffix, ": exists already; choose another output or pass --overwrite"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizeReport> TokenizeCorpus(const Tokenizer& tokenizer,
                                              const TokenizeOptions& options, FileSystem& files) {
  std::vector<std::string> prefixes = {options.output};
  if (options.validation_fraction > 0)
    prefixes = {options.output + "-train", options.output + "-valid"};
  TRANCHE_RETURN_IF_ERROR(CheckOptions(tokenizer, options, prefixes));
  TRANCHE_ASSIGN_OR_RETURN(const auto reader, TextReader::Open(options.inputs, options.text));
  TRANCHE_RETURN_IF_ERROR(files.MakeDirs(DirName(options.output)));

  const Encoder encoder(tokenizer, options);
  std::vector<std::unique_ptr<IndexedWriter>> writers;
  TokenizeReport report;
  for (const std::string& prefix : prefixes) {
    TRANCHE_ASSIGN_OR_RETURN(auto writer, IndexedWriter::Create(files, prefix, encoder.type()));
    writers.push_back(std::move(writer));
    report.outputs.push_back({prefix});
  }
  report.token_type = std::string(TokenTypeName(encoder.type()));
  report.threads = options.threads > 0
                       ? options.threads
                       : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));

  ParallelEncoder pipeline(*reader, encoder, report.threads);
  for (Tokens tokens;;) {
    TRANCHE_ASSIGN_OR_RETURN(const bool more, pipeline.Next(&tokens));
    if (!more) break;
    report.text.Add(tokens.stats);
    report.empty_documents += tokens.empty_documents;
    int64_t written = 0;
    for (size_t i = 0; i < writers.size(); ++i) {
      const Tokens::Part& part = tokens.parts[i];
      TRANCHE_RETURN_IF_ERROR(writers[i]->AddDocuments(part.bytes, part.lengths));
      report.outputs[i].text_bytes += part.text_bytes;
      report.outputs[i].tokens = writers[i]->num_tokens();
      report.outputs[i].documents = writers[i]->num_documents();
      written += writers[i]->num_tokens();
    }
    if (options.progress)
      options.progress(report.text.file_bytes, reader->total_file_bytes(), written);
  }
  for (const TokenizeReport::Output& output : report.outputs) {
    if (output.tokens > 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(output.prefix, ": not one document with a token is left for it, of ",
                     report.text.documents + report.text.skipped_documents, " documents in ",
                     report.text.files, " files (", report.empty_documents, " empty, ",
                     report.text.skipped_documents, " invalid)"));
  }
  for (size_t i = 0; i < writers.size(); ++i) {
    DatasetMeta meta;
    meta.tokenizer = tokenizer.fingerprint();
    meta.vocab_size = tokenizer.vocab_size();
    if (options.append_eos) meta.eos = tokenizer.specials().eos;
    if (options.add_bos) meta.bos = tokenizer.specials().bos;
    meta.text_bytes = report.outputs[i].text_bytes;
    TRANCHE_RETURN_IF_ERROR(writers[i]->Commit(&meta));
  }
  return report;
}

}  // namespace tranche
