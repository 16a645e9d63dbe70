// Whole tensors between device and host, through a small staging buffer and with a change of type
// on the way: loading, saving and export. Every call waits for the stream.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "model/safetensors.h"
#include "tensor/backend.h"

namespace tranche {

// How safetensors call the types that parameters and state are kept in.
TensorType StoredType(DType dtype);

class TensorTransfer {
 public:
  TensorTransfer(Backend& backend, Stream& stream);

  // `from`: as many elements as `to` has, of any float type; alignment does not matter.
  void ToDevice(Tensor to, const void* from, TensorType type);
  // Hands the elements to `sink` in order, converted to `type`; stops at its first error.
  absl::Status ToHost(Tensor from, TensorType type,
                      const std::function<absl::Status(absl::string_view)>& sink);

 private:
  Backend& backend_;
  Stream& stream_;
  std::vector<std::byte> device_side_, host_side_;
};

}  // namespace tranche
