// Tokenizer::Load: which files a folder holds, and the two older forms without tokenizer.json.
#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/status.h"
#include "base/text.h"
#include "data/tokenizer_parts.h"
#include "data/wordpiece.h"

namespace tranche {
namespace {

constexpr absl::string_view kCompanions[] = {"tokenizer.json",
                                             "tokenizer_config.json",
                                             "special_tokens_map.json",
                                             "added_tokens.json",
                                             "vocab.txt",
                                             "vocab.json",
                                             "merges.txt"};

absl::StatusOr<std::string> ReadText(const std::string& path) {
  TRANCHE_ASSIGN_OR_RETURN(std::string text, ReadFile(path));
  if (const auto invalid = FindInvalidUtf8(text)) {
    const auto line =
        1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(*invalid), '\n');
    return absl::InvalidArgumentError(
        absl::StrCat(path, ":", line, ": invalid UTF-8 at byte ", *invalid));
  }
  if (absl::StartsWith(text, "\xef\xbb\xbf")) text.erase(0, 3);  // an editor's mark is no token's
  return text;
}

// The document of an optional file; null where it is absent.
absl::StatusOr<nlohmann::json> ReadOptionalJson(const std::string& path) {
  if (!FileExists(path)) return nlohmann::json();
  return ReadJsonFile(path);
}

AddedToken Special(std::string content) {
  AddedToken token;
  token.content = std::move(content);
  token.normalized = false;
  token.special = true;
  return token;
}

absl::StatusOr<std::vector<BpeModel::Merge>> ReadMergesFile(const std::string& path) {
  TRANCHE_ASSIGN_OR_RETURN(const std::string text, ReadText(path));
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  while (!lines.empty() && (lines.back().empty() || lines.back() == "\r")) lines.pop_back();
  std::vector<BpeModel::Merge> merges;
  merges.reserve(lines.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    std::string& line = lines[i];
    if (absl::EndsWith(line, "\r")) line.pop_back();
    if (absl::StartsWith(line, "#version")) continue;
    const std::vector<std::string> fields = absl::StrSplit(line, ' ');
    if (fields.size() != 2) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ":", i + 1, ": \"", line, "\" has ", fields.size(),
                       " fields where two tokens parted by one space ", "are needed"));
    }
    merges.emplace_back(fields[0], fields[1]);
  }
  return merges;
}

// The added tokens that tokenizer_config.json and added_tokens.json bring to files without a list
// of their own.
absl::StatusOr<std::vector<AddedToken>> ListedTokens(const std::string& folder,
                                                     const JsonNode& config) {
  std::vector<AddedToken> tokens;
  const JsonNode listed = config.Child("added_tokens_decoder");
  if (listed.value().is_object()) {
    for (const auto& [key, value] : listed.value().items()) {
      const JsonNode node(&value, absl::StrCat(listed.place(), ".", key));
      AddedToken token;
      if (!absl::SimpleAtoi(key, &token.id) || token.id < 0 || token.id > kMaxTokenId)
        return node.Error("its key must be an id");
      TRANCHE_ASSIGN_OR_RETURN(token.content, node.RequiredString("content"));
      TRANCHE_ASSIGN_OR_RETURN(token.special, node.Bool("special", false));
      TRANCHE_ASSIGN_OR_RETURN(token.single_word, node.Bool("single_word", false));
      TRANCHE_ASSIGN_OR_RETURN(token.lstrip, node.Bool("lstrip", false));
      TRANCHE_ASSIGN_OR_RETURN(token.rstrip, node.Bool("rstrip", false));
      TRANCHE_ASSIGN_OR_RETURN(token.normalized, node.Bool("normalized", !token.special));
      tokens.push_back(std::move(token));
    }
  } else {
    const std::string path = JoinPath(folder, "added_tokens.json");
    TRANCHE_ASSIGN_OR_RETURN(const nlohmann::json added, ReadOptionalJson(path));
    if (!added.is_null() && !added.is_object())
      return absl::InvalidArgumentError(path + ": an object is needed here");
    for (const auto& [content, id] : added.items()) {
      AddedToken token;
      token.content = content;
      if (!id.is_number_integer() || id < 0 || id > kMaxTokenId) {
        return absl::InvalidArgumentError(
            absl::StrCat(path, ": ", content, ": an id is needed here"));
      }
      token.id = id.get<int32_t>();
      tokens.push_back(std::move(token));
    }
  }
  std::sort(tokens.begin(), tokens.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  return tokens;
}

// Where tokenizer_config.json lists added tokens that tokenizer.json does not hold, or under
// another id, other programs tokenize otherwise.
absl::Status WarnOfOtherAddedTokens(const std::string& folder, const JsonNode& config,
                                    TokenizerParts* parts) {
  TRANCHE_ASSIGN_OR_RETURN(const std::vector<AddedToken> listed, ListedTokens(folder, config));
  absl::flat_hash_map<absl::string_view, int32_t> held;
  for (const AddedToken& token : parts->added) held[token.content] = token.id;
  for (const AddedToken& token : listed) {
    const auto added = held.find(token.content);
    const int32_t id = added != held.end() ? added->second : parts->vocabulary->Id(token.content);
    if (id == token.id) continue;
    parts->warnings.push_back(absl::StrCat(
        config.place(), "\"", token.content, "\" is listed with id ", token.id,
        ", but tokenizer.json ", id < 0 ? "does not hold it" : absl::StrCat("gives it id ", id),
        "; tokenizer.json counts"));
  }
  return absl::OkStatus();
}

// The text of a special token in tokenizer_config.json or special_tokens_map.json: a string or an
// object with its content.
std::string SpecialText(const nlohmann::json& file, const char* key) {
  if (!file.is_object() || !file.contains(key)) return "";
  const nlohmann::json& value = file[key];
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() && value.contains("content") && value["content"].is_string())
    return value["content"].get<std::string>();
  return "";
}

