// The sections of a recipe, as plain structs. Each names its fields once, in VisitFields (name,
// member, one sentence, what is allowed); parsing, strict checking, --set, the printed resolved
// recipe and docs/recipe.md all come from that.
//
// A std::optional field has no default: absent means "not asked for". Paths are absolute after
// loading (a relative one resolves against the recipe file's folder, one given by --set against the
// current folder). Longer than other files: one list of all keys is easier to read than parts of
// it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "trainer/recipe_rule.h"

namespace tranche {

struct RunRecipe {
  std::string name = "run";
  std::string output_dir = "runs/%name";
  int64_t seed = 42;

  bool operator==(const RunRecipe&) const = default;
  template <typename Self, typename Visitor>
  static void VisitFields(Self& self, Visitor& visit) {
    visit("name", self.name,
          "The run's name; %date (20260131) and %jobid (SLURM_JOB_ID, else the process id) are "
          "expanded.",
          Rule::Any());
    visit("output_dir", self.output_dir,
          "The folder that holds checkpoints/, metrics.jsonl and resolved.toml; %name, %date and "
          "%jobid are expanded.",
          Rule::Path());
    visit("seed", self.seed,
          "Decides initial weights and dropout and, unless data.shuffle_seed is given, order and "
          "masking.",
          Rule::AtLeast(0));
  }
};

struct ModelRecipe {
  std::string path;
  std::string init = "pretrained";
  bool fresh_head = false;
  nlohmann::ordered_json overrides = nlohmann::ordered_json::object();
  nlohmann::ordered_json config =
      nlohmann::ordered_json::object();  // every other key of the section: config.json's own keys

  bool operator==(const ModelRecipe&) const = default;
  template <typename Self, typename Visitor>
  static void VisitFields(Self& self, Visitor& visit) {
    visit("path", self.path,
          "A Hugging Face model folder: config.json and, for init = \"pretrained\", *.safetensors.",
          Rule::Path());
    visit("init", self.init,
          "pretrained: go on from the folder's weights; random: new weights, for the config.json "
          "in path or, without a path, for the config.json keys written in this section.",
          Rule::OneOf({"pretrained", "random"}));
    visit("fresh_head", self.fresh_head,
          "Initialise the language-model head's tensors that the folder lacks instead of refusing "
          "it.",
          Rule::Any());
    visit("overrides", self.overrides, "Keys of config.json that replace those of the folder.",
          Rule::Any());
    visit.Rest(self.config,
               "model_type, hidden_size, num_hidden_layers, …: the keys of config.json, where "
               "there is no path.");
  }
};

struct TokenizerRecipe {
  std::string path;

  bool operator==(const TokenizerRecipe&) const = default;
  template <typename Self, typename Visitor>
  static void VisitFields(Self& self, Visitor& visit) {
    visit("path", self.path,
          "A folder with tokenizer.json (or vocab.txt, or vocab.json and merges.txt), or a "
          "tokenizer.json; default: "
          "model.path.",
          Rule::Path());
  }
};

struct DataSource {
  std::string path;
  std::optional<double> weight;

  bool operator==(const DataSource&) const = default;
  template <typename Self, typename Visitor>
  static void VisitFields(Self& self, Visitor& visit) {
    visit("path", self.path,
          "The dataset: PREFIX of PREFIX.bin and PREFIX.idx (megatron) or a file (tokens).",
          Rule::Path().Required());
    visit("weight", self.weight,
          "Its share of the samples, relative to the other sources; given for all sources or for "
          "none (then an epoch is every "
          "sample of all of them once).",
          Rule::Above(0));
  }
};

struct DataRecipe {
  std::string format = "auto";
  std::string token_dtype = "auto";
  int64_t sequence_length = 0;
  std::vector<DataSource> sources;
  double validation_fraction = 0;
  bool next_sentence = false;
  std::string objective = "clm";
  double mlm_probability = 0.15;
  bool whole_word_mask = false;
  std::string packing = "concat";
  bool document_mask = false;
  bool eod_loss = true;
  bool shuffle = true;
  std::optional<int64_t> shuffle_seed;

