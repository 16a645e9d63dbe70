// The parts of a tokenizer, as the loaders fill them in; tokenizer.cc puts them to work.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "data/bpe.h"
#include "data/pretokenize.h"
#include "data/tokenizer.h"
#include "data/tokenizer_added.h"
#include "data/tokenizer_decoder.h"
#include "data/tokenizer_normalizer.h"
#include "data/tokenizer_vocab.h"

namespace tranche {

struct TokenizerParts {
  std::unique_ptr<Vocabulary> vocabulary;
  std::unique_ptr<PieceModel> model;  // refers to *vocabulary
  std::string continues_word_prefix;  // "##" of WordPiece; empty: tokens without a space marker
                                      // continue a word
  std::unique_ptr<Normalizer> normalizer;
  PreTokenizer pre_tokenizer;
  std::unique_ptr<TokenDecoder> decoder;
  std::vector<AddedToken> added;       // with their ids
  std::vector<int32_t> before, after;  // what the post-processor puts around a text
  Tokenizer::Specials specials;
  std::vector<int32_t> reserved;  // special without being added tokens
  std::string fingerprint;
  std::vector<std::string> warnings, files;
};

// Each reads what its name says and leaves specials, fingerprint and files to the caller.
absl::StatusOr<TokenizerParts> ReadTokenizerJson(const std::string& path);
// vocab.txt with tokenizer_config.json (`config`: null where there is none).
absl::StatusOr<TokenizerParts> ReadWordPieceFiles(const std::string& vocab_path,
                                                  const JsonNode& config);
// vocab.json and merges.txt.
absl::StatusOr<TokenizerParts> ReadBpeFiles(const std::string& vocab_path,
                                            const std::string& merges_path, const JsonNode& config);

// Gives the added tokens ids as the reference library does: the vocabulary's, else the next free
// one. Error where `tokens` brings another id along (the library would follow its own silently).
absl::Status PlaceAddedTokens(const std::string& place, std::vector<AddedToken> tokens,
                              TokenizerParts* parts);

std::unique_ptr<Tokenizer> MakeTokenizer(TokenizerParts parts);

}  // namespace tranche
