#include "model/hf_export.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"

namespace tranche {
namespace {

constexpr int64_t kBlockElements = int64_t{1} << 18;

// Where the values of one tensor to be written come from.
struct Source {
  TensorInfo info;
  int spec = -1;  // a parameter's elements from `first` on, or
  int64_t first = 0;
  const StoredTensor* carried = nullptr;  // bytes of a folder
};

// In the order of transformers' state dict as far as groups go: shards are filled in this order.
std::vector<Source> CollectSources(const std::vector<ParamSpec>& specs,
                                   absl::Span<const StoredTensor> carried, TensorType type) {
  std::vector<Source> sources;
  for (size_t i = 0; i < specs.size(); ++i) {
    int64_t first = 0;
    for (const HfPart& part : specs[i].parts) {
      sources.push_back({{part.name, type, part.shape}, static_cast<int>(i), first, nullptr});
      first += part.elements();
    }
  }
  for (const StoredTensor& tensor : carried) {
    sources.push_back(
        {{tensor.name, IsFloat(tensor.type) ? type : tensor.type, tensor.shape}, -1, 0, &tensor});
  }
  return sources;
}

// transformers' rule: a shard is closed when the next tensor would exceed the limit; a tensor
// beyond the limit stands alone.
std::vector<std::vector<const Source*>> CutShards(const std::vector<Source>& sources,
                                                  int64_t limit) {
  std::vector<std::vector<const Source*>> shards(1);
  int64_t size = 0;
  for (const Source& source : sources) {
    const int64_t bytes = ByteSize(source.info);
    if (!shards.back().empty() && size + bytes > limit) shards.emplace_back(), size = 0;
    shards.back().push_back(&source);
    size += bytes;
  }
  return shards;
}

class FolderWriter {
 public:
  FolderWriter(FileSystem& fs, const ExportOptions& options, const ParamReader& read)
      : fs_(fs),
        options_(options),
        read_(read),
        temporary_(absl::StrCat(options.directory, ".tmp.", ::getpid())) {}
  ~FolderWriter() {
    if (!done_) fs_.RemoveAll(temporary_).IgnoreError();
  }

  absl::Status Begin() {
    const std::string& path = options_.directory;
    if (FileExists(path)) {
      if (!options_.overwrite) {
        return absl::AlreadyExistsError(
            absl::StrCat(path, ": exists already; choose another name or ask to overwrite it"));
      }
      if (!IsDirectory(path) || !FileExists(JoinPath(path, "config.json"))) {
        return absl::AlreadyExistsError(absl::StrCat(
            path, ": exists and is no model folder (no config.json); it is left as it is"));
      }
    }
    TRANCHE_RETURN_IF_ERROR(fs_.RemoveAll(temporary_));
    return fs_.MakeDirs(temporary_);
  }

  absl::Status WriteText(const std::string& name, absl::string_view text) {
    TRANCHE_ASSIGN_OR_RETURN(auto file, fs_.Create(JoinPath(temporary_, name)));
    TRANCHE_RETURN_IF_ERROR(file->Append(text));
    return file->Commit();
  }

  absl::Status CopyFrom(const std::string& folder, const std::string& name) {
    const std::string path = JoinPath(folder, name);
    if (!FileExists(path)) return absl::OkStatus();
    TRANCHE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
    return WriteText(name, file.data());
  }

  absl::Status WriteWeights(const std::vector<Source>& sources) {
    const auto shards = CutShards(sources, options_.max_shard_bytes);
    nlohmann::json map = nlohmann::json::object();  // keys sorted
    for (size_t i = 0; i < shards.size(); ++i) {
      const std::string name =
          shards.size() == 1
              ? "model.safetensors"
              : absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, shards.size());
      TRANCHE_RETURN_IF_ERROR(WriteShard(name, shards[i]));
      for (const Source* source : shards[i]) map[source->info.name] = name;
    }
    if (shards.size() == 1) return absl::OkStatus();
    int64_t elements = 0, bytes = 0;
    for (const Source& source : sources)
      elements += Elements(source.info), bytes += ByteSize(source.info);
    const nlohmann::json index = {
        {"metadata", {{"total_parameters", elements}, {"total_size", bytes}}}, {"weight_map", map}};
    return WriteText("model.safetensors.index.json", index.dump(2) + "\n");
  }

