#include "trainer/checkpoint.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/hash.h"
#include "base/status.h"
#include "base/units.h"
#include "trainer/state_file.h"

namespace tranche {
namespace {

constexpr char kPrefix[] = "step-";
constexpr char kTemporary[] = ".tmp";
constexpr char kRemoved[] = ".removed";

// Passes everything on to another file and takes its checksum on the way.
class ChecksummedFile : public AtomicFile {
 public:
  ChecksummedFile(std::unique_ptr<AtomicFile> file, std::string name,
                  std::vector<CheckpointManifest::File>* committed)
      : file_(std::move(file)), name_(std::move(name)), committed_(committed) {}
  absl::Status Append(absl::string_view bytes) override {
    hasher_.Update(bytes);
    return file_->Append(bytes);
  }
  absl::Status WriteAt(int64_t, absl::string_view) override {
    return absl::InternalError(name_ + ": files of a checkpoint are written front to back");
  }
  absl::Status Commit() override {
    TRANCHE_RETURN_IF_ERROR(file_->Commit());
    committed_->push_back({name_, file_->size(), hasher_.Finish()});
    return absl::OkStatus();
  }
  int64_t size() const override { return file_->size(); }

 private:
  const std::unique_ptr<AtomicFile> file_;
  const std::string name_;
  std::vector<CheckpointManifest::File>* const committed_;
  Hasher hasher_;
};

class ChecksummingFileSystem : public FileSystem {
 public:
  explicit ChecksummingFileSystem(FileSystem& fs) : fs_(fs) {}
  absl::StatusOr<std::unique_ptr<AtomicFile>> Create(const std::string& path) override {
    TRANCHE_ASSIGN_OR_RETURN(auto file, fs_.Create(path));
    return std::make_unique<ChecksummedFile>(std::move(file), BaseName(path), &committed);
  }
  std::vector<CheckpointManifest::File> committed;