  bool operator==(const DataRecipe&) const = default;
  template <typename Self, typename Visitor>
  static void VisitFields(Self& self, Visitor& visit) {
    visit(
        "format", self.format,
        "megatron: PREFIX.bin with PREFIX.idx; tokens: one file of ids as llm.c and nanoGPT write "
        "it; auto: megatron where PREFIX.idx exists.",
        Rule::OneOf({"auto", "megatron", "tokens"}));
    visit("token_dtype", self.token_dtype,
          "Type of a bare token file's ids; auto: the file says it (llm.c's do, nanoGPT's do not).",
          Rule::OneOf({"auto", "uint16", "uint32", "int32"}));
    visit("sequence_length", self.sequence_length,
          "Tokens per sample, at most the model's positions.", Rule::AtLeast(1).Required());
    visit("sources", self.sources, "The training datasets and their weights.",
          Rule::Any().Required());
    visit("validation_fraction", self.validation_fraction,
          "Share of each source's tokens, from its end, that is held out and evaluated as set "
          "\"held_out\".",
          Rule::Between(0, 1).BelowHigh());
    visit("objective", self.objective, "clm: predict the next token; mlm: predict masked tokens.",
          Rule::OneOf({"clm", "mlm"}));
    visit("mlm_probability", self.mlm_probability,
          "Share of the tokens chosen for prediction (80 % become [MASK], 10 % a random token, 10 "
          "% stay).",
          Rule::Between(0, 1).AboveLow());
    visit("whole_word_mask", self.whole_word_mask, "Choose whole words instead of single tokens.",
          Rule::Any());
    visit("next_sentence", self.next_sentence,
          "mlm: samples are sentence pairs with a label for the next-sentence head; needs shuffle "
          "and packing = \"none\".",
          Rule::Any());
    visit("packing", self.packing,
          "concat: documents in one stream cut into samples; best_fit: whole documents packed "
          "together; none: one per "
          "sample.",
          Rule::OneOf({"concat", "best_fit", "none"}));
    visit("document_mask", self.document_mask,
          "Attend within a document only, with positions from 0 in each.", Rule::Any());
    visit("eod_loss", self.eod_loss, "Learn to predict the end-of-document token.", Rule::Any());
    visit("shuffle", self.shuffle, "Draw samples in random order, a new one in each epoch.",
          Rule::Any());
    visit("shuffle_seed", self.shuffle_seed,
          "Seed of the order, of masking and of sentence pairs, in validation sets too; default: "
          "run.seed.",
          Rule::AtLeast(0));
  }
};

struct ValidationSet {
  std::string name;
  std::string path;

  bool operator==(const ValidationSet&) const = default;
  template <typename Self, typename Visitor>
  static void VisitFields(Self& self, Visitor& visit) {
    visit("name", self.name, "Its name in logs and metrics.", Rule::Any().Required());
    visit("path", self.path, "The dataset, in data.format.", Rule::Path().Required());
  }
};

struct ValidationRecipe {
  std::optional<int64_t> interval;
  int64_t steps = 0;
  double mlm_probability = 0.15;
  std::vector<ValidationSet> sets;

  bool operator==(const ValidationRecipe&) const = default;
  template <typename Self, typename Visitor>
  static void VisitFields(Self& self, Visitor& visit) {
    visit("interval", self.interval,
          "Training steps between evaluations; also evaluated after the last step.",
          Rule::AtLeast(1));
    visit("steps", self.steps, "Global batches per evaluation of a set; 0: the whole set.",
          Rule::AtLeast(0));
    visit("mlm_probability", self.mlm_probability, "As data.mlm_probability, for evaluation.",
          Rule::Between(0, 1).AboveLow());
    visit("sets", self.sets, "Named datasets that are evaluated, never trained on.", Rule::Any());
  }
};

struct TrainingRecipe {
  std::optional<int64_t> max_steps;
  std::optional<int64_t> max_tokens;
  std::optional<double> max_epochs;
  std::optional<std::string> duration;  // empty after loading: it has become one of the three above
  std::optional<Seconds> max_time;
  int64_t global_batch_size = 0;
  int64_t micro_batch_size = 0;  // RunSetup knows what 0 comes to
  double max_grad_norm = 1;
  std::string precision = "fp32";
  std::string activation_checkpointing = "none";

