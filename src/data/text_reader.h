// Documents from text files, as a stream with bounded memory: .txt (or any other name) and JSON
// Lines (.jsonl, .ndjson), plain or gzip-compressed (.gz; several members, zero padding at the end
// allowed).
//
// Lines end at \n or \r\n and at nothing else; other separators (U+2028, \v, a lone \r …) stay in
// the document, and so do the line ends inside a document of several lines. A byte-order mark of
// UTF-8 at the start of a file is dropped; UTF-16 is refused by name. Offsets in messages are in
// bytes of the (uncompressed) text, lines count from 1.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tranche {

enum class DocumentRule {
  kBlankLine,  // documents are parted by lines of nothing but spaces and tabs
  kLine,       // one per line; an empty line is an empty document
  kSeparator,  // parted by lines equal to TextOptions::separator
  kFile,       // a file each, unchanged
};

enum class OnTextError {
  kStop,     // the first invalid document is an error with file, line and byte offset
  kSkip,     // invalid documents (UTF-8, JSON) are left out and counted
  kReplace,  // invalid UTF-8 becomes U+FFFD and is counted; broken JSON is left out and counted
};

struct TextOptions {
  DocumentRule rule =
      DocumentRule::kBlankLine;  // JSON Lines has one document a line whatever it is
  std::string separator = "%";
  std::string json_field = "text";
  OnTextError on_error = OnTextError::kStop;
  // A longer document is an error: a guard against wrong rules and hostile archives.
  int64_t max_document_bytes = int64_t{1} << 30;
  int64_t block_bytes = int64_t{1} << 20;  // of text handed out at a time
};

struct TextStats {
  int64_t documents = 0;           // handed out, empty ones among them
  int64_t text_bytes = 0;          // of those documents
  int64_t skipped_documents = 0;   // invalid, left out
  int64_t replaced_sequences = 0;  // maximal invalid UTF-8 sequences that became U+FFFD
  int64_t files = 0;
  int64_t file_bytes = 0;  // consumed on disk; equals the sizes of the files once they are read
  std::vector<std::string> empty_files;
  std::string first_skipped;  // why the first skipped document was; empty where none was

  void Add(const TextStats& other);  // other comes later in the stream
};

// Files, folders (their .txt, .jsonl, .ndjson files and .gz of these, recursively) and globs, as
// paths of files: inputs in the order given, what is in one folder or glob sorted. Errors: an input
// that names nothing, a folder without such files.
absl::StatusOr<std::vector<std::string>> ExpandInputs(const std::vector<std::string>& inputs);

// Raw documents that follow each other in one file, not yet validated: cheap to cut, so that one
// thread feeds many.
struct RawBlock {
  struct Document {
    int64_t begin = 0, size = 0;  // in bytes
    int64_t line = 0;             // where it starts in the file
    int64_t offset = 0;           // byte offset in the uncompressed file
  };
  std::string path;
  bool json = false;
  std::string bytes;
  std::vector<Document> documents;
  TextStats stats;  // files, file_bytes, empty_files since the last block
};

// Validated documents.
struct TextBlock {
  std::vector<std::string> documents;
  TextStats stats;  // all counts of this block
};
// Checks UTF-8, takes the field out of JSON, applies on_error. Pure: run it on any thread.
absl::StatusOr<TextBlock> DecodeBlock(RawBlock raw, const TextOptions& options);

class TextReader {
 public:
  // `inputs` as ExpandInputs takes them.
  static absl::StatusOr<std::unique_ptr<TextReader>> Open(const std::vector<std::string>& inputs,
                                                          const TextOptions& options);
  virtual ~TextReader() = default;

  // The next raw block; false at the end. Errors of files (unreadable, damaged gzip, UTF-16, a
  // document too long) are Status.
  virtual absl::StatusOr<bool> NextBlock(RawBlock* block) = 0;
  // The next document, validated; false at the end. Do not mix with NextBlock.
  virtual absl::StatusOr<bool> Next(std::string* document) = 0;

  // Of what Next has handed out.
  virtual const TextStats& stats() const = 0;
  virtual const std::vector<std::string>& files() const = 0;
  virtual int64_t total_file_bytes() const = 0;  // on disk, of all files: the end of a progress bar
};

}  // namespace tranche