void FindSpecials(const nlohmann::json& config, const nlohmann::json& map, TokenizerParts* parts) {
  const auto id_of = [&](absl::string_view text) {
    for (const AddedToken& token : parts->added) {
      if (token.content == text) return token.id;
    }
    return text.empty() ? -1 : parts->vocabulary->Id(text);
  };
  const auto find = [&](const char* key, std::initializer_list<absl::string_view> conventions) {
    for (const nlohmann::json* file : {&config, &map}) {
      const int32_t id = id_of(SpecialText(*file, key));
      if (id >= 0) return id;
    }
    // A file that names its specials has no others.
    if (config.is_object() && config.contains(key)) return -1;
    for (const absl::string_view text : conventions) {
      const int32_t id = id_of(text);
      if (id >= 0) return id;
    }
    return -1;
  };
  Tokenizer::Specials& specials = parts->specials;
  specials.bos = find("bos_token", {"<s>", "<|begin_of_text|>", "<|endoftext|>"});
  specials.eos = find("eos_token", {"</s>", "<|end_of_text|>", "<|endoftext|>"});
  specials.pad = find("pad_token", {"[PAD]", "<pad>"});
  specials.unk = find("unk_token", {"[UNK]", "<unk>"});
  specials.mask = find("mask_token", {"[MASK]", "<mask>"});
  specials.cls = find("cls_token", {"[CLS]"});
  specials.sep = find("sep_token", {"[SEP]"});
  if (parts->continues_word_prefix.empty()) return;
  for (const int32_t id : {specials.pad, specials.unk, specials.mask, specials.cls, specials.sep}) {
    if (id >= 0) parts->reserved.push_back(id);
  }
}

}  // namespace