  bool operator==(const TrainingRecipe&) const = default;
  template <typename Self, typename Visitor>
  static void VisitFields(Self& self, Visitor& visit) {
    visit("max_steps", self.max_steps,
          "Length of the run in optimizer steps. Exactly one length is given.", Rule::AtLeast(1));
    visit("max_tokens", self.max_tokens,
          "Length in tokens (global_batch_size x sequence_length a step), rounded up.",
          Rule::AtLeast(1));
    visit("max_epochs", self.max_epochs, "Length in passes over the data, rounded up to a step.",
          Rule::Above(0));
    visit("duration", self.duration, "Length with its unit: \"7121steps\", \"28e9tok\" or \"1ep\".",
          Rule::Any());
    visit("max_time", self.max_time,
          "Save and leave with exit code 75 before this much time is over: \"71h30m\".",
          Rule::Above(0));
    visit("global_batch_size", self.global_batch_size, "Sequences per optimizer step.",
          Rule::AtLeast(1).Required());
    visit("micro_batch_size", self.micro_batch_size,
          "Sequences in memory at a time; divides global_batch_size; 0: a rank's share of "
          "global_batch_size, no accumulation.",
          Rule::AtLeast(0));
    visit("max_grad_norm", self.max_grad_norm, "Clip the gradient's global norm to this; 0: never.",
          Rule::AtLeast(0));
    visit("precision", self.precision,
          "fp32, or bf16: weights and activations in bf16, master weights, optimizer and sums in "
          "fp32.",
          Rule::OneOf({"fp32", "bf16"}));
    visit("activation_checkpointing", self.activation_checkpointing,
          "What the backward pass computes again instead of keeping it.",
          Rule::OneOf({"none", "selective", "full"}));
  }
};

struct ParamGroup {
  std::string match;
  std::optional<double> lr_scale;
  std::optional<double> weight_decay;

  bool operator==(const ParamGroup&) const = default;
  template <typename Self, typename Visitor>
  static void VisitFields(Self& self, Visitor& visit) {
    visit("match", self.match,
          "Which parameters: Tranche's name of one, or a pattern with * and ?, as in "
          "\"layers.0.*\"; `tranche inspect` lists the names.",
          Rule::Any().Required());
    visit("lr_scale", self.lr_scale,
          "Their learning rate is this times that of the step; 0 keeps them as they are.",
          Rule::AtLeast(0));
    visit("weight_decay", self.weight_decay,
          "Replaces optimizer.weight_decay for those of them that decay.", Rule::AtLeast(0));
  }
};

struct ParallelismRecipe {
  int64_t zero_stage = 1;
  int64_t data_parallel_shard_degree = -1;
  int64_t data_parallel_replicate_degree = 1;
  std::optional<Bytes> bucket_size;
  bool overlap = true;
  std::string reshard_after_forward = "auto";

  bool operator==(const ParallelismRecipe&) const = default;
  template <typename Self, typename Visitor>
  static void VisitFields(Self& self, Visitor& visit) {
    visit("zero_stage", self.zero_stage,
          "What is sharded over the ranks: 0 nothing, 1 the optimizer's state, 2 gradients too, 3 "
          "weights too. It changes memory and time, not numbers (docs/zero.md).",
          Rule::Between(0, 3));
    visit("data_parallel_shard_degree", self.data_parallel_shard_degree,
          "How many ranks, neighbours in order, shard one copy; -1: all of them, or their share of "
          "each replica.",
          Rule::AtLeast(-1));
    visit("data_parallel_replicate_degree", self.data_parallel_replicate_degree,
          "How many such groups train copies of what is sharded; their gradients are added up "
          "once a step.",
          Rule::AtLeast(1));
    visit(
        "bucket_size", self.bucket_size,
        "The fp32 gradients that are reduced at once, and their weights gathered at once; without "
        "it the ranks measure their links and choose.",
        Rule::Above(0));
    visit("overlap", self.overlap, "Communicate while computing.", Rule::Any());
    visit("reshard_after_forward", self.reshard_after_forward,
          "zero_stage 3: whether a layer's gathered weights are given up after use. auto: as many "
          "stay as the memory allows; true: two layers have a place; false: all have.",
          Rule::OneOf({"auto", "true", "false"}));
  }
};

struct LaunchRecipe {
  std::optional<int64_t> ranks;
  bool oversubscribe = false;
  std::string bind = "core";

