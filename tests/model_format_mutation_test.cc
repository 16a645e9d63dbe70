// Hostile input: thousands of seeded mutations of a safetensors file, of its header alone, of
// config.json and of a shard index. Whatever comes out is a value or an error that names the file;
// what is accepted must be consistent. Run under AddressSanitizer as well.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "base/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/hf_weights.h"
#include "model_format_fixtures.h"

namespace tranche {
namespace {

using testing::HasSubstr;

// Changes `text` in one to four places: bits, bytes, digits, removed, doubled and swapped pieces,
// words of the format.
std::string Mutate(std::string text, RandomSequence& random) {
  static const char* const kWords[] = {"\"",
                                       "{",
                                       "}",
                                       "[",
                                       "]",
                                       ",",
                                       ":",
                                       "null",
                                       "true",
                                       "-1",
                                       "0",
                                       "1e9",
                                       "18446744073709551615",
                                       "9223372036854775807",
                                       "\\u0000",
                                       "F64",
                                       "BF16",
                                       "__metadata__",
                                       "[[[[",
                                       "{\"a\":",
                                       "4294967296",
                                       "0.5",
                                       "\xff",
                                       "rope_type",
                                       "yarn"};
  const int edits = 1 + static_cast<int>(random.Below(4));
  for (int i = 0; i < edits; ++i) {
    const size_t at = random.Below(text.size() + 1);
    const size_t length = std::min<size_t>(random.Below(20), text.size() - at);
    switch (random.Below(7)) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << random.Below(8)));
        break;
      case 1:
        if (at < text.size()) text[at] = static_cast<char>(random.Next32());
        break;
      case 2:
        text.erase(at, length);
        break;
      case 3:
        text.insert(at, text.substr(at, length));
        break;
      case 4:
        text.insert(at, kWords[random.Below(std::size(kWords))]);
        break;
      case 5:
        text.resize(at);
        break;
      case 6: {
        const size_t digit = text.find_first_of("0123456789", at);
        if (digit != std::string::npos) text[digit] = static_cast<char>('0' + random.Below(10));
        break;
      }
    }
    if (text.empty()) text = "x";
  }
  return text;
}

constexpr char kHeader[] =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"I64","shape":[1],)"
    R"("data_offsets":[24,32]},"c":{"dtype":"BF16","shape":[0,4],"data_offsets":[32,32],"x":{"y":[1]}},)"
    R"("d":{"dtype":"F4","shape":[4],"data_offsets":[32,34]}})";

TEST(Mutation, SafetensorsHeadersGiveTensorsInsideTheFileOrAnError) {
  RandomSequence random(20240101);
  int accepted = 0;
  for (int i = 0; i < 40000; ++i) {
    const std::string text = Mutate(kHeader, random);
    const auto header = ParseSafetensorsHeader(text, 34, "hostile");
    if (!header.ok()) {
      ASSERT_TRUE(absl::StartsWith(header.status().message(), "hostile: ")) << header.status();
      continue;
    }
    ++accepted;
    uint64_t end = 0;
    for (size_t t = 0; t < header->tensors.size(); ++t) {
      ASSERT_EQ(header->ranges[t].first, end);
      end = header->ranges[t].second;
      ASSERT_EQ(static_cast<uint64_t>(ByteSize(header->tensors[t])),
                header->ranges[t].second - header->ranges[t].first)
          << text;
    }
    ASSERT_EQ(end, 34u);
  }
  EXPECT_GT(accepted, 100) << "some mutations are harmless";
  EXPECT_LT(accepted, 20000);
}

TEST(Mutation, SafetensorsFilesAreReadOrRefusedByName) {
  const TestFolder folder;
  const std::string path = folder.File("m.safetensors");
  const std::string good = SafetensorsBytes(kHeader, std::string(34, '\x05'));
  RandomSequence random(20240102);
  for (int i = 0; i < 600; ++i) {
    FILE* file = std::fopen(path.c_str(), "wb");
    const std::string bytes = Mutate(good, random);
    ASSERT_EQ(std::fwrite(bytes.data(), 1, bytes.size(), file), bytes.size());
    std::fclose(file);
    const auto opened = SafetensorsFile::Open(path);
    if (!opened.ok()) {
      ASSERT_TRUE(absl::StartsWith(opened.status().message(), path)) << opened.status();
      continue;
    }
    int64_t sum = 0;
    for (const StoredTensor& tensor : opened->tensors()) {
      for (const char byte : tensor.bytes) sum += byte;
      ASSERT_EQ(opened->Find(tensor.name), &tensor);
    }
    ASSERT_GE(sum, -128 * static_cast<int64_t>(bytes.size()));
  }
}

TEST(Mutation, EveryTruncationOfASafetensorsFileIsRefused) {
  const TestFolder folder;
  const std::string path = folder.File("m.safetensors");
  const std::string good = SafetensorsBytes(kHeader, std::string(34, '\x05'));
  for (size_t length = 0; length < good.size(); ++length) {
    FILE* file = std::fopen(path.c_str(), "wb");
    ASSERT_EQ(std::fwrite(good.data(), 1, length, file), length);
    std::fclose(file);
    ASSERT_FALSE(SafetensorsFile::Open(path).ok()) << length;
  }
}

