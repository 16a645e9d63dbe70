// Doctor: each thing that slows a machine down is found on a machine that has it, with what to do,
// and on no other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "trainer/doctor.h"

namespace tranche {
namespace {

using ::testing::HasSubstr;

class Machine {
 public:
  Machine() {
    files_["/proc/cpuinfo"] = "processor\t: 0\nmodel name\t: Some CPU @ 3GHz\n";
    files_["/proc/meminfo"] =
        "MemTotal: 16000000 kB\nMemAvailable: 12000000 kB\nSwapTotal: 4000000 kB\nSwapFree: "
        "4000000 kB\n";
    files_["/sys/kernel/mm/transparent_hugepage/enabled"] = "always [madvise] never\n";
    files_["/sys/fs/cgroup/cpu.max"] = "max 100000\n";
    files_["/sys/fs/cgroup/memory.max"] = "max\n";
    sources_.cores_online = sources_.cores_allowed = 8;
    sources_.load_average = 0.1;
    sources_.free_disk_bytes = int64_t{100} << 30;
    sources_.open_files_limit = 65536;
  }
  Machine& File(const std::string& path, const std::string& text) {
    return files_[path] = text, *this;
  }
  Machine& Variable(const std::string& name, const std::string& value) {
    return variables_[name] = value, *this;
  }
  MachineSources& sources() { return sources_; }

  std::map<std::string, Finding> Problems() {
    sources_.read_file = [this](const std::string& path) {
      return files_.count(path) ? files_[path] : "";
    };
    sources_.environment = [this](const std::string& name) {
      return variables_.count(name) ? variables_[name] : "";
    };
    std::map<std::string, Finding> problems;
    for (const Finding& finding : Diagnose(sources_)) {
      if (finding.severity != Severity::kFact) problems[finding.name] = finding;
    }
    return problems;
  }

 private:
  std::map<std::string, std::string> files_, variables_;
  MachineSources sources_;
};

TEST(Doctor, GoodMachineHasNoProblem) {
  EXPECT_TRUE(Machine().Problems().empty());
  EXPECT_TRUE(Machine()
                  .Variable("OMP_NUM_THREADS", "8")
                  .Variable("CUDA_LAUNCH_BLOCKING", "0")
                  .Problems()
                  .empty());
}

void ExpectOnly(Machine& machine, const std::string& name, Severity severity,
                const std::string& advice) {
  const auto problems = machine.Problems();
  ASSERT_EQ(problems.size(), 1u) << name;
  ASSERT_EQ(problems.begin()->first, name);
  EXPECT_EQ(problems.begin()->second.severity, severity) << name;
  EXPECT_THAT(problems.begin()->second.advice, HasSubstr(advice)) << name;
}

TEST(Doctor, EnvironmentThatSlowsDownIsNamed) {
  const struct {
    const char* name;
    const char* value;
    Severity severity;
    const char* advice;
  } cases[] = {{"OMP_NUM_THREADS", "1", Severity::kSlow, "leaves 7 of 8 cores idle"},
               {"OMP_NUM_THREADS", "16", Severity::kSlow, "more threads than the 8 cores"},
               {"OMP_NUM_THREADS", "many", Severity::kBroken, "unset it"},
               {"CUDA_LAUNCH_BLOCKING", "1", Severity::kSlow, "unset it"},
               {"OMP_PROC_BIND", "MASTER", Severity::kSlow, "unset it"},
               {"OMP_THREAD_LIMIT", "2", Severity::kSlow, "unset it"},
               {"ONEDNN_MAX_CPU_ISA", "SSE41", Severity::kSlow, "unset it"},
               {"DNNL_VERBOSE", "1", Severity::kSlow, "unset it"},
               {"MALLOC_CHECK_", "3", Severity::kSlow, "unset it"},
               {"LD_PRELOAD", "/x.so", Severity::kSlow, "unset it"}};
  for (const auto& each : cases) {
    Machine machine;
    ExpectOnly(machine.Variable(each.name, each.value), each.name, each.severity, each.advice);
  }
}

TEST(Doctor, WithheldCoresMemoryAndDiskAreNamed) {
  Machine masked;
  masked.sources().cores_allowed = 2;
  ExpectOnly(masked, "cores", Severity::kSlow, "affinity");
  Machine loaded;
  loaded.sources().load_average = 5;
  ExpectOnly(loaded, "load average", Severity::kSlow, "other work");
  Machine full;
  full.sources().free_disk_bytes = 1 << 20;
  ExpectOnly(full, "free disk here", Severity::kSlow, "tranche plan");
  Machine few_files;
  few_files.sources().open_files_limit = 64;
  ExpectOnly(few_files, "open files limit", Severity::kSlow, "ulimit");
  Machine quota;
  ExpectOnly(quota.File("/sys/fs/cgroup/cpu.max", "150000 100000\n"), "cpu quota", Severity::kSlow,
             "OMP_NUM_THREADS=1");
  Machine old_quota;
  old_quota.File("/sys/fs/cgroup/cpu.max", "")
      .File("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  ExpectOnly(old_quota.File("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n"), "cpu quota",
             Severity::kSlow, "OMP_NUM_THREADS=2");
  Machine limited;
  ExpectOnly(limited.File("/sys/fs/cgroup/memory.max", "1073741824\n"), "memory limit",
             Severity::kSlow, "tranche plan");
  Machine small_pages;
  ExpectOnly(
      small_pages.File("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n"),
      "transparent huge pages", Severity::kSlow, "madvise");
  Machine tight;
  ExpectOnly(tight.File("/proc/meminfo", "MemTotal: 16000000 kB\nMemAvailable: 1000000 kB\n"),
             "memory", Severity::kSlow, "little is left");
  Machine swapping;
  ExpectOnly(swapping.File("/proc/meminfo",
                           "MemTotal: 16000000 kB\nMemAvailable: 9000000 kB\nSwapTotal: 4000000 "
                           "kB\nSwapFree: 0 kB\n"),
             "swap in use", Severity::kSlow, "memory is short");
  Machine no_proc;
  ExpectOnly(no_proc.File("/proc/meminfo", ""), "memory", Severity::kBroken, "mount /proc");
}

TEST(Doctor, ThisMachineIsDescribed) {
  const MachineSources sources = MachineSources::ThisMachine();
  EXPECT_GE(sources.cores_online, 1);
  EXPECT_GE(sources.cores_allowed, 1);
  EXPECT_GT(sources.free_disk_bytes, 0);
  bool memory = false;
  for (const Finding& finding : Diagnose(sources))
    memory |= finding.name == "memory" && finding.severity != Severity::kBroken;
  EXPECT_TRUE(memory);
}

}  // namespace
}  // namespace tranche
