// A generator on plain arrays for the tests of model/.
#pragma once

#include <memory>
#include <vector>

#include "model/generate.h"
#include "model_harness.h"

namespace tranche {

// Over weights that are set one by one.
class TestGenerator {
 public:
  TestGenerator(const ModelConfig& config, const std::vector<ParamSpec>& specs, int64_t max_length)
      : backend_(CreateCpuBackend(2)),
        arena_(Arena::OnHost(int64_t{64} << 20).value()),
        groups_(specs, DType::kFloat32, arena_) {
    generator_ =
        Generator::Create(config, specs, {.max_length = max_length}, *backend_, arena_, groups_)
            .value();
  }
  void SetWeight(size_t param, const std::vector<float>& values) {
    const std::unique_ptr<Stream> stream = backend_->CreateStream("weights");
    backend_->CopyToDevice(*stream, groups_.Weight(static_cast<int>(param)), values.data());
    backend_->Synchronize(*stream);
  }
  Generator* operator->() { return generator_.get(); }

 private:
  std::unique_ptr<Backend> backend_;
  Arena arena_;
  FlatGroups groups_;
  std::unique_ptr<Generator> generator_;
};

}  // namespace tranche
