#include "trainer/tensor_transfer.h"

#include <algorithm>

#include "base/check.h"
#include "base/status.h"

namespace tranche {
namespace {

constexpr int64_t kChunkElements = 1 << 20;

template <typename Function>
absl::Status ForEachChunk(Tensor tensor, const Function& function) {
  const Tensor flat = tensor.Reshape(1, tensor.size());
  for (int64_t begin = 0; begin < flat.cols; begin += kChunkElements) {
    TRANCHE_RETURN_IF_ERROR(
        function(flat.SliceCols(begin, std::min(kChunkElements, flat.cols - begin)), begin));
  }
  return absl::OkStatus();
}

}  // namespace

TensorType StoredType(DType dtype) {
  TRANCHE_CHECK(dtype == DType::kFloat32 || dtype == DType::kBFloat16) << DTypeName(dtype).data();
  return dtype == DType::kFloat32 ? TensorType::kF32 : TensorType::kBF16;
}

TensorTransfer::TensorTransfer(Backend& backend, Stream& stream)
    : backend_(backend),
      stream_(stream),
      device_side_(kChunkElements * 4),
      host_side_(kChunkElements * 8) {}

void TensorTransfer::ToDevice(Tensor to, const void* from, TensorType type) {
  const int64_t stored_bytes = BitsOf(type) / 8;
  const absl::Status status = ForEachChunk(to, [&](Tensor chunk, int64_t begin) {
    ConvertElements(static_cast<const std::byte*>(from) + begin * stored_bytes, type,
                    device_side_.data(), StoredType(to.dtype), chunk.cols);
    backend_.CopyToDevice(stream_, chunk, device_side_.data());
    backend_.Synchronize(stream_);
    return absl::OkStatus();
  });
  TRANCHE_CHECK(status.ok());
}

absl::Status TensorTransfer::ToHost(Tensor from, TensorType type,
                                    const std::function<absl::Status(absl::string_view)>& sink) {
  return ForEachChunk(from, [&](Tensor chunk, int64_t) {
    backend_.CopyToHost(stream_, device_side_.data(), chunk);
    backend_.Synchronize(stream_);
    ConvertElements(device_side_.data(), StoredType(from.dtype), host_side_.data(), type,
                    chunk.cols);
    return sink({reinterpret_cast<const char*>(host_side_.data()),
                 static_cast<size_t>(chunk.cols * BitsOf(type) / 8)});
  });
}

}  // namespace tranche
