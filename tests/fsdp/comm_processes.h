#pragma once
// Real processes as ranks: this test executable again, running one hidden test case as each rank
// under the variables a launcher sets.
#include <sys/types.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace tessera::fsdp::testing {

struct RankResult {
  int exit_code = -1;   // of the process; -1: a signal ended it
  int signal = 0;       // which
  bool killed = false;  // by the harness, at the deadline
  std::string report;   // what the rank wrote with report()
  std::string log;      // what it printed
};

struct ProcessJob {
  int size = 2;
  std::string scenario;
  std::string test = "a rank of a job";            // the hidden test case that plays it
  std::vector<std::string> arguments = {};         // behind it
  std::map<std::string, std::string> environment;  // besides, or over, RANK and the others
  std::chrono::milliseconds deadline{30000};
  /// Ranks that are stopped (SIGSTOP themselves): killed once all others have ended.
  std::vector<int> stopped;
};

/// Starts all, waits for all; never longer than the deadline.
std::vector<RankResult> run_processes(const ProcessJob& job);

/// A TCP port that nobody listens on.
int free_port();

/// In a rank: which scenario it shall play, and the line its result carries.
std::string scenario();
void report(const std::string& text);

}  // namespace tessera::fsdp::testing