const char* const kConfigSeeds[] = {
    R"({"model_type":"llama","hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"vocab_size":100,)"
    R"("rope_theta":500000.0,"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,)"
    R"("original_max_position_embeddings":32},"eos_token_id":[1,2],"torch_dtype":"bfloat16","max_position_embeddings":64})",
    R"({"architectures":["Phi3ForCausalLM"],"model_type":"phi3","hidden_size":32,"num_hidden_layers":2,"num_attention_heads":2,)"
    R"("pad_token_id":0,"vocab_size":100,"rope_parameters":{"rope_type":"longrope","short_factor":[1,1,1,1,1,1],)"
    R"("long_factor":[2,2,2,2,2,2],"partial_rotary_factor":0.75,"original_max_position_embeddings":16},"max_position_embeddings":64})",
    R"({"model_type":"modernbert","hidden_size":64,"num_hidden_layers":4,"num_attention_heads":4,"vocab_size":100,"pad_token_id":0,)"
    R"("layer_types":["full_attention","sliding_attention","sliding_attention","full_attention"],"local_attention":32,)"
    R"("rope_parameters":{"full_attention":{"rope_type":"default","rope_theta":160000.0},"sliding_attention":{"rope_type":"yarn",)"
    R"("factor":4,"rope_theta":10000.0,"original_max_position_embeddings":2048}}})",
    R"({"architectures":["BertForPreTraining"],"model_type":"bert","hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,)"
    R"("vocab_size":100,"type_vocab_size":2,"hidden_act":"gelu","hidden_dropout_prob":0.1})",
    R"({"model_type":"qwen3","hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,"head_dim":24,"vocab_size":100,)"
    R"("use_sliding_window":true,"sliding_window":16,"max_window_layers":1,"tie_word_embeddings":true})"};

TEST(Mutation, ConfigsGiveConsistentModelsOrErrors) {
  RandomSequence random(20240103);
  int accepted = 0, refused_by_meaning = 0;
  for (int i = 0; i < 40000; ++i) {
    const std::string text = Mutate(kConfigSeeds[i % std::size(kConfigSeeds)], random);
    const auto json = ParseOrderedJson(text, "hostile");
    if (!json.ok()) continue;
    const auto config = ParseModelConfig(*json, "hostile");
    if (!config.ok()) {
      ASSERT_TRUE(absl::StartsWith(config.status().message(), "hostile: ")) << config.status();
      ++refused_by_meaning;
      continue;
    }
    ++accepted;
    ASSERT_EQ(static_cast<int64_t>(config->layers.size()), config->num_layers);
    ASSERT_EQ(config->num_heads % config->num_kv_heads, 0);
    for (const RopeConfig& rope : config->ropes) {
      ASSERT_TRUE(rope.dim >= 2 && rope.dim % 2 == 0 && rope.dim <= config->head_dim) << text;
    }
    for (const LayerConfig& layer : config->layers) {
      ASSERT_TRUE(config->ropes.empty() ? layer.rope == 0
                                        : layer.rope < static_cast<int>(config->ropes.size()))
          << text;
    }
    ASSERT_GT(TotalElements(BuildParamSpecs(*config)), 0) << text;
    const Json exported = ExportedConfig(*json, *config, "float32");
    const auto again = ParseModelConfig(exported, "exported");
    ASSERT_TRUE(again.ok()) << again.status() << "\n" << text << "\n" << exported.dump();
  }
  EXPECT_GT(accepted, 2000);
  EXPECT_GT(refused_by_meaning, 2000);
}

TEST(Mutation, IndexesAreFollowedOrRefusedByName) {
  const std::string model = SharedPath("fixtures/parity/phi2_packed");
  TRANCHE_SKIP_WITHOUT(model);
  const TestFolder folder;
  folder.Write("config.json", MustRead(JoinPath(model, "config.json")));
  folder.Write("model-00001-of-00001.safetensors", MustRead(JoinPath(model, "model.safetensors")));
  Json index = {{"metadata", {{"total_size", 1}}}, {"weight_map", Json::object()}};
  for (const RawTensor& tensor : RawTensorsOf(MustRead(JoinPath(model, "model.safetensors")))) {
    index["weight_map"][tensor.name] = "model-00001-of-00001.safetensors";
  }
  const std::string good = index.dump();
  RandomSequence random(20240104);
  for (int i = 0; i < 300; ++i) {
    FILE* file = std::fopen(folder.File("model.safetensors.index.json").c_str(), "wb");
    const std::string text = Mutate(good, random);
    ASSERT_EQ(std::fwrite(text.data(), 1, text.size(), file), text.size());
    std::fclose(file);
    const auto opened = HfFolder::Open(folder.path(), nullptr);
    if (!opened.ok()) {
      ASSERT_THAT(std::string(opened.status().message()), HasSubstr(folder.path()));
      continue;
    }
    const auto specs = BuildParamSpecs(opened->config());
    const auto weights = HfWeights::Match(*opened, opened->config(), specs, {}, nullptr);
    if (weights.ok()) continue;
    ASSERT_THAT(std::string(weights.status().message()), HasSubstr("missing"));
  }
}

}  // namespace
}  // namespace tranche
