// The `tranche` program: finds the verb, parses its flags, runs it, and leaves with an ExitCode.
#include <array>
#include <csignal>
#include <cstdio>
#include <exception>
#include <fcntl.h>
#include <iostream>
#include <new>
#include <poll.h>
#include <string>
#include <unistd.h>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "trainer/cli.h"
#include "trainer/exit_codes.h"
#include "trainer/verbs/verbs.h"
#include "trainer/version.h"

namespace tranche {
namespace {

// A file opened while descriptor 1 is closed would become descriptor 1 and receive what is printed.
void OpenStandardStreams() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (fcntl(fd, F_GETFD) == -1) (void)open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY);
  }
}

// True where stdout is a pipe whose reader has left: `tranche recipes show x | head -1` is no
// failure.
bool ReaderLeft() {
  pollfd state{.fd = 1, .events = POLLOUT, .revents = 0};
  return poll(&state, 1, 0) > 0 && (state.revents & POLLERR) != 0;
}

int Finish(int code) {
  std::cout.flush();
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good();
  if (written || ReaderLeft()) return code;
  LogError("standard output could not be written; is its disk full?");
  return code == kExitDone ? kExitFailed : code;
}

void PrintHelp(const std::vector<Verb>& verbs) {
  size_t width = 0;
  for (const Verb& verb : verbs) width = std::max(width, verb.name.size());
  std::string text =
      "usage: tranche VERB [flags]\n\nTrains BERT- and phi-style transformers from a TOML "
      "recipe.\n\n";
  for (const Verb& verb : verbs)
    absl::StrAppendFormat(&text, "  %-*s  %s\n", static_cast<int>(width), verb.name, verb.summary);
  absl::StrAppend(&text,
                  "\n`tranche VERB --help` explains a verb, `tranche --version` says what is in "
                  "this program.\n");
  std::fputs(text.c_str(), stdout);
}

// Lines of at most 100 columns where words allow it, all but the first indented.
std::string Wrap(absl::string_view text, size_t indent) {
  std::string wrapped;
  size_t column = indent;
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    if (column > indent && column + word.size() > 100) {
      wrapped += absl::StrCat("\n", std::string(indent, ' '));
      column = indent;
    }
    absl::StrAppend(&wrapped, column > indent ? " " : "", word);
    column += word.size() + 1;
  }
  return wrapped;
}

void PrintHelp(const Verb& verb) {
  std::string text =
      absl::StrCat("usage: tranche ", verb.name, " ", verb.usage, "\n\n", verb.summary, "\n");
  std::vector<std::string> names;
  size_t width = 0;
  for (const Flag& flag : verb.flags) {
    names.push_back(absl::StrCat("--", flag.name, flag.value.empty() ? "" : " ", flag.value));
    width = std::max(width, names.back().size());
  }
  if (!names.empty()) text += "\n";
  for (size_t i = 0; i < names.size(); ++i) {
    absl::StrAppendFormat(&text, "  %-*s  %s\n", static_cast<int>(width), names[i],
                          Wrap(verb.flags[i].help, width + 4));
  }
  absl::StrAppend(&text, "\nexample:\n  ", verb.example, "\n");
  std::fputs(text.c_str(), stdout);
}

bool AsksForHelp(const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    if (word == "--") return false;
    if (word == "--help" || word == "-h") return true;
  }
  return false;
}

// `tranche tokenizer` alone: the verbs that begin with that word, or the nearest verb.
int UnknownVerb(const std::vector<Verb>& verbs, const std::vector<std::string>& words) {
  std::vector<std::string> names, begun;
  for (const Verb& verb : verbs) {
    names.push_back(verb.name);
    if (absl::StartsWith(verb.name, words[0] + " "))
      begun.push_back(absl::StrCat("tranche ", verb.name));
  }
  if (!begun.empty()) {
    const std::string typed = words.size() > 1 ? absl::StrCat(words[0], " ", words[1]) : words[0];
    return ReportError(absl::InvalidArgumentError(
        absl::StrCat("tranche ", typed, ": unknown verb", DidYouMean(typed, names),
                     "; there are: ", absl::StrJoin(begun, ", "))));
  }
  std::string hint = DidYouMean(words[0], names);
  if (hint.empty() && words.size() > 1)
    hint = DidYouMean(absl::StrCat(words[0], " ", words[1]), names);
  if (hint.empty()) hint = "; `tranche --help` lists them";
  return ReportError(
      absl::InvalidArgumentError(absl::StrCat("unknown verb \"", words[0], "\"", hint)));
}

int Run(std::vector<std::string> words) {
  const std::vector<Verb> verbs = AllVerbs();
  if (!words.empty() && words[0] == "help") {
    words.erase(words.begin());
    words.push_back("--help");
  }
  if (words.empty() || words[0] == "--help" || words[0] == "-h") {
    PrintHelp(verbs);
    return words.empty() ? kExitBadInput : kExitDone;
  }
  if (words[0] == "--version" || words[0] == "version") {
    std::fputs(VersionText().c_str(), stdout);
    return kExitDone;
  }
  for (size_t length = std::min<size_t>(2, words.size()); length > 0; --length) {
    const std::string name =
        absl::StrJoin(words.begin(), words.begin() + static_cast<ptrdiff_t>(length), " ");
    for (const Verb& verb : verbs) {
      if (verb.name != name) continue;
      const std::vector<std::string> rest(words.begin() + static_cast<ptrdiff_t>(length),
                                          words.end());
      if (AsksForHelp(rest)) {
        PrintHelp(verb);
        return kExitDone;
      }
      const absl::StatusOr<Arguments> arguments = ParseArguments(verb, rest);
      return arguments.ok() ? verb.run(*arguments) : ReportError(arguments.status());
    }
  }
  if (AsksForHelp(words)) {
    std::vector<Verb> begun;
    for (const Verb& verb : verbs) {
      if (absl::StartsWith(verb.name, words[0] + " ")) begun.push_back(verb);
    }
    if (!begun.empty()) {
      PrintHelp(begun);
      return kExitDone;
    }
  }
  return UnknownVerb(verbs, words);
}

}  // namespace
}  // namespace tranche

int main(int argc, char** argv) {
  tranche::OpenStandardStreams();
  std::signal(SIGPIPE, SIG_IGN);  // a reader that leaves must not end a training run
  try {
    return tranche::Finish(tranche::Run({argv + 1, argv + argc}));
  } catch (const std::bad_alloc&) {
    tranche::LogError("out of memory");
  } catch (const std::exception& error) {
    tranche::LogError(absl::StrCat("internal error: ", error.what()));
  }
  return tranche::kExitFailed;
}
