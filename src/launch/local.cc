#include "launch/local.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "launch/cores.h"
#include "launch/orphans.h"
#include "launch/output.h"
#include "launch/store.h"

extern char** environ;

namespace tranche {
namespace {

constexpr int kLinesShown = 20;  // of a failed rank's log

std::string RandomSecret() {
  char bytes[16];
  TRANCHE_CHECK(::getrandom(bytes, sizeof(bytes), 0) == sizeof(bytes));
  return absl::BytesToHexString(absl::string_view(bytes, sizeof(bytes)));
}

std::string HowItEnded(int status) {
  if (WIFEXITED(status)) return absl::StrCat("exited with code ", WEXITSTATUS(status));
  return absl::StrCat("was killed by signal ", WTERMSIG(status), " (",
                      ::strsignal(WTERMSIG(status)), ")");
}

// What a started process needs, made before the fork: between fork and exec nothing may allocate.
struct Start {
  std::vector<std::string> environment;
  std::vector<char*> argv, envp;
  const cpu_set_t* cores = nullptr;  // null: not bound
  int out = -1, err = -1;
  pid_t launcher = 0;
  sigset_t mask;  // the launcher's before it blocked its own signals
};

[[noreturn]] void Become(const Start& start) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != start.launcher) ::_exit(1);  // it has ended in between
  if (start.cores != nullptr) ::sched_setaffinity(0, sizeof(*start.cores), start.cores);
  const int null = ::open("/dev/null", O_RDWR);
  ::dup2(null, 0);
  ::dup2(start.out >= 0 ? start.out : null, 1);
  ::dup2(start.err >= 0 ? start.err : null, 2);
  if (null > 2) ::close(null);
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_DFL);
  ::sigprocmask(SIG_SETMASK, &start.mask, nullptr);
  ::execve("/proc/self/exe", start.argv.data(), start.envp.data());
  ::_exit(127);
}

// The launcher's signals, read from a descriptor instead of handled.
class Signals {
 public:
  Signals() {
    sigset_t mine;
    ::sigemptyset(&mine);
    for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGHUP, SIGTSTP, SIGCHLD}) {
      ::sigaddset(&mine, signal);
    }
    ::sigprocmask(SIG_BLOCK, &mine, &before_);
    fd_ = FileDescriptor(::signalfd(-1, &mine, SFD_NONBLOCK | SFD_CLOEXEC));
    TRANCHE_CHECK(fd_.valid());
  }
  ~Signals() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }

  const sigset_t& before() const { return before_; }
  // Waits at most so long; 0 where none came.
  int Next(int timeout_ms) const {
    pollfd polled{.fd = fd_.get(), .events = POLLIN, .revents = 0};
    if (::poll(&polled, 1, timeout_ms) <= 0) return 0;
    signalfd_siginfo info = {};
    return ::read(fd_.get(), &info, sizeof(info)) == sizeof(info) ? static_cast<int>(info.ssi_signo)
                                                                  : 0;
  }

 private:
  sigset_t before_;
  FileDescriptor fd_;
};

struct Rank {
  pid_t pid = 0;
  std::string log_path;
  FileDescriptor log;
  std::optional<int> status;  // of waitpid
};

class Launcher {
 public:
  explicit Launcher(const LocalLaunch& launch) : launch_(launch), ranks_(launch.ranks) {}

  absl::Status Prepare();
  int Run();

 private:
  void StartRank(int rank);
  void Reap();
  void Pass(int signal);
  void SignalAll(int signal);
  // The first failure: the store's, or else that of the first process that ended badly.
  std::optional<int> FailedRank() const;
  void NoteFailure();
  void ReportFailure();
  int Code() const;
  bool AllEnded() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return !!r.status; });
  }

  const LocalLaunch& launch_;
  const Signals signals_;
  const std::string job_ = absl::StrCat("launch ", ::getpid());
  const std::string secret_ = RandomSecret();
  std::vector<RankCores> cores_;
  std::unique_ptr<StoreServer> store_;
  std::unique_ptr<OutputTee> tee_;
  std::vector<Rank> ranks_;
  std::optional<int> first_bad_;  // the first process that ended badly
  std::optional<int> failed_;     // the rank that failed first
  bool reported_ = false;
  int passed_ = 0;  // a signal that was passed on
  bool killed_ = false;
  SteadyClock::time_point failed_at_;
  bool terminated_ = false;
};

