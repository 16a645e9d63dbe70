#include "data/text_reader.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"
#include "data/byte_source.h"

namespace tranche {
namespace {

constexpr size_t kReadBytes = size_t{1} << 18;

bool IsJsonLines(absl::string_view path) {
  std::string name = absl::AsciiStrToLower(path);
  if (absl::EndsWith(name, ".gz")) name.resize(name.size() - 3);
  return absl::EndsWith(name, ".jsonl") || absl::EndsWith(name, ".ndjson");
}

absl::string_view WithoutLineEnd(absl::string_view line) {
  if (absl::EndsWith(line, "\n")) {
    line.remove_suffix(1);
    if (absl::EndsWith(line, "\r")) line.remove_suffix(1);
  }
  return line;
}

bool IsBlank(absl::string_view line) {
  return std::all_of(line.begin(), line.end(), [](char c) { return c == ' ' || c == '\t'; });
}

// The name of an encoding in units of two or four bytes, by the byte-order mark or, without one, by
// NULs in every other byte at the start; else empty.
absl::string_view WideEncoding(absl::string_view text) {
  for (const absl::string_view mark :
       {absl::string_view("\xff\xfe\0\0", 4), absl::string_view("\0\0\xfe\xff", 4)}) {
    if (absl::StartsWith(text, mark)) return "UTF-32";
  }
  if (absl::StartsWith(text, "\xff\xfe") || absl::StartsWith(text, "\xfe\xff")) return "UTF-16";
  constexpr size_t kFew = 8, kEnough = 64;
  if (text.size() < kFew) return "";
  bool little = true, big = true;
  for (size_t i = 0; i + 1 < std::min(text.size(), kEnough); i += 2) {
    little &= text[i] != '\0' && text[i + 1] == '\0';
    big &= text[i] == '\0' && text[i + 1] != '\0';
  }
  return little ? "UTF-16LE" : big ? "UTF-16BE" : "";
}

// Cuts one file into documents. Memory: one read, the document under way and the block.
class FileCutter {
 public:
  FileCutter(std::string path, std::unique_ptr<ByteSource> source, const TextOptions& options)
      : path_(std::move(path)),
        json_(IsJsonLines(path_)),
        rule_(json_ ? DocumentRule::kLine : options.rule),
        options_(options),
        source_(std::move(source)) {}

  // Adds documents to *block until it is full or the file is done; *done says which.
  absl::Status Fill(RawBlock* block, bool* done) {
    block->path = path_;
    block->json = json_;
    *done = false;
    while (static_cast<int64_t>(block->bytes.size()) < options_.block_bytes) {
      const char* newline = nullptr;
      if (rule_ != DocumentRule::kFile && scan_ < buffer_.size()) {
        newline = static_cast<const char*>(
            std::memchr(buffer_.data() + scan_, '\n', buffer_.size() - scan_));
      }
      if (newline != nullptr) {
        const size_t end = static_cast<size_t>(newline - buffer_.data()) + 1;
        TakeLine(end, block);
        scan_ = line_begin_ = end;
        ++line_;
        continue;
      }
      scan_ = buffer_.size();
      if (end_of_file_) {
        TakeRest(block);
        *done = true;
        break;
      }
      TRANCHE_RETURN_IF_ERROR(Refill());
    }
    block->stats.file_bytes += source_->consumed() - reported_bytes_;
    reported_bytes_ = source_->consumed();
    if (*done) {
      ++block->stats.files;
      if (documents_ == 0) block->stats.empty_files.push_back(path_);
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Refill() {
    if (document_begin_ > 0) {
      buffer_.erase(0, document_begin_);
      buffer_offset_ += static_cast<int64_t>(document_begin_);
      for (size_t* index : {&line_begin_, &scan_, &content_end_}) {
        *index -= std::min(*index, document_begin_);
      }
      document_begin_ = 0;
    }
    if (static_cast<int64_t>(buffer_.size()) > options_.max_document_bytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          path_, ":", document_line_, ": a document of more than ", options_.max_document_bytes,
          " bytes starts here; choose another document rule or split the file"));
    }
    const size_t before = buffer_.size();
    buffer_.resize(before + kReadBytes);
    const auto n = source_->Read(buffer_.data() + before, kReadBytes);
    buffer_.resize(before + (n.ok() ? *n : 0));
    TRANCHE_RETURN_IF_ERROR(n.status());
    end_of_file_ = *n == 0;
    if (!signature_seen_ && (buffer_.size() >= 3 || end_of_file_)) {
      signature_seen_ = true;
      return CheckSignature();
    }
    return absl::OkStatus();
  }

  absl::Status CheckSignature() {
    if (const absl::string_view wide = WideEncoding(buffer_); !wide.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          path_, ": is ", wide, ", UTF-8 is needed: ", "iconv -f ", wide, " -t UTF-8 ", path_));
    }
    if (absl::StartsWith(buffer_, "\x1f\x8b")) {
      return absl::InvalidArgumentError(absl::StrCat(
          path_, ": is gzip data in a file whose name does not end in .gz; rename it"));
    }
    if (absl::StartsWith(buffer_, "\xef\xbb\xbf")) {
      document_begin_ = line_begin_ = scan_ = content_end_ = 3;
    }
    return absl::OkStatus();
  }

