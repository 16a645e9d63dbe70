#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "data/tokenizer_parts.h"
#include "data/wordpiece.h"

namespace tranche {
namespace {

absl::StatusOr<std::vector<AddedToken>> ReadAddedTokens(const JsonNode& node) {
  std::vector<AddedToken> tokens;
  if (node.IsNull()) return tokens;
  TRANCHE_ASSIGN_OR_RETURN(const std::vector<JsonNode> elements, node.Elements());
  for (const JsonNode& element : elements) {
    AddedToken token;
    TRANCHE_ASSIGN_OR_RETURN(token.content, element.RequiredString("content"));
    TRANCHE_ASSIGN_OR_RETURN(const int64_t id, element.RequiredInt("id", 0, kMaxTokenId));
    token.id = static_cast<int32_t>(id);
    TRANCHE_ASSIGN_OR_RETURN(token.special, element.Bool("special", false));
    TRANCHE_ASSIGN_OR_RETURN(token.single_word, element.Bool("single_word", false));
    TRANCHE_ASSIGN_OR_RETURN(token.lstrip, element.Bool("lstrip", false));
    TRANCHE_ASSIGN_OR_RETURN(token.rstrip, element.Bool("rstrip", false));
    TRANCHE_ASSIGN_OR_RETURN(token.normalized, element.Bool("normalized", !token.special));
    tokens.push_back(std::move(token));
  }
  return tokens;
}

absl::StatusOr<std::vector<BpeModel::Merge>> ReadMerges(const JsonNode& node) {
  std::vector<BpeModel::Merge> merges;
  if (!node.value().is_array()) return node.Error("an array of merges is needed here");
  merges.reserve(node.value().size());
  bool pairs = false;
  for (size_t i = 0; i < node.value().size(); ++i) {
    const nlohmann::json& rule = node.value()[i];
    const auto error = [&](absl::string_view what) {
      return absl::InvalidArgumentError(absl::StrCat(node.place(), "[", i, "]: ", what));
    };
    if (i == 0) pairs = rule.is_array();
    if (rule.is_array() != pairs) {
      return error(
          "some merges are pairs and some are strings; they must all be written in one way");
    }
    if (pairs) {
      if (rule.size() != 2 || !rule[0].is_string() || !rule[1].is_string())
        return error("a pair of strings is needed here");
      merges.emplace_back(rule[0].get<std::string>(), rule[1].get<std::string>());
      continue;
    }
    if (!rule.is_string()) return error("\"left right\" or [\"left\", \"right\"] is needed here");
    const auto& text = rule.get_ref<const std::string&>();
    if (absl::StartsWith(text, "#version")) continue;
    const std::vector<std::string> fields = absl::StrSplit(text, ' ');
    if (fields.size() != 2) {
      return error(absl::StrCat("\"", text, "\" has ", fields.size(),
                                " fields between spaces where two tokens are needed; the file ",
                                "is damaged (a no-break space turned into a space?), or its tokens "
                                "hold spaces: write merges as "
                                "pairs then"));
    }
    merges.emplace_back(fields[0], fields[1]);
  }
  return merges;
}

absl::Status ReadBpe(const JsonNode& node, bool byte_level, TokenizerParts* parts) {
  BpeOptions options;
  options.byte_level = byte_level;
  TRANCHE_ASSIGN_OR_RETURN(options.unk_token, node.String("unk_token", ""));
  TRANCHE_ASSIGN_OR_RETURN(options.fuse_unk, node.Bool("fuse_unk", false));
  TRANCHE_ASSIGN_OR_RETURN(options.byte_fallback, node.Bool("byte_fallback", false));
  TRANCHE_ASSIGN_OR_RETURN(options.ignore_merges, node.Bool("ignore_merges", false));
  TRANCHE_ASSIGN_OR_RETURN(options.continuing_subword_prefix,
                           node.String("continuing_subword_prefix", ""));
  TRANCHE_ASSIGN_OR_RETURN(options.end_of_word_suffix, node.String("end_of_word_suffix", ""));
  const JsonNode dropout = node.Child("dropout");
  if (!dropout.IsNull() && !(dropout.value().is_number() && dropout.value().get<double>() == 0)) {
    return dropout.Error("BPE dropout makes ids random; set it to null");
  }
  TRANCHE_ASSIGN_OR_RETURN(const std::vector<BpeModel::Merge> merges,
                           ReadMerges(node.Child("merges")));
  absl::StatusOr<std::unique_ptr<BpeModel>> model =
      BpeModel::Create(*parts->vocabulary, merges, options);
  if (!model.ok()) return node.Error(model.status().message());
  parts->model = *std::move(model);
  if (merges.empty()) {
    parts->warnings.push_back(absl::StrCat(
        node.place(),
        ".merges: no merge rule exists, so every token is a single character or byte"));
  }
  return absl::OkStatus();
}

absl::Status ReadWordPiece(const JsonNode& node, TokenizerParts* parts) {
  WordPieceOptions options;
  TRANCHE_ASSIGN_OR_RETURN(options.unk_token, node.String("unk_token", options.unk_token));
  TRANCHE_ASSIGN_OR_RETURN(
      options.continuing_subword_prefix,
      node.String("continuing_subword_prefix", options.continuing_subword_prefix));
  TRANCHE_ASSIGN_OR_RETURN(
      options.max_input_chars_per_word,
      node.Int("max_input_chars_per_word", options.max_input_chars_per_word, 0, int64_t{1} << 40));
  absl::StatusOr<std::unique_ptr<WordPieceModel>> model =
      WordPieceModel::Create(*parts->vocabulary, options);
  if (!model.ok()) return node.Error(model.status().message());
  parts->model = *std::move(model);
  parts->continues_word_prefix = options.continuing_subword_prefix;
  return absl::OkStatus();
}

absl::Status ReadModel(const JsonNode& node, bool byte_level, TokenizerParts* parts) {
  if (!node.value().is_object()) return node.Error("an object is needed here");
  // Very old files leave the type out.
  TRANCHE_ASSIGN_OR_RETURN(
      const std::string type,
      node.String("type", node.Child("merges").IsNull() ? "WordPiece" : "BPE"));
  if (type != "BPE" && type != "WordPiece") return node.UnknownType(type, {"BPE", "WordPiece"});
  TRANCHE_ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::Read(node.Child("vocab")));
  parts->vocabulary = std::make_unique<Vocabulary>(std::move(vocabulary));
  return type == "BPE" ? ReadBpe(node, byte_level, parts) : ReadWordPiece(node, parts);
}

absl::StatusOr<int32_t> ReadIdOfPair(const JsonNode& node) {  // ["</s>", 2]
  const nlohmann::json& pair = node.value();
  if (!pair.is_array() || pair.size() != 2 || !pair[1].is_number_integer() || pair[1] < 0 ||
      pair[1] > kMaxTokenId) {
    return node.Error("[\"token\", id] is needed here");
  }
  return pair[1].get<int32_t>();
}

absl::Status ReadTemplate(const JsonNode& node, TokenizerParts* parts) {
  TRANCHE_ASSIGN_OR_RETURN(const std::vector<JsonNode> elements, node.Child("single").Elements());
  bool seen_text = false;
  std::vector<int32_t> before, after;
  for (const JsonNode& element : elements) {
    const JsonNode sequence = element.Child("Sequence"), special = element.Child("SpecialToken");
    if (!sequence.IsNull()) {
      TRANCHE_ASSIGN_OR_RETURN(const std::string id, sequence.RequiredString("id"));
      if (id != "A" || seen_text)
        return element.Error("a template for one text must hold sequence A once and no other");
      seen_text = true;
      continue;
    }
    if (special.IsNull()) return element.Error("\"Sequence\" or \"SpecialToken\" is needed here");
    TRANCHE_ASSIGN_OR_RETURN(const std::string name, special.RequiredString("id"));
    const JsonNode ids = node.Child("special_tokens").Child(name).Child("ids");
    if (ids.IsNull())
      return element.Error(absl::StrCat("\"", name, "\" is not listed in special_tokens"));
    TRANCHE_ASSIGN_OR_RETURN(const std::vector<JsonNode> id_nodes, ids.Elements());
    for (const JsonNode& id : id_nodes) {
      if (!id.value().is_number_integer() || id.value() < 0 || id.value() > kMaxTokenId)
        return id.Error("an id is needed here");
      (seen_text ? after : before).push_back(id.value().get<int32_t>());
    }
  }
  if (!seen_text)
    return node.Child("single").Error("a template for one text must hold sequence A once");
  parts->before.insert(parts->before.begin(), before.begin(), before.end());
  parts->after.insert(parts->after.end(), after.begin(), after.end());
  return absl::OkStatus();
}

absl::Status ReadPostProcessor(const JsonNode& node, TokenizerParts* parts) {
  if (node.IsNull()) return absl::OkStatus();
  TRANCHE_ASSIGN_OR_RETURN(const std::string type, node.RequiredString("type"));
  if (type == "ByteLevel") return absl::OkStatus();  // changes offsets only
  if (type == "TemplateProcessing") return ReadTemplate(node, parts);
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    TRANCHE_ASSIGN_OR_RETURN(const int32_t cls, ReadIdOfPair(node.Child("cls")));
    TRANCHE_ASSIGN_OR_RETURN(const int32_t sep, ReadIdOfPair(node.Child("sep")));
    parts->before.insert(parts->before.begin(), cls);
    parts->after.push_back(sep);
    return absl::OkStatus();
  }
  if (type == "Sequence") {
    TRANCHE_ASSIGN_OR_RETURN(const std::vector<JsonNode> elements,
                             node.Child("processors").Elements());
    for (const JsonNode& element : elements)
      TRANCHE_RETURN_IF_ERROR(ReadPostProcessor(element, parts));
    return absl::OkStatus();
  }
  return node.UnknownType(
      type, {"TemplateProcessing", "BertProcessing", "RobertaProcessing", "ByteLevel", "Sequence"});
}

}  // namespace