absl::Status Launcher::Prepare() {
  TRANCHE_ASSIGN_OR_RETURN(cores_, DealCores(launch_.ranks, launch_.oversubscribe));
  if (!launch_.log_directory.empty()) {
    TRANCHE_RETURN_IF_ERROR(FileSystem::Real().MakeDirs(launch_.log_directory));
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      Rank& mine = ranks_[rank];
      mine.log_path = JoinPath(launch_.log_directory, absl::StrCat("rank-", rank, ".log"));
      mine.log = FileDescriptor(
          ::open(mine.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
      if (!mine.log.valid()) return ErrnoStatus(mine.log_path, "cannot write");
    }
  }
  TRANCHE_ASSIGN_OR_RETURN(store_,
                           StoreServer::Start({.loopback_only = true,
                                               .job = job_,
                                               .secret = secret_,
                                               .world_size = launch_.ranks,
                                               .silence_seconds = launch_.silence_seconds}));
  return absl::OkStatus();
}

void Launcher::StartRank(int rank) {
  Rank& mine = ranks_[static_cast<size_t>(rank)];
  Start start;
  std::set<absl::string_view> ours;
  const auto set = [&](absl::string_view name, const auto& value) {
    start.environment.push_back(absl::StrCat(name, "=", value));
    ours.insert(name);
  };
  const RankCores& cores = cores_[static_cast<size_t>(rank)];
  set("TRANCHE_RANK", rank);
  set("TRANCHE_WORLD_SIZE", launch_.ranks);
  set("TRANCHE_LOCAL_RANK", rank);
  set("TRANCHE_LOCAL_WORLD_SIZE", launch_.ranks);
  set("TRANCHE_STORE", absl::StrCat("127.0.0.1:", store_->port()));
  set("TRANCHE_JOB", job_);
  set("TRANCHE_SECRET", secret_);
  if (std::getenv("OMP_NUM_THREADS") == nullptr) set("OMP_NUM_THREADS", cores.cores);
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const absl::string_view entry = *variable;
    if (ours.count(entry.substr(0, entry.find('='))) == 0) start.environment.emplace_back(entry);
  }
  std::vector<std::string> words = launch_.arguments;
  words.insert(words.begin(), "tranche");
  for (std::string& word : words) start.argv.push_back(word.data());
  for (std::string& entry : start.environment) start.envp.push_back(entry.data());
  start.argv.push_back(nullptr);
  start.envp.push_back(nullptr);
  if (launch_.bind) start.cores = &cores.set;
  start.launcher = ::getpid();
  start.mask = signals_.before();

  FileDescriptor read_out, read_err, write_out, write_err;
  start.out = start.err = mine.log.get();
  if (rank == 0) {
    for (auto [read_end, write_end] : {std::pair(&read_out, &write_out), {&read_err, &write_err}}) {
      int ends[2];
      TRANCHE_CHECK(::pipe2(ends, O_CLOEXEC) == 0) << std::strerror(errno);
      *read_end = FileDescriptor(ends[0]);
      *write_end = FileDescriptor(ends[1]);
    }
    start.out = write_out.get();
    start.err = write_err.get();
  }
  mine.pid = ::fork();
  if (mine.pid == 0) Become(start);
  if (mine.pid < 0) {
    LogError(absl::StrCat("rank ", rank, " cannot be started: ", std::strerror(errno)));
    mine.status = 1 << 8;  // as waitpid says "exited with code 1"
    first_bad_ = first_bad_.value_or(rank);
    return;
  }
  ::setpgid(mine.pid, mine.pid);  // as the child does: whichever comes first
  if (rank == 0) {
    tee_ = std::make_unique<OutputTee>(std::move(read_out), std::move(read_err), mine.log.get());
  }
}

void Launcher::Reap() {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    Rank& mine = ranks_[rank];
    int status = 0;
    if (mine.status.has_value() || ::waitpid(mine.pid, &status, WNOHANG) != mine.pid) continue;
    mine.status = status;
    ::kill(-mine.pid, SIGKILL);  // whatever it started itself
    store_->RankEnded(static_cast<int>(rank), absl::StrCat("it ", HowItEnded(status)));
    const bool fine = WIFEXITED(status) &&
                      (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == launch_.stopped_code);
    if (fine) continue;
    // A rank that left because of another one is not the cause.
    const bool follows = WIFEXITED(status) && WEXITSTATUS(status) == launch_.peer_failed_code;
    if (!first_bad_.has_value() && !follows) first_bad_ = static_cast<int>(rank);
  }
}

void Launcher::SignalAll(int signal) {
  for (const Rank& rank : ranks_) {
    if (!rank.status.has_value()) ::kill(-rank.pid, signal);
  }
}

void Launcher::Pass(int signal) {
  if (signal == SIGTSTP) {  // Ctrl-Z: all stop, and go on, together
    SignalAll(SIGSTOP);
    ::raise(SIGSTOP);
    SignalAll(SIGCONT);
    return;
  }
  if (signal == SIGHUP) signal = SIGTERM;  // the terminal is gone
  const bool again = passed_ != 0 && signal != SIGUSR1;
  if (again && !killed_) {
    LogNote(absl::StrCat("a second ", signal == SIGINT ? "SIGINT" : "SIGTERM",
                         ": the ranks are killed"));
  }
  killed_ |= again;
  if (!again && passed_ != 0) return;
  passed_ = signal;
  SignalAll(again ? SIGKILL : signal);
}