absl::StatusOr<TokenizerParts> ReadWordPieceFiles(const std::string& vocab_path,
                                                  const JsonNode& config) {
  TRANCHE_ASSIGN_OR_RETURN(const std::string text, ReadText(vocab_path));
  if (std::count(text.begin(), text.end(), '\n') > kMaxTokenId) {
    return absl::InvalidArgumentError(
        absl::StrCat(vocab_path, ": more than ", kMaxTokenId, " lines"));
  }
  TokenizerParts parts;
  parts.vocabulary =
      std::make_unique<Vocabulary>(Vocabulary::FromLines(text, vocab_path, &parts.warnings));
  BertNormalizerOptions normalizer;
  TRANCHE_ASSIGN_OR_RETURN(normalizer.lowercase, config.Bool("do_lower_case", true));
  TRANCHE_ASSIGN_OR_RETURN(normalizer.handle_chinese_chars,
                           config.Bool("tokenize_chinese_chars", true));
  TRANCHE_ASSIGN_OR_RETURN(normalizer.strip_accents,
                           config.Bool("strip_accents", normalizer.lowercase));
  parts.normalizer = MakeBertNormalizer(normalizer);
  parts.pre_tokenizer = PreTokenizer::Bert();
  WordPieceOptions options;
  const std::string unk = SpecialText(config.value(), "unk_token");
  if (!unk.empty()) options.unk_token = unk;
  absl::StatusOr<std::unique_ptr<WordPieceModel>> model =
      WordPieceModel::Create(*parts.vocabulary, options);
  if (!model.ok())
    return absl::InvalidArgumentError(absl::StrCat(vocab_path, ": ", model.status().message()));
  parts.model = *std::move(model);
  parts.continues_word_prefix = options.continuing_subword_prefix;
  parts.decoder = MakeWordPieceDecoder(options.continuing_subword_prefix, true);
  TRANCHE_ASSIGN_OR_RETURN(std::vector<AddedToken> added,
                           ListedTokens(DirName(vocab_path), config));
  TRANCHE_RETURN_IF_ERROR(PlaceAddedTokens(vocab_path, std::move(added), &parts));
  const auto name = [&](const char* key, const char* otherwise) {
    const std::string text_of_key = SpecialText(config.value(), key);
    return text_of_key.empty() ? std::string(otherwise) : text_of_key;
  };
  const std::string cls = name("cls_token", "[CLS]"), sep = name("sep_token", "[SEP]");
  std::vector<AddedToken> specials;
  for (const std::string& text_of_special :
       {name("pad_token", "[PAD]"), options.unk_token, cls, sep, name("mask_token", "[MASK]")}) {
    if (parts.vocabulary->Id(text_of_special) >= 0) specials.push_back(Special(text_of_special));
  }
  TRANCHE_RETURN_IF_ERROR(PlaceAddedTokens(vocab_path, std::move(specials), &parts));
  const int32_t cls_id = parts.vocabulary->Id(cls), sep_id = parts.vocabulary->Id(sep);
  if (cls_id >= 0 && sep_id >= 0) {
    parts.before = {cls_id};
    parts.after = {sep_id};
  } else {
    parts.warnings.push_back(absl::StrCat(vocab_path, ": ", cls, " or ", sep,
                                          " is missing, so nothing is put around a text"));
  }
  return parts;
}

