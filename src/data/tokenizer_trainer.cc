#include "data/tokenizer_trainer.h"

#include <algorithm>
#include <thread>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "base/status.h"
#include "data/pretokenize.h"
#include "data/tokenizer_normalizer.h"
#include "data/tokenizer_trainer_count.h"
#include "data/tokenizer_trainer_merge.h"
#include "data/tokenizer_vocab.h"
#include "data/unicode.h"
#include "nlohmann/json.hpp"

namespace tranche {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kContinuing = "##";
constexpr int64_t kMaxWordCharacters = 100;

// What training has found, before it is written.
struct Learned {
  std::vector<std::string> tokens;  // by id
  std::vector<std::pair<int32_t, int32_t>> merges;
};

absl::Status CheckOptions(const TrainerOptions& options, const std::vector<std::string>& specials) {
  const auto error = [](const auto&... parts) {
    return absl::InvalidArgumentError(absl::StrCat(parts...));
  };
  if (options.vocab_size < 1 || options.vocab_size > kMaxTokenId) {
    return error("vocab_size ", options.vocab_size, ": must be from 1 to ", kMaxTokenId);
  }
  if (options.min_frequency < 1)
    return error("min_frequency ", options.min_frequency, ": must be at least 1");
  if (options.max_alphabet < 1)
    return error("max_alphabet ", options.max_alphabet, ": must be at least 1");
  absl::flat_hash_set<std::string> seen;
  for (const std::string& special : specials) {
    if (special.empty()) return error("special tokens: an empty one");
    if (special.find('\n') != std::string::npos)
      return error("special tokens: one holds a line end");
    if (!seen.insert(special).second)
      return error("special tokens: \"", special, "\" is given twice");
  }
  if (options.model == TrainerOptions::Model::kWordPiece) {
    for (const char* needed : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}) {
      if (!seen.contains(needed)) return error("special tokens: WordPiece needs ", needed);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRoom(const TrainerOptions& options, size_t needed, size_t specials) {
  if (static_cast<int64_t>(needed) <= options.vocab_size) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "vocab_size ", options.vocab_size, ": too small for ", specials, " special tokens and ",
      needed - specials, " single characters; at least ", needed, " are needed"));
}

// The stand-ins of all bytes, by code point.
std::vector<std::pair<uint32_t, uint8_t>> StandIns() {
  std::vector<std::pair<uint32_t, uint8_t>> result;
  for (uint32_t c = 0; c < 512; ++c) {
    if (const int byte = StandInToByte(c); byte >= 0)
      result.emplace_back(c, static_cast<uint8_t>(byte));
  }
  return result;
}

using MergeProgress = absl::FunctionRef<void(int64_t tokens)>;

absl::StatusOr<Learned> LearnByteLevel(const TrainerOptions& options, const PieceCounts& counts,
                                       std::vector<std::string> tokens, MergeProgress progress) {
  const size_t specials = tokens.size();
  int32_t id_of_byte[256];
  for (const auto& [stand_in, byte] : StandIns()) {
    const auto special = std::find(tokens.begin(), tokens.end(), ByteToStandIn(byte));
    if (special != tokens.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("special tokens: \"", *special, "\" is the stand-in of a byte"));
    }
    id_of_byte[byte] = static_cast<int32_t>(tokens.size());
    tokens.push_back(ByteToStandIn(byte));
  }
  TRANCHE_RETURN_IF_ERROR(CheckRoom(options, tokens.size(), specials));
  MergeLearner learner(std::move(tokens), "");
  std::vector<int32_t> symbols;
  for (const auto& [piece, count] : counts.pieces) {
    symbols.clear();
    for (const char c : piece) symbols.push_back(id_of_byte[static_cast<uint8_t>(c)]);
    learner.AddWord(symbols, count);
  }
  learner.Learn(options.vocab_size, options.min_frequency, progress);
  return Learned{learner.tokens(), learner.merges()};
}