 private:
  FileSystem& fs_;
};

absl::Status WriteText(FileSystem& fs, const std::string& path, const std::string& text) {
  TRANCHE_ASSIGN_OR_RETURN(auto file, fs.Create(path));
  TRANCHE_RETURN_IF_ERROR(file->Append(text));
  return file->Commit();
}

using FileList = std::vector<CheckpointManifest::File>;

// What this rank owns of the state; the first rank's texts besides.
absl::StatusOr<FileList> WriteFiles(FileSystem& fs, const std::string& folder,
                                    const CheckpointContents& contents, Engine& engine,
                                    Backend& backend, Stream& stream, const World& world) {
  ChecksummingFileSystem files(fs);
  if (world.first()) {
    TRANCHE_RETURN_IF_ERROR(WriteText(files, JoinPath(folder, "recipe.toml"), contents.recipe));
    TRANCHE_RETURN_IF_ERROR(WriteText(files, JoinPath(folder, "config.json"), contents.config));
  }
  const std::string writer = world.size() > 1 ? absl::StrCat("-", world.rank()) : "";
  for (const std::string& array : engine.state_names()) {
    const std::string name = absl::StrCat(array, writer, ".safetensors");
    TRANCHE_RETURN_IF_ERROR(
        WriteStateFile(files, JoinPath(folder, name), array, engine, backend, stream));
  }
  return std::move(files.committed);
}

std::string PrintFiles(const FileList& files) {
  std::string text;
  for (const CheckpointManifest::File& file : files) {
    absl::StrAppend(&text, file.bytes, " ", file.checksum, " ", file.name, "\n");
  }
  return text;
}

absl::StatusOr<FileList> ParseFiles(absl::string_view text) {
  FileList files;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> words = absl::StrSplit(line, absl::MaxSplits(' ', 2));
    CheckpointManifest::File file;
    if (words.size() != 3 || !absl::SimpleAtoi(words[0], &file.bytes)) {
      return absl::InternalError(absl::StrCat("a rank's list of files: ", line));
    }
    file.checksum = words[1];
    file.name = words[2];
    files.push_back(std::move(file));
  }
  return files;
}

// Every rank writes its files into `folder`, the first then the manifest of all of them.
absl::Status WriteFolder(FileSystem& fs, const std::string& folder,
                         const CheckpointContents& contents, Engine& engine, Backend& backend,
                         Stream& stream, World& world) {
  const absl::StatusOr<FileList> mine =
      WriteFiles(fs, folder, contents, engine, backend, stream, world);
  TRANCHE_RETURN_IF_ERROR(world.Agree("checkpoint.written", mine.status()));
  TRANCHE_ASSIGN_OR_RETURN(const std::vector<std::string> lists,
                           world.Exchange("checkpoint.files", PrintFiles(*mine)));
  if (!world.first()) return absl::OkStatus();
  CheckpointManifest manifest = contents.manifest;
  manifest.files.clear();  // those of the checkpoint that the run came from
  for (const std::string& list : lists) {
    TRANCHE_ASSIGN_OR_RETURN(FileList files, ParseFiles(list));
    std::move(files.begin(), files.end(), std::back_inserter(manifest.files));
  }
  return WriteText(fs, JoinPath(folder, kManifestName), PrintManifest(manifest));
}

// Of a folder's name; -1 where it is not step-N.
int64_t StepOf(absl::string_view name) {
  int64_t step = 0;
  if (!absl::ConsumePrefix(&name, kPrefix) || !absl::SimpleAtoi(name, &step) || step < 0) return -1;
  return absl::StrCat(step) == name ? step : -1;
}

// Renamed first, so that a crash in the middle does not leave a step-N without its files.
absl::Status RemoveFolder(FileSystem& fs, const std::string& path) {
  TRANCHE_RETURN_IF_ERROR(fs.RemoveAll(path + kRemoved));
  TRANCHE_RETURN_IF_ERROR(fs.Rename(path, path + kRemoved));
  return fs.RemoveAll(path + kRemoved);
}

// An empty folder `temporary` on a volume with enough space.
absl::Status MakeRoom(FileSystem& fs, const std::string& directory,
                      const CheckpointContents& contents, const Engine& engine,
                      const std::string& temporary) {
  TRANCHE_RETURN_IF_ERROR(fs.MakeDirs(directory));
  const int64_t needed =
      CheckpointBytes(engine.specs(), *CreateAdamW(engine.options().update), contents) + (1 << 16);
  TRANCHE_ASSIGN_OR_RETURN(const int64_t available, fs.FreeBytes(directory));
  if (available < needed) {
    return absl::ResourceExhaustedError(absl::StrCat(
        directory, ": no checkpoint of step ", contents.manifest.step, " was written: it needs ",
        FormatBytes(needed), ", the volume has ", FormatBytes(available),
        " free; earlier checkpoints are untouched. Free some space or lower "
        "checkpoint.keep_latest_k"));
  }
  TRANCHE_RETURN_IF_ERROR(fs.RemoveAll(temporary));
  return fs.MakeDirs(temporary);
}

}  // namespace

int64_t CheckpointBytes(const std::vector<ParamSpec>& specs, const UpdateRule& rule,
                        const CheckpointContents& contents) {
  int64_t bytes = static_cast<int64_t>(contents.recipe.size() + contents.config.size());
  bytes += StateFileBytes(specs, DType::kFloat32);
  for (const StateArray& array : rule.state()) bytes += StateFileBytes(specs, array.dtype);
  return bytes;
}

absl::StatusOr<std::string> SaveCheckpoint(FileSystem& fs, const std::string& directory,
                                           const CheckpointContents& contents, Engine& engine,
                                           Backend& backend, Stream& stream, World& world) {
  const std::string path = CheckpointPath(directory, contents.manifest.step);
  const std::string temporary = path + kTemporary;
  TRANCHE_RETURN_IF_ERROR(world.Agree(
      "checkpoint.begin",
      world.first() ? MakeRoom(fs, directory, contents, engine, temporary) : absl::OkStatus()));
  absl::Status status = WriteFolder(fs, temporary, contents, engine, backend, stream, world);
  if (world.first()) {
    if (status.ok() && FileExists(path)) status = RemoveFolder(fs, path);
    if (status.ok()) status = fs.Rename(temporary, path);
    if (!status.ok()) fs.RemoveAll(temporary).IgnoreError();
  }
  status = world.Agree("checkpoint.done", status);
  if (!status.ok()) {
    return absl::Status(
        status.code(),
        absl::StrCat("no checkpoint of step ", contents.manifest.step,
                     " was written: ", status.message(), "; earlier checkpoints are untouched"));
  }
  return path;
}

