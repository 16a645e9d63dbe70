#include "trainer/verbs/verbs.h"

namespace tranche {

std::vector<Verb> AllVerbs() {
  return {
      TokenizerTrainVerb(), TokenizerVerifyVerb(),
      TokenizeVerb(),       TrainVerb(),
      LaunchVerb(),         PlanVerb(),
      EvalVerb(),           ExportVerb(),
      InspectVerb(),        InspectDataVerb(),
      GenerateVerb(),       VerifyVerb(),
      RecipesListVerb(),    RecipesShowVerb(),
      RecipesCopyVerb(),    RecipesReferenceVerb(),
      DoctorVerb(),         TuneVerb(),
      BenchTrainVerb(),     BenchCollectivesVerb(),
  };
}

Flag SetFlag() {
  return {"set", "SECTION.KEY=VALUE", "Replaces a value of the recipe; may be repeated.", true};
}

}  // namespace tranche