absl::StatusOr<Learned> LearnWordPiece(const TrainerOptions& options, const PieceCounts& counts,
                                       std::vector<std::string> tokens, MergeProgress progress) {
  const size_t specials = tokens.size();
  // Character -> how often, and in which roles.
  struct Use {
    int64_t count = 0;
    bool starts = false, continues = false;
  };
  absl::flat_hash_map<uint32_t, Use> uses;
  const auto is_word = [](absl::string_view piece) {
    return std::count_if(piece.begin(), piece.end(), [](char c) {
             return (static_cast<uint8_t>(c) & 0xC0) != 0x80;
           }) <= kMaxWordCharacters;
  };
  for (const auto& [piece, count] : counts.pieces) {
    if (!is_word(piece)) continue;
    for (size_t position = 0; position < piece.size();) {
      const bool start = position == 0;
      Use& use = uses[NextCodePoint(piece, &position)];
      use.count += count;
      (start ? use.starts : use.continues) = true;
    }
  }
  std::vector<std::pair<uint32_t, Use>> alphabet(uses.begin(), uses.end());
  std::sort(alphabet.begin(), alphabet.end(), [](const auto& a, const auto& b) {
    return a.second.count != b.second.count ? a.second.count > b.second.count : a.first < b.first;
  });
  if (static_cast<int64_t>(alphabet.size()) > options.max_alphabet)
    alphabet.resize(options.max_alphabet);
  std::sort(alphabet.begin(), alphabet.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });

  absl::flat_hash_map<uint32_t, int32_t> start_ids, continue_ids;
  for (const bool start : {true, false}) {
    for (const auto& [c, use] : alphabet) {
      if (!(start ? use.starts : use.continues)) continue;
      std::string token = start ? "" : kContinuing;
      AppendUtf8(c, &token);
      const auto special =
          std::find(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(specials), token);
      if (special != tokens.begin() + static_cast<std::ptrdiff_t>(specials)) {
        return absl::InvalidArgumentError(
            absl::StrCat("special tokens: \"", *special, "\" is a character of the text"));
      }
      (start ? start_ids : continue_ids)[c] = static_cast<int32_t>(tokens.size());
      tokens.push_back(std::move(token));
    }
  }
  TRANCHE_RETURN_IF_ERROR(CheckRoom(options, tokens.size(), specials));
  MergeLearner learner(std::move(tokens), kContinuing);
  std::vector<int32_t> symbols;
  for (const auto& [piece, count] : counts.pieces) {
    if (!is_word(piece)) continue;
    symbols.clear();
    for (size_t position = 0; position < piece.size();) {
      const auto& ids = position == 0 ? start_ids : continue_ids;
      const auto id = ids.find(NextCodePoint(piece, &position));
      if (id != ids.end()) {
        symbols.push_back(id->second);
        continue;
      }
      // A word with a rare character is unknown when tokenized; its parts still tell what occurs
      // together.
      learner.AddWord(symbols, count);
      symbols.clear();
    }
    learner.AddWord(symbols, count);
  }
  learner.Learn(options.vocab_size, options.min_frequency, progress);
  return Learned{learner.tokens(), learner.merges()};
}

Json AddedTokens(const std::vector<std::string>& specials) {
  Json added = Json::array();
  for (size_t i = 0; i < specials.size(); ++i) {
    added.push_back({{"id", i},
                     {"content", specials[i]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  return added;
}

Json Vocab(const Learned& learned) {
  Json vocab = Json::object();
  auto& members = vocab.get_ref<Json::object_t&>();
  members.reserve(learned.tokens.size());
  // Appended directly: ordered_json's own insertion looks through all earlier members.
  for (size_t id = 0; id < learned.tokens.size(); ++id)
    members.Container::emplace_back(learned.tokens[id], id);
  return vocab;
}

Json ByteLevelFile(const TrainerOptions& options, const std::vector<std::string>& specials,
                   const Learned& learned) {
  const auto byte_level = [](bool use_regex) {
    return Json{{"type", "ByteLevel"},
                {"add_prefix_space", false},
                {"trim_offsets", true},
                {"use_regex", use_regex}};
  };
  Json pre_tokenizer = byte_level(options.pattern == ScanPattern::kGpt2);
  if (options.pattern != ScanPattern::kGpt2 && options.pattern != ScanPattern::kNone) {
    const Json split = {{"type", "Split"},
                        {"pattern", {{"Regex", std::string(PatternText(options.pattern))}}},
                        {"behavior", "Isolated"},
                        {"invert", false}};
    pre_tokenizer =
        Json{{"type", "Sequence"}, {"pretokenizers", Json::array({split, pre_tokenizer})}};
  }
  Json merges = Json::array();
  for (const auto& [left, right] : learned.merges) {
    merges.push_back(Json::array({learned.tokens[left], learned.tokens[right]}));
  }
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", AddedTokens(specials)},
          {"normalizer", nullptr},
          {"pre_tokenizer", pre_tokenizer},
          {"post_processor", byte_level(true)},
          {"decoder", byte_level(true)},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", Vocab(learned)},
            {"merges", merges}}}};
}

Json WordPieceFile(const TrainerOptions& options, const std::vector<std::string>& specials,
                   const Learned& learned) {
  const auto special = [](const char* token, int type) {
    return Json{{"SpecialToken", {{"id", token}, {"type_id", type}}}};
  };
  const auto text = [](const char* name, int type) {
    return Json{{"Sequence", {{"id", name}, {"type_id", type}}}};
  };
  const auto listed = [&](const char* token) {
    const auto id = std::find(specials.begin(), specials.end(), token) - specials.begin();
    return Json{{"id", token}, {"ids", Json::array({id})}, {"tokens", Json::array({token})}};
  };
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", AddedTokens(specials)},
          {"normalizer",
           {{"type", "BertNormalizer"},
            {"clean_text", true},
            {"handle_chinese_chars", true},
            {"strip_accents", nullptr},
            {"lowercase", options.lowercase}}},
          {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single", Json::array({special("[CLS]", 0), text("A", 0), special("[SEP]", 0)})},
            {"pair", Json::array({special("[CLS]", 0), text("A", 0), special("[SEP]", 0),
                                  text("B", 1), special("[SEP]", 1)})},
            {"special_tokens", {{"[CLS]", listed("[CLS]")}, {"[SEP]", listed("[SEP]")}}}}},
          {"decoder", {{"type", "WordPiece"}, {"prefix", kContinuing}, {"cleanup", true}}},
          {"model",
           {{"type", "WordPiece"},
            {"unk_token", "[UNK]"},
            {"continuing_subword_prefix", kContinuing},
            {"max_input_chars_per_word", kMaxWordCharacters},
            {"vocab", Vocab(learned)}}}};
}

