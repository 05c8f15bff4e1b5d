#include "tools/progress_reporter.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <tessera/base/text.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <system_error>

#include "tools/documents/json_report.h"
#include "tools/render/number_text.h"
#include "tools/render/screen.h"

namespace tessera::tools {
namespace {

constexpr double kRateWindowSeconds = 5;
constexpr double kQuietSeconds = 0.3;  // short work shows no bar

int stderr_width() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

void write_stderr(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

/// While it lives, signals go to other threads than those that are started.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

double fraction(const ProgressSample& sample) {
  if (sample.total_bytes == 0) return 0;
  return std::min(1.0,
                  static_cast<double>(sample.done_bytes) / static_cast<double>(sample.total_bytes));
}

std::string facts(const ProgressSample& sample) {
  std::string text = fmt::format("{:5.1f} %  {} of {}  {}", fraction(sample) * 100,
                                 format_bytes(sample.done_bytes), format_bytes(sample.total_bytes),
                                 rate_text(sample.bytes_per_second));
  if (sample.seconds_left() >= 0)
    text += fmt::format("  {} left", seconds_text(sample.seconds_left()));
  return text;
}

}  // namespace

double ProgressSample::seconds_left() const {
  if (bytes_per_second <= 0) return -1;
  return static_cast<double>(total_bytes - std::min(total_bytes, done_bytes)) / bytes_per_second;
}

std::string progress_line(const std::string& label, const ProgressSample& sample) {
  return label + "  " + facts(sample);
}

std::string progress_bar_line(const std::string& label, const ProgressSample& sample, int width) {
  const std::string text = facts(sample);
  const int room = width - 1 - display_width(label) - display_width(text) - 6;
  if (room < 8) return clip_end(label + "  " + text, width - 1);
  const int cells = std::min(room, 40);
  return fmt::format("{}  [{}]  {}", label, pad_right(bar(fraction(sample), cells), cells), text);
}

std::string progress_json(const std::string& label, const ProgressSample& sample) {
  JsonObject object;
  object.add("schema", "tessera.progress/1");
  object.add("type", "progress");
  object.add("operation", label);
  object.add("done_bytes", sample.done_bytes);
  object.add("total_bytes", sample.total_bytes);
  object.add("bytes_per_second", sample.bytes_per_second);
  object.add("seconds", sample.seconds);
  object.add("seconds_left",
             sample.seconds_left() < 0 ? Value() : Value::real(sample.seconds_left()));
  return dump_json(object.take());
}

ProgressReporter::ProgressReporter(ProgressMode mode, std::string label, const Progress& progress)
    : label_(std::move(label)), progress_(progress), start_(std::chrono::steady_clock::now()) {
  switch (mode) {
    case ProgressMode::kNone:
      return;
    case ProgressMode::kBar:
      form_ = Form::kBar;
      break;
    case ProgressMode::kJson:
      form_ = Form::kJson;
      break;
    case ProgressMode::kAuto:
      form_ = isatty(STDERR_FILENO) ? Form::kBar : Form::kPlain;
      break;
  }
  // The reporter must not be the thread that a signal lands on: the work should notice at once.
  const SignalsBlocked blocked;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error&) {  // no thread to be had
  }
}

ProgressReporter::~ProgressReporter() {
  if (thread_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }
  if (form_ == Form::kJson && progress_.total_bytes > 0) report_if_memory_allows();
  if (form_ == Form::kBar && drawn_) write_stderr("\r\x1b[K");
}

void ProgressReporter::run() {
  using std::chrono::milliseconds;
  const auto interval = form_ == Form::kBar    ? milliseconds(100)
                        : form_ == Form::kJson ? milliseconds(1000)
                                               : milliseconds(30000);
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, interval, [this] { return stop_; })) {
    if (progress_.total_bytes > 0) report_if_memory_allows();
  }
}

void ProgressReporter::report_if_memory_allows() {
  try {
    report();
  } catch (const std::bad_alloc&) {
  }
}

ProgressSample ProgressReporter::sample() {
  const double now =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  const std::uint64_t resumed = progress_.resumed_bytes.load();
  const std::uint64_t done = progress_.done_bytes.load();
  const std::uint64_t moved = done - std::min(done, resumed);
  if (recent_.empty()) recent_.emplace_back(0.0, 0);
  recent_.emplace_back(now, moved);
  while (recent_.size() > 2 && now - recent_[1].first >= kRateWindowSeconds) recent_.pop_front();
  const double span = now - recent_.front().first;
  const auto grown = static_cast<double>(moved - std::min(moved, recent_.front().second));
  return {done, progress_.total_bytes.load(), span > 0 ? grown / span : 0, now};
}

void ProgressReporter::report() {
  const ProgressSample now = sample();
  if (form_ == Form::kBar) {
    if (now.seconds < kQuietSeconds) return;
    write_stderr("\r" + progress_bar_line(label_, now, stderr_width()) + "\x1b[K");
    drawn_ = true;
  } else if (form_ == Form::kJson) {
    write_stderr(progress_json(label_, now) + "\n");
  } else {
    write_stderr(progress_line(label_, now) + "\n");
  }
}

}  // namespace tessera::tools
