// A small valid recipe for tests, and edits of it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "trainer/recipe.h"

namespace tranche {

inline constexpr char kSmallRecipe[] = R"([run]
name = "small"

[model]
init = "random"
model_type = "phi"
vocab_size = 512
hidden_size = 64
intermediate_size = 256
num_hidden_layers = 2
num_attention_heads = 4
max_position_embeddings = 128

[data]
sequence_length = 64
sources = [{path = "data/train"}]

[training]
max_steps = 10
global_batch_size = 8

[optimizer]
lr = 1e-3

[lr_scheduler]
name = "cosine"

[checkpoint]
interval = 5
)";

// The small recipe with its one occurrence of `from` replaced.
inline std::string Edited(const std::string& from, const std::string& to,
                          std::string text = kSmallRecipe) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

// 1-based line of `piece` in `text`.
inline int LineOf(const std::string& text, const std::string& piece) {
  const size_t at = text.find(piece);
  EXPECT_NE(at, std::string::npos) << piece;
  return 1 + static_cast<int>(
                 std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(at), '\n'));
}

inline absl::StatusOr<Recipe> Parse(const std::string& text,
                                    const std::vector<std::string>& sets = {},
                                    RecipeFiles files = RecipeFiles::kNone) {
  return ParseRecipe(text, "my.toml", sets, files);
}

}  // namespace tranche
