#include "trainer/state_file.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "model/safetensors.h"
#include "trainer/tensor_transfer.h"
#include "zero/group_layout.h"

namespace tranche {
namespace {

// What one tensor of a file holds: a parameter, or a stretch of one.
struct Entry {
  TensorInfo info;
  Tensor values;  // [1, n]
};

std::vector<TensorInfo> WholeTensors(const std::vector<ParamSpec>& specs, DType dtype) {
  std::vector<TensorInfo> infos;
  for (const ParamSpec& spec : specs) {
    infos.push_back({spec.name, StoredType(dtype), {spec.rows, spec.cols}});
  }
  return infos;
}

std::vector<Entry> OwnedEntries(const Engine& engine, const std::string& array) {
  const TensorType type = StoredType(engine.StateType(array));
  std::vector<Entry> entries;
  for (size_t i = 0; i < engine.specs().size(); ++i) {
    const ParamSpec& spec = engine.specs()[i];
    for (const Engine::Stretch& stretch : engine.Owned(static_cast<int>(i), array)) {
      const int64_t count = stretch.values.cols;
      const TensorInfo whole{spec.name, type, {spec.rows, spec.cols}};
      const TensorInfo part{absl::StrCat(spec.name, "@", stretch.begin), type, {count}};
      entries.push_back({count == spec.elements() ? whole : part, stretch.values});
    }
  }
  return entries;
}

// Counts what would be written.
class CountedFile : public AtomicFile {
 public:
  explicit CountedFile(int64_t* size) : size_(size) {}
  absl::Status Append(absl::string_view bytes) override {
    *size_ += static_cast<int64_t>(bytes.size());
    return absl::OkStatus();
  }
  absl::Status WriteAt(int64_t, absl::string_view) override { return absl::OkStatus(); }
  absl::Status Commit() override { return absl::OkStatus(); }
  int64_t size() const override { return *size_; }

 private:
  int64_t* const size_;
};

class CountingFileSystem : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<AtomicFile>> Create(const std::string&) override {
    return std::make_unique<CountedFile>(&bytes);
  }
  int64_t bytes = 0;
};

// Where the stretches of a parameter stand in the files.
struct Piece {
  int64_t begin = 0, count = 0;
  const StoredTensor* tensor = nullptr;
  const std::string* file = nullptr;
};

absl::Status PieceError(const Piece& piece, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat(*piece.file, ": ", piece.tensor->name, ": ", what));
}

absl::StatusOr<std::vector<std::vector<Piece>>> FindPieces(
    const std::vector<SafetensorsFile>& files, const std::vector<ParamSpec>& specs) {
  std::map<std::string, size_t, std::less<>> by_name;
  for (size_t i = 0; i < specs.size(); ++i) by_name[specs[i].name] = i;
  std::vector<std::vector<Piece>> pieces(specs.size());
  for (const SafetensorsFile& file : files) {
    for (const StoredTensor& tensor : file.tensors()) {
      Piece piece{0, Elements(tensor), &tensor, &file.path()};
      const size_t at = tensor.name.rfind('@');
      const bool whole = at == std::string::npos;
      const auto found = by_name.find(tensor.name.substr(0, at));
      if (found == by_name.end()) return PieceError(piece, "this model has no such parameter");
      const ParamSpec& spec = specs[found->second];
      if (!whole && !absl::SimpleAtoi(tensor.name.substr(at + 1), &piece.begin)) {
        return PieceError(piece, "what stands behind the @ is not a number");
      }
      if (!IsFloat(tensor.type)) return PieceError(piece, "its type is not a float");
      if (whole && tensor.shape != std::vector<int64_t>{spec.rows, spec.cols}) {
        return PieceError(piece,
                          absl::StrCat("its shape is [", absl::StrJoin(tensor.shape, ", "),
                                       "], this model's is [", spec.rows, ", ", spec.cols, "]"));
      }
      if (piece.begin < 0 || piece.begin > spec.elements() - piece.count) {
        return PieceError(
            piece, absl::StrCat("reaches beyond the parameter's ", spec.elements(), " elements"));
      }
      pieces[found->second].push_back(piece);
    }
  }
  return pieces;
}

}  // namespace

absl::Status WriteStateFile(FileSystem& fs, const std::string& path, const std::string& array,
                            Engine& engine, Backend& backend, Stream& stream) {
  std::map<std::string, Tensor, std::less<>> by_name;
  std::vector<TensorInfo> infos;
  for (Entry& entry : OwnedEntries(engine, array)) {
    by_name[entry.info.name] = entry.values;
    infos.push_back(std::move(entry.info));
  }
  TRANCHE_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                           SafetensorsWriter::Create(fs, path, std::move(infos), {}));
  TensorTransfer transfer(backend, stream);
  for (const TensorInfo& info : writer.order()) {
    TRANCHE_RETURN_IF_ERROR(
        transfer.ToHost(by_name.at(info.name), info.type,
                        [&](absl::string_view bytes) { return writer.Append(bytes); }));
  }
  return writer.Commit();
}

int64_t StateFileBytes(const std::vector<ParamSpec>& specs, DType dtype) {
  CountingFileSystem fs;
  const auto writer = SafetensorsWriter::Create(fs, "", WholeTensors(specs, dtype), {});
  return fs.bytes + TotalElements(specs) * SizeOf(dtype);
}

std::vector<std::string> LoadedArrays(const Engine& engine) {
  return engine.options().training ? engine.state_names() : std::vector<std::string>{"master"};
}

absl::Status ReadStateFiles(const std::vector<std::string>& files, const std::string& source,
                            const std::string& array, Engine& engine, Backend& backend,
                            Stream& stream) {
  std::vector<SafetensorsFile> opened;
  for (const std::string& path : files) {
    TRANCHE_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path));
    opened.push_back(std::move(file));
  }
  const std::vector<ParamSpec>& specs = engine.specs();
  TRANCHE_ASSIGN_OR_RETURN(auto pieces, FindPieces(opened, specs));
  TensorTransfer transfer(backend, stream);
  std::vector<std::string> missing;
  for (size_t i = 0; i < specs.size(); ++i) {
    std::sort(pieces[i].begin(), pieces[i].end(),
              [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
    const std::vector<Engine::Stretch> held = engine.Loadable(static_cast<int>(i), array);
    int64_t filled = 0;
    for (const Piece& piece : pieces[i]) {
      if (piece.begin > filled) break;
      if (piece.count == 0) continue;
      const Range from{piece.begin, piece.count};
      for (const Engine::Stretch& stretch : held) {
        const Range common = from.Intersect({stretch.begin, stretch.values.cols});
        if (common.size == 0) continue;
        transfer.ToDevice(stretch.values.SliceCols(common.begin - stretch.begin, common.size),
                          piece.tensor->bytes.data() +
                              (common.begin - piece.begin) * BitsOf(piece.tensor->type) / 8,
                          piece.tensor->type);
      }
      filled = std::max(filled, piece.begin + piece.count);
    }
    if (filled < specs[i].elements()) {
      missing.push_back(filled == 0 ? specs[i].name
                                    : absl::StrCat(specs[i].name, " from element ", filled));
    }
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(source, ": no file holds ", array, " of ", absl::StrJoin(missing, ", ")));
}

}  // namespace tranche