  bool operator==(const LaunchRecipe&) const = default;
  template <typename Self, typename Visitor>
  static void VisitFields(Self& self, Visitor& visit) {
    visit("ranks", self.ranks,
          "`tranche train` starts so many ranks on this host, as `tranche launch -n` does, unless "
          "it is started as a rank itself.",
          Rule::Between(1, kMostRanks));
    visit("oversubscribe", self.oversubscribe, "Allow more ranks than cores; they take turns.",
          Rule::Any());
    visit("bind", self.bind, "What each rank is bound to: its own cores, or nothing.",
          Rule::OneOf({"core", "none"}));
  }

  static constexpr int kMostRanks = 4096;
};

struct OptimizerRecipe {
  std::string name = "adamw";
  double lr = 0;
  std::vector<double> betas = {0.9, 0.95};  // two
  double eps = 1e-8;
  double weight_decay = 0.1;
  std::vector<std::string> no_decay = {"bias", "norm"};
  std::vector<ParamGroup> param_groups;

  bool operator==(const OptimizerRecipe&) const = default;
  template <typename Self, typename Visitor>
  static void VisitFields(Self& self, Visitor& visit) {
    visit("name", self.name, "AdamW: decoupled weight decay.", Rule::OneOf({"adamw"}));
    visit("lr", self.lr, "Peak learning rate.", Rule::AtLeast(0).Required());
    visit("betas", self.betas, "The two decay rates of the moments.",
          Rule::Between(0, 1).BelowHigh());
    visit("eps", self.eps, "Added to the root of the second moment.", Rule::Above(0));
    visit("weight_decay", self.weight_decay, "Decoupled decay of all that no_decay leaves.",
          Rule::AtLeast(0));
    visit("no_decay", self.no_decay,
          "The kinds of parameters that never decay; a norm's bias is of both its kinds.",
          Rule::OneOf({"bias", "norm", "embedding"}));
    visit("param_groups", self.param_groups,
          "Parameters with a learning rate or decay of their own; of two tables that match one, "
          "the later decides.",
          Rule::Any());
  }
};

struct LrSchedulerRecipe {
  std::string name = "cosine";
  std::optional<int64_t> warmup_steps;
  std::optional<double> warmup_ratio;
  double min_lr_ratio = 0;
  double decay_ratio = 0.1;