  // Puts the folder in its place; an old one is moved aside first, so that the place is never half
  // filled.
  absl::Status Finish() {
    const std::string aside = absl::StrCat(options_.directory, ".old.", ::getpid());
    const bool replaces = FileExists(options_.directory);
    if (replaces) TRANCHE_RETURN_IF_ERROR(fs_.Rename(options_.directory, aside));
    if (absl::Status status = fs_.Rename(temporary_, options_.directory); !status.ok()) {
      if (replaces) fs_.Rename(aside, options_.directory).IgnoreError();
      return status;
    }
    done_ = true;
    return replaces ? fs_.RemoveAll(aside) : absl::OkStatus();
  }

 private:
  absl::Status WriteShard(const std::string& name, const std::vector<const Source*>& sources) {
    std::map<std::string, const Source*> by_name;
    std::vector<TensorInfo> infos;
    for (const Source* source : sources) {
      by_name[source->info.name] = source;
      infos.push_back(source->info);
    }
    TRANCHE_ASSIGN_OR_RETURN(
        auto writer, SafetensorsWriter::Create(fs_, JoinPath(temporary_, name), std::move(infos),
                                               {{"format", "pt"}}));
    for (const TensorInfo& info : writer.order())
      TRANCHE_RETURN_IF_ERROR(WriteTensor(*by_name.at(info.name), writer));
    return writer.Commit();
  }

  absl::Status WriteTensor(const Source& source, SafetensorsWriter& writer) {
    if (source.carried != nullptr && source.carried->type == source.info.type)
      return writer.Append(source.carried->bytes);
    const int64_t total = Elements(source.info);
    const int64_t size = BitsOf(source.info.type) / 8;
    for (int64_t i = 0; i < total; i += kBlockElements) {
      const int64_t count = std::min(kBlockElements, total - i);
      floats_.resize(count);
      bytes_.resize(count * size);
      if (source.carried != nullptr) {
        const TensorType from = source.carried->type;
        ConvertElements(source.carried->bytes.data() + i * BitsOf(from) / 8, from, floats_.data(),
                        TensorType::kF32, count);
      } else {
        TRANCHE_RETURN_IF_ERROR(read_(source.spec, source.first + i, count, floats_.data()));
      }
      // bf16 has fp32's range; a half has not.
      if (source.info.type == TensorType::kF16)
        TRANCHE_RETURN_IF_ERROR(CheckRange(source.info.name));
      ConvertElements(floats_.data(), TensorType::kF32, bytes_.data(), source.info.type, count);
      TRANCHE_RETURN_IF_ERROR(writer.Append(absl::string_view(bytes_.data(), bytes_.size())));
    }
    return absl::OkStatus();
  }

  absl::Status CheckRange(const std::string& name) const {
    for (const float value : floats_) {
      if (std::isfinite(value) && std::fabs(value) >= 65520.0f) {
        return absl::OutOfRangeError(absl::StrFormat(
            "%s: %g does not fit float16; export as bfloat16 or float32", name, value));
      }
    }
    return absl::OkStatus();
  }

  FileSystem& fs_;
  const ExportOptions& options_;
  const ParamReader& read_;
  const std::string temporary_;
  std::vector<float> floats_;
  std::vector<char> bytes_;
  bool done_ = false;
};

}  // namespace

const std::vector<std::string>& TokenizerFiles() {
  static const auto* files = new std::vector<std::string>{"tokenizer.json",
                                                          "tokenizer_config.json",
                                                          "special_tokens_map.json",
                                                          "added_tokens.json",
                                                          "vocab.txt",
                                                          "vocab.json",
                                                          "merges.txt",
                                                          "tokenizer.model",
                                                          "chat_template.jinja"};
  return *files;
}

absl::Status ExportFolder(FileSystem& fs, const ExportOptions& options,
                          const nlohmann::ordered_json& config_json, const ModelConfig& config,
                          const std::vector<ParamSpec>& specs, const ParamReader& read,
                          absl::Span<const StoredTensor> carried) {
  FolderWriter writer(fs, options, read);
  TRANCHE_RETURN_IF_ERROR(writer.Begin());
  TRANCHE_RETURN_IF_ERROR(writer.WriteText(
      "config.json", ConfigText(ExportedConfig(config_json, config, DtypeName(options.type)))));
  if (!options.model_folder.empty())
    TRANCHE_RETURN_IF_ERROR(writer.CopyFrom(options.model_folder, "generation_config.json"));
  if (!options.tokenizer_folder.empty()) {
    for (const std::string& name : TokenizerFiles())
      TRANCHE_RETURN_IF_ERROR(writer.CopyFrom(options.tokenizer_folder, name));
  }
  TRANCHE_RETURN_IF_ERROR(writer.WriteWeights(CollectSources(specs, carried, options.type)));
  return writer.Finish();
}

}  // namespace tranche