std::optional<int> Launcher::FailedRank() const {
  if (const auto failure = store_->failure(); failure.has_value()) return failure->rank;
  return first_bad_;
}

void Launcher::NoteFailure() {
  if (!failed_.has_value() && (failed_ = FailedRank()).has_value()) {
    failed_at_ = SteadyClock::now();
  }
}

void Launcher::ReportFailure() {
  if (reported_ || killed_) return;
  reported_ = true;
  const Rank& rank = ranks_[static_cast<size_t>(*failed_)];
  const auto failure = store_->failure();
  const bool told = failure.has_value() && failure->rank == *failed_;
  std::string what = rank.status.has_value() ? HowItEnded(*rank.status) : "failed";
  if (told && !failure->phase.empty()) {
    absl::StrAppend(&what, " in phase \"", failure->phase, "\"");
  }
  if (told && (failure->own_words || !rank.status.has_value())) {
    absl::StrAppend(&what, ": ", failure->reason);
  }
  if (rank.status.has_value() && *rank.status == 0) {
    absl::StrAppend(&what, ", before the work of all was done");
  }
  const bool others = std::any_of(ranks_.begin(), ranks_.end(), [&](const Rank& other) {
    return &other != &rank && !other.status.has_value();
  });
  if (others) absl::StrAppend(&what, "; the other ranks are stopped");
  LogError(absl::StrCat("rank ", *failed_, " (pid ", rank.pid, ") ", what));
  if (*failed_ == 0 || rank.log_path.empty()) return;
  const std::string lines = LastLines(rank.log_path, kLinesShown);
  if (lines.empty()) return;
  LogNote(absl::StrCat("the last lines of ", rank.log_path, ":\n", lines,
                       lines.back() == '\n' ? "" : "\n"));
}

int Launcher::Code() const {
  if (killed_) return 128 + passed_;
  if (failed_.has_value()) {
    const int status = *ranks_[static_cast<size_t>(*failed_)].status;
    if (WIFSIGNALED(status)) return 128 + WTERMSIG(status);
    const int code = WEXITSTATUS(status);
    return code == 0 || code == launch_.stopped_code ? 1 : code;
  }
  int code = 0;
  for (const Rank& rank : ranks_) code = std::max(code, WEXITSTATUS(*rank.status));
  return code;
}

int Launcher::Run() {
  const int cores = cores_[0].cores;
  LogNote(absl::StrCat(launch_.ranks, launch_.ranks == 1 ? " rank" : " ranks", " on this host, ",
                       cores, cores == 1 ? " core" : " cores", launch_.ranks == 1 ? "" : " each",
                       launch_.log_directory.empty() ? "" : "; logs in ", launch_.log_directory));
  for (int rank = 0; rank < launch_.ranks; ++rank) StartRank(rank);
  while (!AllEnded()) {
    const int signal = signals_.Next(100);
    if (signal != 0 && signal != SIGCHLD) Pass(signal);
    Reap();
    NoteFailure();
    if (!failed_.has_value()) continue;
    const auto since = SteadyClock::now() - failed_at_;
    const bool leave = since > Seconds(launch_.leave_seconds);
    const Rank& failed = ranks_[static_cast<size_t>(*failed_)];
    // Its process ends a moment after its connection, and says more.
    if (leave || failed.status.has_value()) ReportFailure();
    if (leave && !terminated_) {
      terminated_ = true;
      SignalAll(SIGTERM);
      // One that fell silent does not hear that either.
      const auto failure = store_->failure();
      const bool silent = failure.has_value() && !failure->own_words;
      if (silent && !failed.status.has_value()) ::kill(-failed.pid, SIGKILL);
    }
    if (since > Seconds(launch_.leave_seconds + launch_.grace_seconds)) SignalAll(SIGKILL);
  }
  for (size_t rank = 0; rank < ranks_.size() && !first_bad_.has_value(); ++rank) {
    const int status = *ranks_[rank].status;
    if (WEXITSTATUS(status) == launch_.peer_failed_code) first_bad_ = static_cast<int>(rank);
  }
  NoteFailure();
  if (failed_.has_value()) ReportFailure();
  tee_.reset();
  RemoveOrphanedSharedMemory();
  return Code();
}

}  // namespace

absl::StatusOr<int> LaunchLocal(const LocalLaunch& launch) {
  TRANCHE_CHECK(launch.ranks >= 1);
  Launcher launcher(launch);
  TRANCHE_RETURN_IF_ERROR(launcher.Prepare());
  return launcher.Run();
}

}  // namespace tranche