Json ConfigFile(const TrainerOptions& options, const std::vector<std::string>& specials) {
  if (options.model == TrainerOptions::Model::kWordPiece) {
    return {{"tokenizer_class", "BertTokenizer"},
            {"do_lower_case", options.lowercase},
            {"unk_token", "[UNK]"},
            {"sep_token", "[SEP]"},
            {"pad_token", "[PAD]"},
            {"cls_token", "[CLS]"},
            {"mask_token", "[MASK]"}};
  }
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                 {"clean_up_tokenization_spaces", false}};
  const auto set = [&](const char* key, std::initializer_list<const char*> names) {
    for (const char* name : names) {
      if (!config.contains(key) &&
          std::find(specials.begin(), specials.end(), name) != specials.end())
        config[key] = name;
    }
  };
  set("bos_token", {"<s>", "<|begin_of_text|>", "<|endoftext|>"});
  set("eos_token", {"</s>", "<|end_of_text|>", "<|endoftext|>"});
  set("pad_token", {"<pad>", "<|pad|>"});
  // A document's end must be markable: the first special token is it where none has a usual name.
  if (!config.contains("eos_token") && !specials.empty()) config["eos_token"] = specials[0];
  return config;
}

}  // namespace

absl::StatusOr<TrainerReport> TrainTokenizer(
    const TrainerOptions& options, const DocumentSource& source, const std::string& folder,
    const std::function<void(absl::string_view phase, int64_t done, int64_t total)>& progress) {
  const bool word_piece = options.model == TrainerOptions::Model::kWordPiece;
  std::vector<std::string> specials = options.special_tokens;
  if (specials.empty()) {
    specials = word_piece ? std::vector<std::string>{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
                          : std::vector<std::string>{"<|endoftext|>"};
  }
  TRANCHE_RETURN_IF_ERROR(CheckOptions(options, specials));

  BertNormalizerOptions normalizer_options;
  normalizer_options.lowercase = normalizer_options.strip_accents = options.lowercase;
  const std::unique_ptr<Normalizer> normalizer = MakeBertNormalizer(normalizer_options);
  const PreTokenizer pre_tokenizer =
      word_piece ? PreTokenizer::Bert() : PreTokenizer::ByteLevel(options.pattern);
  const DocumentCutter cut = [&](absl::string_view document,
                                 absl::FunctionRef<void(absl::string_view)> sink) {
    std::string normalized;
    if (word_piece) {
      normalizer->Append(document, &normalized);
      document = normalized;
    }
    if (!document.empty())
      pre_tokenizer.Cut(document, true, [&](absl::string_view piece, bool) { sink(piece); });
  };
  const int threads = options.threads > 0
                          ? options.threads
                          : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  TRANCHE_ASSIGN_OR_RETURN(const PieceCounts counts,
                           CountPieces(source, cut, threads, [&](int64_t bytes) {
                             if (progress) progress("read", bytes, 0);
                           }));
  if (counts.pieces.empty())
    return absl::InvalidArgumentError("there is no text to make a tokenizer from");

  const auto merge_progress = [&](int64_t tokens) {
    if (progress) progress("merge", tokens, options.vocab_size);
  };
  TRANCHE_ASSIGN_OR_RETURN(const Learned learned,
                           word_piece ? LearnWordPiece(options, counts, specials, merge_progress)
                                      : LearnByteLevel(options, counts, specials, merge_progress));

  TRANCHE_RETURN_IF_ERROR(FileSystem::Real().MakeDirs(folder));
  TRANCHE_RETURN_IF_ERROR(WriteFileAtomic(JoinPath(folder, "tokenizer_config.json"),
                                          ConfigFile(options, specials).dump(2) + "\n"));
  if (word_piece) {
    TRANCHE_RETURN_IF_ERROR(
        WriteFileAtomic(JoinPath(folder, "vocab.txt"), absl::StrJoin(learned.tokens, "\n") + "\n"));
  }
  const Json file = word_piece ? WordPieceFile(options, specials, learned)
                               : ByteLevelFile(options, specials, learned);
  TRANCHE_RETURN_IF_ERROR(WriteFileAtomic(JoinPath(folder, "tokenizer.json"), file.dump(1) + "\n"));

  TrainerReport report;
  report.documents = counts.documents;
  report.text_bytes = counts.text_bytes;
  for (const auto& piece : counts.pieces) report.pieces += piece.second;
  report.distinct_pieces = static_cast<int64_t>(counts.pieces.size());
  report.vocab_size = static_cast<int64_t>(learned.tokens.size());
  report.merges = static_cast<int64_t>(learned.merges.size());
  return report;
}

}  // namespace tranche
