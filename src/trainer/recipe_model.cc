// The recipe's model: its config.json, and whether the data suits it.
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "base/text.h"
#include "model/hf_folder.h"
#include "model/model_config.h"
#include "model/param_spec.h"
#include "trainer/param_updates.h"
#include "trainer/recipe.h"
#include "trainer/recipe_fields.h"

namespace tranche {
namespace {

// The recipe's key that sets `key` of config.json, or "model.path" where the folder's file does.
std::string RecipeKey(const Recipe& recipe, absl::string_view key) {
  const std::string top(key.substr(0, key.find('.')));
  if (recipe.model.path.empty()) return absl::StrCat("model.", top);
  if (recipe.model.overrides.contains(top)) return absl::StrCat("model.overrides.", top);
  return "model.path";
}

}  // namespace

absl::StatusOr<nlohmann::ordered_json> RecipeModelConfig(const Recipe& recipe) {
  const ModelRecipe& model = recipe.model;
  if (model.path.empty()) return model.config;
  const std::string path = JoinPath(model.path, "config.json");
  TRANCHE_ASSIGN_OR_RETURN(const std::string text, ReadModelText(path));
  TRANCHE_ASSIGN_OR_RETURN(nlohmann::ordered_json config, ParseOrderedJson(text, path));
  if (!config.is_object())
    return absl::InvalidArgumentError(absl::StrCat(path, ": must hold a JSON object"));
  for (const auto& [key, value] : model.overrides.items()) config[key] = value;
  return config;
}

void CheckModelConfig(const Recipe& recipe, const std::vector<std::string>& faulty,
                      std::vector<RecipeFault>* faults) {
  const auto fault = [&](const std::string& key, absl::string_view what) {
    faults->push_back({0, recipe.Origin(key), key, std::string(what)});
  };
  // What is wrong already would only be said a second time in other words.
  if (absl::c_any_of(*faults,
                     [](const RecipeFault& each) { return absl::StartsWith(each.key, "model."); }))
    return;
  const auto json = RecipeModelConfig(recipe);
  if (!json.ok()) return fault("model.path", json.status().message());

  const auto config = ParseModelConfig(*json, "config.json");
  if (!config.ok()) {
    for (absl::string_view line : absl::StrSplit(config.status().message(), '\n')) {
      line = absl::StripPrefix(line, "config.json: ");
      const absl::string_view name = line.substr(0, line.find(": "));
      const std::string key = RecipeKey(recipe, name);
      if (key == "model.path" || name.size() == line.size()) {
        fault(key, absl::StrCat(JoinPath(recipe.model.path, "config.json"), ": ", line));
      } else {
        fault(key, line.substr(name.size() + 2));
      }
    }
    return;
  }
  const auto& given = recipe.model.path.empty() ? recipe.model.config : recipe.model.overrides;
  const std::vector<std::string> known = ModelConfigKeys(config->model_type);
  for (const auto& [name, value] : given.items()) {
    if (absl::c_linear_search(known, name)) continue;
    fault(RecipeKey(recipe, name),
          absl::StrCat("has no effect: a model of type \"", config->model_type,
                       "\" has no such key", DidYouMean(name, known)));
  }
  const auto sound = [&](absl::string_view key) { return !absl::c_linear_search(faulty, key); };
  const int64_t positions = config->max_positions - config->position_offset;
  if (sound("data.sequence_length") && recipe.data.sequence_length > positions) {
    fault("data.sequence_length",
          absl::StrCat(recipe.data.sequence_length, " exceeds the model's ", positions,
                       " positions; shorten it or raise max_position_embeddings"));
  }
  if (sound("data.objective") &&
      (config->head == HeadKind::kMasked) != (recipe.data.objective == "mlm")) {
    fault("data.objective",
          absl::StrCat("contradiction: ", TomlString(recipe.data.objective),
                       ", and a model of type \"", config->model_type, "\" is trained with \"",
                       config->head == HeadKind::kMasked ? "mlm" : "clm", "\""));
  }
  std::vector<ParamSpec> specs;
  if (!recipe.optimizer.param_groups.empty()) specs = BuildParamSpecs(*config);
  for (size_t i = 0; i < recipe.optimizer.param_groups.size(); ++i) {
    const std::string& pattern = recipe.optimizer.param_groups[i].match;
    const auto matches = [&](const ParamSpec& spec) { return MatchesParam(pattern, spec.name); };
    const std::string key = absl::StrCat("optimizer.param_groups[", i, "].match");
    if (!sound(key) || absl::c_any_of(specs, matches)) continue;
    std::vector<std::string> names;
    for (const ParamSpec& spec : specs) names.push_back(spec.name);
    fault(key, absl::StrCat(TomlString(pattern), " matches no parameter of the model",
                            DidYouMean(pattern, names), "; they are called ", specs.front().name,
                            ", ", specs[specs.size() / 2].name, ", ..."));
  }
  if (recipe.data.next_sentence && !config->next_sentence_head) {
    fault("data.next_sentence",
          "contradiction: the model has no next-sentence head; write architectures = "
          "[\"BertForPreTraining\"] in its configuration");
  }
}

}  // namespace tranche
