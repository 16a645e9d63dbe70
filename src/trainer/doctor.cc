#include "trainer/doctor.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/units.h"
#include "trainer/version.h"

namespace tranche {
namespace {

// The value of "name : value" or "name: value kB" in a /proc file; "" where it is absent.
std::string ProcField(absl::string_view text, absl::string_view name) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const size_t colon = line.find(':');
    if (colon == absl::string_view::npos ||
        absl::StripAsciiWhitespace(line.substr(0, colon)) != name)
      continue;
    return std::string(absl::StripAsciiWhitespace(line.substr(colon + 1)));
  }
  return "";
}

// Of a field in kB, in bytes.
std::optional<int64_t> ProcBytes(absl::string_view text, absl::string_view name) {
  int64_t kilobytes = 0;
  const std::string field = ProcField(text, name);
  if (!absl::SimpleAtoi(field.substr(0, field.find(' ')), &kilobytes)) return std::nullopt;
  return kilobytes << 10;
}

// Cores' worth of time that the control group (version 2, else 1) allows.
std::optional<double> CpuQuota(const MachineSources& sources) {
  const std::vector<std::string> max =
      absl::StrSplit(sources.read_file("/sys/fs/cgroup/cpu.max"), absl::ByAnyChar(" \n"));
  std::string quota = max[0], period = max.size() > 1 ? max[1] : "";
  if (quota.empty()) {
    quota = sources.read_file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
    period = sources.read_file("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  }
  double quota_us = 0, period_us = 0;
  if (!absl::SimpleAtod(quota, &quota_us) || !absl::SimpleAtod(period, &period_us))
    return std::nullopt;
  if (quota_us <= 0 || period_us <= 0) return std::nullopt;
  return quota_us / period_us;
}

std::optional<int64_t> MemoryLimit(const MachineSources& sources) {
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    int64_t bytes = 0;
    if (absl::SimpleAtoi(sources.read_file(path), &bytes) && bytes < int64_t{1} << 60) return bytes;
  }
  return std::nullopt;
}

class Diagnosis {
 public:
  explicit Diagnosis(const MachineSources& sources) : sources_(sources) {}

  void Processor();
  void Cores();
  void Memory();
  void HugePages();
  void Disk();
  void Limits();
  void Environment();
  std::vector<Finding> findings() && { return std::move(findings_); }

 private:
  void Fact(absl::string_view name, absl::string_view value) {
    findings_.push_back({std::string(name), std::string(value), Severity::kFact, ""});
  }
  void Problem(Severity severity, absl::string_view name, absl::string_view value,
               absl::string_view advice) {
    findings_.push_back({std::string(name), std::string(value), severity, std::string(advice)});
  }

  const MachineSources& sources_;
  std::vector<Finding> findings_;
};

void Diagnosis::Processor() {
  const std::string model = ProcField(sources_.read_file("/proc/cpuinfo"), "model name");
  Fact("processor", model.empty() ? "unknown" : model);
  Fact("instruction set", ChosenInstructionSet());
  Fact("gpu", "none (this program is built without CUDA)");
  std::string governor =
      sources_.read_file("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  absl::StripAsciiWhitespace(&governor);
  if (governor.empty()) return;
  if (governor == "powersave" &&
      sources_.read_file("/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver") !=
          "intel_pstate\n") {
    Problem(Severity::kSlow, "frequency governor", governor,
            "the cores run at their lowest frequency; choose the performance governor: cpupower "
            "frequency-set -g performance");
  } else {
    Fact("frequency governor", governor);
  }
}

void Diagnosis::Cores() {
  const int64_t online = sources_.cores_online, allowed = sources_.cores_allowed;
  const std::string value = absl::StrCat(allowed, " of ", online);
  if (allowed < online) {
    Problem(Severity::kSlow, "cores", value,
            "an affinity mask (taskset, Slurm's --cpus-per-task, a container) withholds cores; "
            "widen it to use them");
  } else {
    Fact("cores", value);
  }
  const std::optional<double> quota = CpuQuota(sources_);
  if (quota && *quota < static_cast<double>(allowed)) {
    Problem(Severity::kSlow, "cpu quota", absl::StrFormat("%.1f cores", *quota),
            absl::StrFormat("the control group grants less time than there are cores, so threads "
                            "are stopped in mid-step; raise "
                            "the quota or set OMP_NUM_THREADS=%d",
                            std::max(1, static_cast<int>(*quota))));
  }
  const std::string load = absl::StrFormat("%.2f", sources_.load_average);
  if (sources_.load_average > 0.5 * static_cast<double>(online)) {
    Problem(Severity::kSlow, "load average", load,
            absl::StrCat("other work keeps more than half of the ", online,
                         " cores busy; threads that wait for each other suffer "
                         "doubly"));
  } else {
    Fact("load average", load);
  }
}

void Diagnosis::Memory() {
  const std::string text = sources_.read_file("/proc/meminfo");
  const std::optional<int64_t> total = ProcBytes(text, "MemTotal"),
                               available = ProcBytes(text, "MemAvailable");
  if (!total || !available) {
    Problem(Severity::kBroken, "memory", "unknown", "/proc/meminfo cannot be read; mount /proc");
    return;
  }
  const std::string value =
      absl::StrCat(FormatBytes(*available), " available of ", FormatBytes(*total));
  if (*available < *total / 10) {
    Problem(Severity::kSlow, "memory", value,
            "little is left; end other programs before they or the run are swapped out");
  } else {
    Fact("memory", value);
  }
  const std::optional<int64_t> limit = MemoryLimit(sources_);
  if (limit && *limit < *total) {
    Problem(Severity::kSlow, "memory limit", FormatBytes(*limit),
            "the control group ends the run that needs more, whatever the machine has; compare "
            "with `tranche plan`");
  }
  const std::optional<int64_t> swap = ProcBytes(text, "SwapTotal"),
                               swap_free = ProcBytes(text, "SwapFree");
  if (swap && swap_free && *swap - *swap_free > *total / 20) {
    Problem(Severity::kSlow, "swap in use", FormatBytes(*swap - *swap_free),
            "memory is short already; end other programs");
  }
}

void Diagnosis::HugePages() {
  const std::string modes = sources_.read_file("/sys/kernel/mm/transparent_hugepage/enabled");
  const size_t open = modes.find('['), close = modes.find(']');
  if (open == std::string::npos || close == std::string::npos || close < open) return;
  const std::string mode = modes.substr(open + 1, close - open - 1);
  if (mode == "never") {
    Problem(Severity::kSlow, "transparent huge pages", mode,
            "large buffers cost more address translation; as root: echo madvise > "
            "/sys/kernel/mm/transparent_hugepage/enabled");
  } else {
    Fact("transparent huge pages", mode);
  }
}

void Diagnosis::Disk() {
  const int64_t free = sources_.free_disk_bytes;
  if (free < 0) {
    Problem(Severity::kBroken, "free disk here", "unknown",
            "the current folder cannot be examined; change to one that exists");
  } else if (free < int64_t{1} << 30) {
    Problem(Severity::kSlow, "free disk here", FormatBytes(free),
            "checkpoints may not fit; `tranche plan` says their size; point run.output_dir at a "
            "larger disk");
  } else {
    Fact("free disk here", FormatBytes(free));
  }
}

void Diagnosis::Limits() {
  const int64_t files = sources_.open_files_limit;
  const std::string value = files < 0 ? "unlimited" : absl::StrCat(files);
  if (files >= 0 && files < 1024) {
    Problem(Severity::kSlow, "open files limit", value,
            "many data files and shards are open at once; ulimit -n 65536");
  } else {
    Fact("open files limit", value);
  }
  Fact("locked memory limit",
       sources_.locked_memory_limit < 0 ? "unlimited" : FormatBytes(sources_.locked_memory_limit));
}

void Diagnosis::Environment() {
  const auto set = [&](const char* name) { return sources_.environment(name); };
  const auto problem = [&](const char* name, absl::string_view advice) {
    Problem(Severity::kSlow, name, set(name), advice);
  };
  int64_t threads = 0;
  if (const std::string value = set("OMP_NUM_THREADS"); !value.empty()) {
    if (!absl::SimpleAtoi(value.substr(0, value.find(',')), &threads) || threads < 1) {
      Problem(Severity::kBroken, "OMP_NUM_THREADS", value, "is no number of threads; unset it");
    } else if (threads < sources_.cores_allowed) {
      problem("OMP_NUM_THREADS", absl::StrCat("leaves ", sources_.cores_allowed - threads, " of ",
                                              sources_.cores_allowed, " cores idle; unset it"));
    } else if (threads > sources_.cores_allowed) {
      problem("OMP_NUM_THREADS", absl::StrCat("more threads than the ", sources_.cores_allowed,
                                              " cores: each step waits for the slowest; unset it"));
    } else {
      Fact("OMP_NUM_THREADS", value);
    }
  }
  if (set("CUDA_LAUNCH_BLOCKING") == "1")
    problem("CUDA_LAUNCH_BLOCKING", "makes every GPU kernel wait for the last; unset it");
  if (absl::EqualsIgnoreCase(set("OMP_PROC_BIND"), "master") ||
      absl::EqualsIgnoreCase(set("OMP_PROC_BIND"), "primary")) {
    problem("OMP_PROC_BIND",
            "puts all threads on the first thread's core; unset it or write close");
  }
  if (!set("OMP_THREAD_LIMIT").empty() && absl::SimpleAtoi(set("OMP_THREAD_LIMIT"), &threads) &&
      threads < sources_.cores_allowed) {
    problem("OMP_THREAD_LIMIT", "allows fewer threads than there are cores; unset it");
  }
  for (const char* name : {"DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA"}) {
    const std::string value = set(name);
    if (!value.empty() && !absl::EqualsIgnoreCase(value, "all") &&
        !absl::EqualsIgnoreCase(value, "default")) {
      problem(name, "keeps oneDNN from newer instructions; unset it");
    }
  }
  for (const char* name : {"DNNL_VERBOSE", "ONEDNN_VERBOSE"}) {
    const std::string value = set(name);
    if (!value.empty() && value != "0")
      problem(name, "prints a line for every matrix product; unset it");
  }
  if (!set("MALLOC_CHECK_").empty() && set("MALLOC_CHECK_") != "0")
    problem("MALLOC_CHECK_", "checks every allocation; unset it");
  if (!set("LD_PRELOAD").empty())
    problem("LD_PRELOAD",
            "puts a library between this program and the system; unset it if unsure why");
}

int64_t ResourceLimit(decltype(RLIMIT_NOFILE) resource) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return -1;
  return static_cast<int64_t>(limit.rlim_cur);
}

}  // namespace

