#pragma once
// ProgressReporter: a thread that reads Progress counters and prints them on stderr while the work
// runs.
//
//   bar    one line that redraws itself:  reshard  [#####     ]  42.1 %  1.3 of 3.1 GiB  812 MiB/s
//          2 s left
//   plain  one such line every 30 s (what auto means off a terminal)
//   json   {"schema":"tessera.progress/1",...} every second and at the end
//   none   nothing
//
// Says nothing while the total is unknown (0), and nothing where there is no memory or no thread to
// say it with: the work goes on. The destructor stops the thread and clears the bar.
#include <tessera/base/progress.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

#include "tools/args/args.h"

namespace tessera::tools {

/// What one report says; pure, so that tests can hold it against numbers.
struct ProgressSample {
  std::uint64_t done_bytes = 0;
  std::uint64_t total_bytes = 0;
  double bytes_per_second = 0;
  double seconds = 0;
  /// Time left at this rate; negative when unknown.
  double seconds_left() const;
};
std::string progress_line(const std::string& label, const ProgressSample& sample);
std::string progress_bar_line(const std::string& label, const ProgressSample& sample, int width);
std::string progress_json(const std::string& label, const ProgressSample& sample);

class ProgressReporter {
 public:
  ProgressReporter(ProgressMode mode, std::string label, const Progress& progress);
  ~ProgressReporter();
  ProgressReporter(const ProgressReporter&) = delete;
  ProgressReporter& operator=(const ProgressReporter&) = delete;

 private:
  enum class Form { kNone, kBar, kPlain, kJson };
  void run();
  void report();
  void report_if_memory_allows();
  ProgressSample sample();

  Form form_ = Form::kNone;
  std::string label_;
  const Progress& progress_;
  std::chrono::steady_clock::time_point start_;
  std::deque<std::pair<double, std::uint64_t>> recent_;  // seconds, bytes: the last few seconds
  bool drawn_ = false;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace tessera::tools