  // A line is complete: [line_begin_, end) with its line end.
  void TakeLine(size_t end, RawBlock* block) {
    const absl::string_view line =
        WithoutLineEnd(absl::string_view(buffer_).substr(line_begin_, end - line_begin_));
    switch (rule_) {
      case DocumentRule::kLine:
        content_end_ = line_begin_ + line.size();
        if (!json_ || !IsBlank(line)) Emit(block);
        StartDocument(end);
        break;
      case DocumentRule::kBlankLine:
        if (!IsBlank(line)) {
          content_end_ = line_begin_ + line.size();
          break;
        }
        if (content_end_ > document_begin_) Emit(block);
        StartDocument(end);
        break;
      case DocumentRule::kSeparator:
        if (line != options_.separator) {
          content_end_ = line_begin_ + line.size();
          break;
        }
        Emit(block);
        StartDocument(end);
        break;
      case DocumentRule::kFile:
        break;
    }
  }

  void TakeRest(RawBlock* block) {
    if (rule_ == DocumentRule::kFile) {
      content_end_ = buffer_.size();
    } else if (line_begin_ < buffer_.size()) {
      TakeLine(buffer_.size(), block);  // the last line has no line end
    }
    if (document_begin_ < buffer_.size() && content_end_ > document_begin_) Emit(block);
    StartDocument(buffer_.size());
  }

  void Emit(RawBlock* block) {
    const size_t end = std::max(content_end_, document_begin_);
    RawBlock::Document document;
    document.begin = static_cast<int64_t>(block->bytes.size());
    document.size = static_cast<int64_t>(end - document_begin_);
    document.line = document_line_;
    document.offset = buffer_offset_ + static_cast<int64_t>(document_begin_);
    block->bytes.append(buffer_, document_begin_, end - document_begin_);
    block->documents.push_back(document);
    ++documents_;
  }

  void StartDocument(size_t begin) {
    document_begin_ = content_end_ = begin;
    document_line_ = line_ + 1;
  }

  const std::string path_;
  const bool json_;
  const DocumentRule rule_;
  const TextOptions options_;
  const std::unique_ptr<ByteSource> source_;
  std::string buffer_;
  int64_t buffer_offset_ = 0;  // in the text of the file, of buffer_[0]
  // Indices into buffer_: the document and the line under way, how far line ends were sought, and
  // where the document's last line ends without its line end.
  size_t document_begin_ = 0, line_begin_ = 0, scan_ = 0, content_end_ = 0;
  int64_t line_ = 1, document_line_ = 1;
  int64_t reported_bytes_ = 0, documents_ = 0;
  bool end_of_file_ = false, signature_seen_ = false;
};

class FilesReader : public TextReader {
 public:
  FilesReader(std::vector<std::string> files, int64_t total_bytes, const TextOptions& options)
      : files_(std::move(files)), total_bytes_(total_bytes), options_(options) {}

  absl::StatusOr<bool> NextBlock(RawBlock* block) override {
    *block = RawBlock();
    while (cutter_ != nullptr || next_file_ < files_.size()) {
      if (cutter_ == nullptr) {
        const std::string& path = files_[next_file_++];
        TRANCHE_ASSIGN_OR_RETURN(auto source, ByteSource::Open(path));
        cutter_ = std::make_unique<FileCutter>(path, std::move(source), options_);
      }
      bool done = false;
      TRANCHE_RETURN_IF_ERROR(cutter_->Fill(block, &done));
      if (done) cutter_ = nullptr;
      if (!block->documents.empty()) return true;
    }
    // Counts of files without documents at the end still have to be told.
    return block->stats.files > 0;
  }

  absl::StatusOr<bool> Next(std::string* document) override {
    while (next_document_ == block_.documents.size()) {
      RawBlock raw;
      TRANCHE_ASSIGN_OR_RETURN(const bool more, NextBlock(&raw));
      if (!more) return false;
      TRANCHE_ASSIGN_OR_RETURN(block_, DecodeBlock(std::move(raw), options_));
      stats_.Add(block_.stats);
      next_document_ = 0;
    }
    *document = std::move(block_.documents[next_document_++]);
    return true;
  }

  const TextStats& stats() const override { return stats_; }
  const std::vector<std::string>& files() const override { return files_; }
  int64_t total_file_bytes() const override { return total_bytes_; }

 private:
  const std::vector<std::string> files_;
  const int64_t total_bytes_;
  const TextOptions options_;
  size_t next_file_ = 0;
  std::unique_ptr<FileCutter> cutter_;
  TextBlock block_;
  size_t next_document_ = 0;
  TextStats stats_;
};

}  // namespace

void TextStats::Add(const TextStats& other) {
  documents += other.documents;
  text_bytes += other.text_bytes;
  skipped_documents += other.skipped_documents;
  replaced_sequences += other.replaced_sequences;
  files += other.files;
  file_bytes += other.file_bytes;
  empty_files.insert(empty_files.end(), other.empty_files.begin(), other.empty_files.end());
  if (first_skipped.empty()) first_skipped = other.first_skipped;
}

absl::StatusOr<std::unique_ptr<TextReader>> TextReader::Open(const std::vector<std::string>& inputs,
                                                             const TextOptions& options) {
  TRANCHE_ASSIGN_OR_RETURN(std::vector<std::string> files, ExpandInputs(inputs));
  int64_t total = 0;
  for (const std::string& path : files) {
    TRANCHE_ASSIGN_OR_RETURN(const int64_t size, FileSize(path));
    total += size;
  }
  return std::make_unique<FilesReader>(std::move(files), total, options);
}

}  // namespace tranche
