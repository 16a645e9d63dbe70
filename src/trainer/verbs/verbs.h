// The verbs of the command line. Each is defined beside its work in verbs/*.cc; AllVerbs lists them
// in the order of `tranche --help`.
#pragma once

#include <vector>

#include "trainer/cli.h"

namespace tranche {

Verb TokenizeVerb();
Verb TokenizerTrainVerb();
Verb TokenizerVerifyVerb();
Verb TrainVerb();
Verb LaunchVerb();
Verb PlanVerb();
Verb EvalVerb();
Verb ExportVerb();
Verb InspectVerb();
Verb InspectDataVerb();
Verb GenerateVerb();
Verb VerifyVerb();
Verb RecipesListVerb();
Verb RecipesShowVerb();
Verb RecipesCopyVerb();
Verb RecipesReferenceVerb();
Verb BenchTrainVerb();
Verb TuneVerb();
Verb BenchCollectivesVerb();
Verb DoctorVerb();

std::vector<Verb> AllVerbs();

// The flag that every verb with a RECIPE takes.
Flag SetFlag();

}  // namespace tranche
