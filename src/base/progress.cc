#include "base/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"

namespace tranche {

ProgressBar::ProgressBar(absl::string_view label, int64_t total)
    : enabled_(TakesEscapes(STDERR_FILENO)), label_(label), total_(total) {}

ProgressBar::~ProgressBar() { Clear(); }

void ProgressBar::Update(int64_t done, absl::string_view detail) {
  if (!enabled_) return;
  const auto now = std::chrono::steady_clock::now();
  if (drawn_ && now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  drawn_ = true;
  constexpr int kWidth = 30;
  std::string bar;
  if (total_ > 0) {
    const double share =
        std::clamp(static_cast<double>(done) / static_cast<double>(total_), 0.0, 1.0);
    const int filled = static_cast<int>(share * kWidth);
    bar = absl::StrFormat("[%s%s] %3.0f%% ", std::string(static_cast<size_t>(filled), '='),
                          std::string(static_cast<size_t>(kWidth - filled), ' '), 100 * share);
  }
  const std::string line = absl::StrCat("\r\x1b[K", label_, " ", bar, detail);
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

void ProgressBar::Clear() {
  if (!drawn_) return;
  drawn_ = false;
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
}

}  // namespace tranche
