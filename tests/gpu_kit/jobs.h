#pragma once
// Jobs: groups of cases run by processes of this program, one job a group. `kit rank` is one of
// those processes.
#include <c10/core/Device.h>

#include <chrono>
#include <string>
#include <vector>

#include "tests/gpu_kit/rank_cases.h"
#include "tests/gpu_kit/report.h"

namespace tessera::gpu_kit {

struct JobSettings {
  std::string device = "cuda:0";
  std::string transport = "staged";  // or "nccl"
  int ranks = 4;
  std::string label;                 // before each case's name
  int seeds = 0;                     // above 0: the race groups
  std::vector<std::string> only;     // names of groups; empty: all
  std::chrono::seconds budget{120};  // of all groups together
  std::string fail_case;  // the last rank throws at its end: tests how failures are reported
};

/// One job per group, as long as there is time. A group without time, and cases that a job did not
/// come to, are reported as failed.
void run_jobs(Report& report, const std::vector<RankGroupOfCases>& groups,
              const JobSettings& settings);

/// The process of one rank: plays the group `name`, and says of each case how it went. The exit
/// status.
int play_rank(const std::string& name, const JobSettings& settings);

}  // namespace tessera::gpu_kit