absl::Status PlaceAddedTokens(const std::string& place, std::vector<AddedToken> tokens,
                              TokenizerParts* parts) {
  const Vocabulary& vocabulary = *parts->vocabulary;
  const int32_t size = vocabulary.size();
  // Other programs count the vocabulary to find the first free id. Where it has holes they number
  // added tokens anew, past the file's ids; those are kept here.
  const bool has_holes = size <= vocabulary.max_id();
  int32_t highest = -1;
  absl::flat_hash_map<std::string, int32_t> placed;
  absl::flat_hash_map<int32_t, std::string> taken;
  for (const AddedToken& token : parts->added) {
    placed.emplace(token.content, token.id);
    taken.emplace(token.id, token.content);
    highest = std::max(highest, token.id);
  }
  for (AddedToken& token : tokens) {
    if (token.content.empty()) continue;
    int32_t id = vocabulary.Id(token.content);
    const bool in_vocabulary = id >= 0;
    const auto known = placed.find(token.content);
    if (id < 0)
      id = known != placed.end()                            ? known->second
           : highest >= size || (size == 0 && highest >= 0) ? highest + 1
                                                            : size;
    const auto error = [&](const auto&... what) {
      return absl::InvalidArgumentError(
          absl::StrCat(place, ": \"", token.content, "\" has id ", token.id, ", but ", what...,
                       "; put the token into model.vocab with the id that the model was trained "
                       "with"));
    };
    if (token.id >= 0 && token.id != id) {
      if (in_vocabulary) return error("model.vocab gives it id ", id);
      if (!has_holes || known != placed.end() || token.id > vocabulary.max_id()) {
        return error("the next free id is ", id, " and other programs would number it so");
      }
      parts->warnings.push_back(
          absl::StrCat(place, ": \"", token.content, "\" keeps its id ", token.id,
                       ", though model.vocab has holes and other programs would number it ", id));
      id = token.id;
    }
    if (!in_vocabulary) {
      const auto other = taken.find(id);
      const std::string holder = other != taken.end() && other->second != token.content
                                     ? other->second
                                     : vocabulary.Token(id);
      if (!holder.empty()) return error("id ", id, " is that of \"", holder, "\"");
    }
    taken.emplace(id, token.content);
    token.id = id;
    highest = std::max(highest, id);
    if (known == placed.end()) {
      placed.emplace(token.content, id);
      parts->added.push_back(std::move(token));
    } else {
      // The later of two entries for one text counts.
      for (AddedToken& earlier : parts->added) {
        if (earlier.content == token.content) earlier = token;
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<TokenizerParts> ReadTokenizerJson(const std::string& path) {
  TRANCHE_ASSIGN_OR_RETURN(const nlohmann::json document, ReadJsonFile(path));
  const JsonNode root(&document, path + ": ");
  if (!document.is_object()) return root.Error("a tokenizer file holds an object");
  TokenizerParts parts;
  for (const char* section : {"truncation", "padding"}) {
    const JsonNode node = root.Child(section);
    if (!node.IsNull())
      parts.warnings.push_back(absl::StrCat(node.place(), ": left out; texts are tokenized whole"));
  }
  TRANCHE_ASSIGN_OR_RETURN(parts.normalizer, ReadNormalizer(root.Child("normalizer")));
  TRANCHE_ASSIGN_OR_RETURN(parts.pre_tokenizer, PreTokenizer::Read(root.Child("pre_tokenizer")));
  TRANCHE_RETURN_IF_ERROR(ReadModel(root.Child("model"), parts.pre_tokenizer.byte_level(), &parts));
  TRANCHE_ASSIGN_OR_RETURN(std::vector<AddedToken> added,
                           ReadAddedTokens(root.Child("added_tokens")));
  TRANCHE_RETURN_IF_ERROR(PlaceAddedTokens(path + ": added_tokens", std::move(added), &parts));
  TRANCHE_RETURN_IF_ERROR(ReadPostProcessor(root.Child("post_processor"), &parts));
  TRANCHE_ASSIGN_OR_RETURN(parts.decoder, ReadDecoder(root.Child("decoder")));
  int32_t max_id = parts.vocabulary->max_id();
  for (const AddedToken& token : parts.added) max_id = std::max(max_id, token.id);
  for (const auto* ids : {&parts.before, &parts.after}) {
    for (const int32_t id : *ids) {
      if (id > max_id)
        return root.Child("post_processor")
            .Error(absl::StrCat("id ", id, " is not in the vocabulary"));
    }
  }
  return parts;
}

}  // namespace tranche