  bool operator==(const LrSchedulerRecipe&) const = default;
  template <typename Self, typename Visitor>
  static void VisitFields(Self& self, Visitor& visit) {
    visit("name", self.name, "Shape of the learning rate after warm-up.",
          Rule::OneOf({"constant", "linear", "cosine", "wsd", "inverse_sqrt"}));
    visit("warmup_steps", self.warmup_steps, "Steps of linear warm-up; default 0.",
          Rule::AtLeast(0));
    visit("warmup_ratio", self.warmup_ratio,
          "Warm-up as a share of all steps, instead of warmup_steps.", Rule::Between(0, 1));
    visit("min_lr_ratio", self.min_lr_ratio, "The final learning rate as a share of the peak.",
          Rule::Between(0, 1));
    visit("decay_ratio", self.decay_ratio, "wsd: share of all steps that decay, at the end.",
          Rule::Between(0, 1));
  }
};

struct CheckpointRecipe {
  int64_t interval = 500;
  std::optional<double> interval_minutes;
  bool save_first_step = false;
  std::string trigger_file = "checkpoint_now";
  int64_t keep_latest_k = 2;
  std::optional<int64_t> keep_every;
  std::string on_disk_full = "continue";
  std::string resume = "auto";
  std::string verify = "checksum";
  std::string export_hf = "last";
  Bytes max_shard_size = {5'000'000'000};

  bool operator==(const CheckpointRecipe&) const = default;
  template <typename Self, typename Visitor>
  static void VisitFields(Self& self, Visitor& visit) {
    visit("interval", self.interval,
          "Steps between checkpoints; one is also written at the end; 0: none by steps.",
          Rule::AtLeast(0));
    visit("interval_minutes", self.interval_minutes,
          "Also write one when this much time has passed since the last.", Rule::Above(0));
    visit("save_first_step", self.save_first_step,
          "Also write one after step 1: whether saving works is known then, not hours later.",
          Rule::Any());
    visit("trigger_file", self.trigger_file,
          "Also write one when a file of this name appears in output_dir, and remove the file; "
          "\"\": no such file.",
          Rule::Any());
    visit("keep_latest_k", self.keep_latest_k, "How many of the newest checkpoints stay.",
          Rule::AtLeast(1));
    visit("keep_every", self.keep_every, "Checkpoints at multiples of this step are never removed.",
          Rule::AtLeast(1));
    visit("on_disk_full", self.on_disk_full,
          "continue: keep what is there, train on and try again at the next; prune_then_continue: "
          "first remove older checkpoints, never the newest nor multiples of keep_every, until "
          "there is room; error: end the run with exit code 1.",
          Rule::OneOf({"continue", "prune_then_continue", "error"}));
    visit("resume", self.resume,
          "auto: go on from the newest whole checkpoint of output_dir, if any; never: refuse a "
          "folder that has one; or the path of a checkpoint, or step:N for one of output_dir.",
          Rule{.allowed = {"auto", "never"}, .is_path = true});
    visit("verify", self.verify,
          "What must agree with its manifest before a checkpoint is resumed from: sizes and "
          "checksums, sizes, or nothing.",
          Rule::OneOf({"checksum", "size", "none"}));
    visit("export_hf", self.export_hf,
          "last: write a Hugging Face folder to output_dir/export at the end; every: also one to "
          "output_dir/exports/step-N with each checkpoint on the way, kept by the same rules.",
          Rule::OneOf({"never", "last", "every"}));
    visit("max_shard_size", self.max_shard_size,
          "Largest safetensors file of an export; beyond it the weights are split.",
          Rule::AtLeast(1));
  }
};

struct MetricsRecipe {
  int64_t log_interval = 1;
  bool jsonl = true;
  double peak_tflops = 0;

  bool operator==(const MetricsRecipe&) const = default;
  template <typename Self, typename Visitor>
  static void VisitFields(Self& self, Visitor& visit) {
    visit("log_interval", self.log_interval, "Steps between step lines.", Rule::AtLeast(1));
    visit("jsonl", self.jsonl, "Also write every step to output_dir/metrics.jsonl.", Rule::Any());
    visit("peak_tflops", self.peak_tflops,
          "What mfu is a share of, in 10^12 operations a second; 0: what matrix products reach on "
          "this machine, measured before the run and after it.",
          Rule::AtLeast(0));
  }
};

struct ProfilerRecipe {
  bool enable = false;
  std::vector<int64_t> steps = {2, 4};  // the first and the last

  bool operator==(const ProfilerRecipe&) const = default;
  template <typename Self, typename Visitor>
  static void VisitFields(Self& self, Visitor& visit) {
    visit("enable", self.enable,
          "Write down when each rank computed, communicated and waited, as Chrome traces in "
          "output_dir/trace: rank-N.json of each, all.json of all (docs/zero.md).",
          Rule::Any());
    visit("steps", self.steps, "The first and the last step of the trace.", Rule::AtLeast(1));
  }
};

struct FaultToleranceRecipe {
  int64_t max_skipped_steps = 10;
  std::vector<std::string> preempt_signals = {"SIGTERM", "SIGUSR1"};

  bool operator==(const FaultToleranceRecipe&) const = default;
  template <typename Self, typename Visitor>
  static void VisitFields(Self& self, Visitor& visit) {
    visit("max_skipped_steps", self.max_skipped_steps,
          "Steps with a non-finite loss or gradient that are skipped before the run stops with "
          "exit code 76; 0: stop at the first.",
          Rule::AtLeast(0));
    visit("preempt_signals", self.preempt_signals,
          "Signals at which the run saves and leaves with exit code 75, beside SIGINT.",
          Rule::OneOf({"SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP"}));
  }
};

}  // namespace tranche