Verification ParseVerification(absl::string_view word) {
  return word == "none"   ? Verification::kNone
         : word == "size" ? Verification::kSize
                          : Verification::kChecksum;
}

absl::StatusOr<CheckpointManifest> VerifyCheckpoint(const std::string& path, Verification how) {
  const std::string manifest_path = JoinPath(path, kManifestName);
  TRANCHE_ASSIGN_OR_RETURN(const std::string text, ReadFile(manifest_path));
  TRANCHE_ASSIGN_OR_RETURN(CheckpointManifest manifest, ParseManifest(text, manifest_path));
  if (how == Verification::kNone) return manifest;
  for (const CheckpointManifest::File& entry : manifest.files) {
    const std::string name = JoinPath(path, entry.name);
    TRANCHE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(name));
    const auto size = static_cast<int64_t>(file.data().size());
    if (size != entry.bytes) {
      return absl::DataLossError(
          absl::StrCat(name, ": has ", size, " bytes, the manifest says ", entry.bytes));
    }
    if (how == Verification::kChecksum && Hash128(file.data()) != entry.checksum) {
      return absl::DataLossError(absl::StrCat(name, ": its checksum is not the manifest's"));
    }
  }
  return manifest;
}

absl::Status LoadCheckpoint(const std::string& path, Engine& engine, Backend& backend,
                            Stream& stream) {
  TRANCHE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDir(path));
  for (const std::string& array : LoadedArrays(engine)) {
    std::vector<std::string> files;
    for (const std::string& name : names) {
      // ARRAY.safetensors, or of several writers ARRAY-K.safetensors.
      absl::string_view rest = name;
      if (absl::ConsumePrefix(&rest, array) && absl::ConsumeSuffix(&rest, ".safetensors") &&
          (rest.empty() || rest[0] == '-')) {
        files.push_back(JoinPath(path, name));
      }
    }
    TRANCHE_RETURN_IF_ERROR(ReadStateFiles(files, path, array, engine, backend, stream));
  }
  engine.MasterChanged(stream);
  backend.Synchronize(stream);
  return absl::OkStatus();
}

bool IsCheckpoint(const std::string& path) { return FileExists(JoinPath(path, kManifestName)); }

std::vector<int64_t> ListCheckpoints(const std::string& directory) {
  std::vector<int64_t> steps;
  const absl::StatusOr<std::vector<std::string>> names = ListDir(directory);
  if (!names.ok()) return steps;
  for (const std::string& name : *names) {
    const int64_t step = StepOf(name);
    if (step >= 0) steps.push_back(step);
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

std::string CheckpointPath(const std::string& directory, int64_t step) {
  return JoinPath(directory, absl::StrCat(kPrefix, step));
}

absl::Status PruneCheckpoints(FileSystem& fs, const std::string& directory, int64_t keep_latest_k,
                              int64_t keep_every) {
  const std::vector<int64_t> steps = ListCheckpoints(directory);
  for (size_t i = static_cast<size_t>(keep_latest_k); i < steps.size(); ++i) {
    if (keep_every > 0 && steps[i] % keep_every == 0) continue;
    TRANCHE_RETURN_IF_ERROR(RemoveFolder(fs, CheckpointPath(directory, steps[i])));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<int64_t>> RemoveOldestCheckpoint(FileSystem& fs,
                                                              const std::string& directory,
                                                              int64_t keep_every) {
  const std::vector<int64_t> steps = ListCheckpoints(directory);
  for (size_t i = steps.size(); i-- > 1;) {
    if (keep_every > 0 && steps[i] % keep_every == 0) continue;
    TRANCHE_RETURN_IF_ERROR(RemoveFolder(fs, CheckpointPath(directory, steps[i])));
    return steps[i];
  }
  return std::nullopt;
}

absl::Status RemoveLeftovers(FileSystem& fs, const std::string& directory) {
  const absl::StatusOr<std::vector<std::string>> names = ListDir(directory);
  if (!names.ok()) return absl::OkStatus();
  for (const std::string& name : *names) {
    absl::string_view base = name;
    if ((absl::ConsumeSuffix(&base, kTemporary) || absl::ConsumeSuffix(&base, kRemoved)) &&
        StepOf(base) >= 0) {
      TRANCHE_RETURN_IF_ERROR(fs.RemoveAll(JoinPath(directory, name)));
    }
  }
  return absl::OkStatus();
}

}  // namespace tranche