absl::StatusOr<TokenizerParts> ReadBpeFiles(const std::string& vocab_path,
                                            const std::string& merges_path,
                                            const JsonNode& config) {
  TRANCHE_ASSIGN_OR_RETURN(const nlohmann::json document, ReadJsonFile(vocab_path));
  TokenizerParts parts;
  TRANCHE_ASSIGN_OR_RETURN(Vocabulary vocabulary,
                           Vocabulary::Read(JsonNode(&document, vocab_path + ": ")));
  parts.vocabulary = std::make_unique<Vocabulary>(std::move(vocabulary));
  TRANCHE_ASSIGN_OR_RETURN(const std::vector<BpeModel::Merge> merges, ReadMergesFile(merges_path));
  BpeOptions options;
  options.byte_level = true;
  absl::StatusOr<std::unique_ptr<BpeModel>> model =
      BpeModel::Create(*parts.vocabulary, merges, options);
  if (!model.ok())
    return absl::InvalidArgumentError(absl::StrCat(merges_path, ": ", model.status().message()));
  parts.model = *std::move(model);
  if (merges.empty())
    parts.warnings.push_back(merges_path +
                             ": no merge rule exists, so every token is a single byte");
  TRANCHE_ASSIGN_OR_RETURN(const bool prefix_space, config.Bool("add_prefix_space", false));
  const nlohmann::json pre_tokenizer = {
      {"type", "ByteLevel"}, {"add_prefix_space", prefix_space}, {"use_regex", true}};
  TRANCHE_ASSIGN_OR_RETURN(parts.pre_tokenizer,
                           PreTokenizer::Read(JsonNode(&pre_tokenizer, vocab_path + ": ")));
  parts.decoder = MakeByteLevelDecoder();

  TRANCHE_ASSIGN_OR_RETURN(std::vector<AddedToken> added,
                           ListedTokens(DirName(vocab_path), config));
  TRANCHE_RETURN_IF_ERROR(PlaceAddedTokens(vocab_path, std::move(added), &parts));
  const Vocabulary& tokens = *parts.vocabulary;
  const std::string tokenizer_class = SpecialText(config.value(), "tokenizer_class");
  const bool roberta = tokenizer_class.empty() ? tokens.Id("<s>") >= 0 && tokens.Id("</s>") >= 0 &&
                                                     tokens.Id("<mask>") >= 0
                                               : absl::StrContains(tokenizer_class, "Roberta");
  std::vector<AddedToken> specials;
  if (roberta) {
    for (const char* text : {"<s>", "<pad>", "</s>", "<unk>", "<mask>"}) {
      if (tokens.Id(text) < 0) continue;
      specials.push_back(Special(text));
      specials.back().lstrip = specials.back().content == "<mask>";
    }
    const int32_t start = tokens.Id("<s>"), end = tokens.Id("</s>");
    if (start < 0 || end < 0)
      return absl::InvalidArgumentError(vocab_path +
                                        ": a RoBERTa vocabulary must hold <s> and </s>");
    parts.before = {start};
    parts.after = {end};
    parts.specials.cls = start;
    parts.specials.sep = end;
  } else if (tokens.Id("<|endoftext|>") >= 0) {
    specials.push_back(Special("<|endoftext|>"));
  }
  specials.erase(std::remove_if(specials.begin(), specials.end(),
                                [&](const AddedToken& special) {
                                  return std::any_of(parts.added.begin(), parts.added.end(),
                                                     [&](const AddedToken& token) {
                                                       return token.content == special.content;
                                                     });
                                }),
                 specials.end());
  TRANCHE_RETURN_IF_ERROR(PlaceAddedTokens(vocab_path, std::move(specials), &parts));
  return parts;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& path) {
  const bool is_folder = IsDirectory(path);
  if (!is_folder && !FileExists(path)) {
    return absl::NotFoundError(absl::StrCat(
        path, ": no such file or folder; a tokenizer is a folder or a tokenizer.json file"));
  }
  const std::string folder = is_folder ? path : DirName(path);
  const auto in_folder = [&](absl::string_view name) { return JoinPath(folder, name); };
  const std::string config_path = in_folder("tokenizer_config.json");
  TRANCHE_ASSIGN_OR_RETURN(const nlohmann::json config, ReadOptionalJson(config_path));
  TRANCHE_ASSIGN_OR_RETURN(const nlohmann::json map,
                           ReadOptionalJson(in_folder("special_tokens_map.json")));
  const JsonNode config_node(&config, config_path + ": ");

  std::vector<std::string> deciding;  // the files that decide the ids
  TokenizerParts parts;
  const std::string json_path = is_folder ? in_folder("tokenizer.json") : path;
  if (FileExists(json_path)) {
    TRANCHE_ASSIGN_OR_RETURN(parts, ReadTokenizerJson(json_path));
    TRANCHE_RETURN_IF_ERROR(WarnOfOtherAddedTokens(folder, config_node, &parts));
    deciding = {json_path};
  } else if (FileExists(in_folder("vocab.txt"))) {
    TRANCHE_ASSIGN_OR_RETURN(parts, ReadWordPieceFiles(in_folder("vocab.txt"), config_node));
    deciding = {in_folder("vocab.txt"), config_path, in_folder("added_tokens.json")};
  } else if (FileExists(in_folder("vocab.json")) && FileExists(in_folder("merges.txt"))) {
    TRANCHE_ASSIGN_OR_RETURN(
        parts, ReadBpeFiles(in_folder("vocab.json"), in_folder("merges.txt"), config_node));
    deciding = {in_folder("vocab.json"), in_folder("merges.txt"), config_path,
                in_folder("added_tokens.json")};
  } else {
    return absl::NotFoundError(absl::StrCat(
        path,
        ": no tokenizer here: tokenizer.json, vocab.txt, or vocab.json with merges.txt is needed"));
  }
  FindSpecials(config, map, &parts);
  Hasher hasher;
  for (const std::string& file : deciding) {
    if (!FileExists(file)) continue;
    TRANCHE_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(file));
    hasher.Update(absl::StrCat(BaseName(file), " ", bytes.size(), "\n"));
    hasher.Update(bytes);
  }
  parts.fingerprint = hasher.Finish();
  for (const absl::string_view name : kCompanions) {
    if (FileExists(in_folder(name))) parts.files.push_back(in_folder(name));
  }
  return MakeTokenizer(std::move(parts));
}

}  // namespace tranche