MachineSources MachineSources::ThisMachine() {
  MachineSources sources;
  // Files of /proc and /sys have no size and cannot be mapped.
  sources.read_file = [](const std::string& path) {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  sources.environment = [](const std::string& name) {
    const char* value = std::getenv(name.c_str());
    return std::string(value == nullptr ? "" : value);
  };
  sources.cores_online = std::max<int64_t>(1, sysconf(_SC_NPROCESSORS_ONLN));
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sources.cores_allowed = sched_getaffinity(0, sizeof(allowed), &allowed) == 0
                              ? CPU_COUNT(&allowed)
                              : sources.cores_online;
  double load = 0;
  if (getloadavg(&load, 1) == 1) sources.load_average = load;
  sources.free_disk_bytes = FileSystem::Real().FreeBytes(".").value_or(-1);
  sources.locked_memory_limit = ResourceLimit(RLIMIT_MEMLOCK);
  sources.open_files_limit = ResourceLimit(RLIMIT_NOFILE);
  return sources;
}

std::vector<Finding> Diagnose(const MachineSources& sources) {
  Diagnosis diagnosis(sources);
  diagnosis.Processor();
  diagnosis.Cores();
  diagnosis.Memory();
  diagnosis.HugePages();
  diagnosis.Disk();
  diagnosis.Limits();
  diagnosis.Environment();
  return std::move(diagnosis).findings();
}

}  // namespace tranche
