#include "tests/gpu_kit/jobs.h"

#include <algorithm>
#include <span>
#include <sstream>
#include <stdexcept>

#include "tests/fsdp/comm_processes.h"
#include "tests/gpu_kit/staged_comm.h"

namespace tessera::gpu_kit {

using fsdp::testing::ProcessJob;
using fsdp::testing::RankResult;
using std::chrono::seconds;

namespace {

using Clock = std::chrono::steady_clock;

/// Of one collective: nothing here takes long, and a rank that fell is not always noticed sooner.
constexpr seconds kPatience{20};

RankGroupOfCases group_named(const std::string& name, int seeds) {
  for (const auto& groups : {parity_groups(), race_groups(seeds)})
    for (const RankGroupOfCases& group : groups)
      if (group.name == name) return group;
  throw std::invalid_argument("there is no group \"" + name + "\"");
}

// ---- a rank ----

/// "" or what went wrong, on any rank: the same on all. A cause before what others saw of it.
std::string agreed(fsdp::World& world, const std::string& mine) {
  const auto all = world.ranks().all_gather(std::as_bytes(std::span(mine)));
  std::string first;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const std::string why(reinterpret_cast<const char*>(all[rank].data()), all[rank].size());
    const bool echo = why.starts_with("cancelled");
    if (why.empty() || (echo && !first.empty())) continue;
    const std::string text = fmt::format("rank {}: {}", rank, why);
    if (!echo) return text;
    first = text;
  }
  return first;
}

std::string thrown_by(const RankCase& each, RankContext& context, const JobSettings& settings) {
  try {
    each.body(context);
    if (each.name == settings.fail_case && context.world.rank() == context.world.size() - 1)
      throw std::runtime_error("made to fail");
    return "";
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return text.empty() ? "an exception without a text" : text.substr(0, text.find('\n'));
  }
}

fsdp::World join(const JobSettings& settings, c10::Device device) {
  fsdp::WorldOptions options;
  options.timeout = kPatience;
  options.state_timeout = 2 * kPatience;  // a rank that failed waits there for the others
  if (settings.transport == "staged") return staged_world(device, options);
  options.backend = settings.transport;
  return fsdp::init_from_env(options);
}

// ---- the parent ----

ProcessJob job_of(const RankGroupOfCases& group, const JobSettings& settings, seconds left) {
  ProcessJob job;
  job.size = group.ranks > 0 ? group.ranks : settings.ranks;
  job.test = "rank";
  job.arguments = {"--group",     group.name,         "--device", settings.device,
                   "--transport", settings.transport, "--seeds",  std::to_string(settings.seeds)};
  if (!settings.fail_case.empty())
    job.arguments.insert(job.arguments.end(), {"--fail-case", settings.fail_case});
  // All ranks are on the one device that there is.
  job.environment = {{"LOCAL_RANK", "0"}, {"CUBLAS_WORKSPACE_CONFIG", ":4096:8"}};
  job.deadline = left;
  return job;
}

/// Why the processes ended before they had played everything.
std::string end_of(const std::vector<RankResult>& results) {
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    const RankResult& result = results[rank];
    if (result.exit_code == 0) continue;
    const std::string how = result.killed   ? "was ended at the deadline"
                            : result.signal ? fmt::format("ended by signal {}", result.signal)
                                            : fmt::format("exited with {}", result.exit_code);
    const std::size_t tail = result.log.size() > 400 ? result.log.size() - 400 : 0;
    return fmt::format("not played: rank {} {}: {}", rank, how, result.log.substr(tail));
  }
  return "not played, and no rank says why";
}

/// Rank 0's lines are `NAME<tab>` and what went wrong, the same on all ranks.
void add_results(Report& report, const RankGroupOfCases& group, const std::string& label,
                 const std::vector<RankResult>& results) {
  std::istringstream lines(results[0].report);
  std::vector<std::string> played;
  for (std::string line; std::getline(lines, line);) {
    const std::size_t tab = line.find('\t');
    if (tab == std::string::npos) continue;
    played.push_back(line.substr(0, tab));
    const std::string name = label + group.name + ": " + played.back(), why = line.substr(tab + 1);
    why.empty() ? report.passed(name) : report.failed(name, why);
  }
  for (const RankCase& each : group.cases())
    if (std::ranges::find(played, each.name) == played.end())
      report.failed(label + group.name + ": " + each.name, end_of(results));
}

}  // namespace

int play_rank(const std::string& name, const JobSettings& settings) {
  const c10::Device device(settings.device);
  fsdp::World world = join(settings, device);
  RankContext context{world, device};
  for (const RankCase& each : group_named(name, settings.seeds).cases()) {
    const std::string why = agreed(world, thrown_by(each, context, settings));
    if (world.rank() == 0) fsdp::testing::report(each.name + "\t" + why + "\n");
    if (!why.empty()) world.reset();  // groups that failed stay dead
  }
  return 0;
}

void run_jobs(Report& report, const std::vector<RankGroupOfCases>& groups,
              const JobSettings& settings) {
  const auto end = Clock::now() + settings.budget;
  for (const RankGroupOfCases& group : groups) {
    if (!settings.only.empty() &&
        std::ranges::find(settings.only, group.name) == settings.only.end())
      continue;
    const auto left = std::chrono::duration_cast<seconds>(end - Clock::now());
    if (left < seconds(5)) {
      report.failed(settings.label + group.name, "not played: no time was left");
      continue;
    }
    add_results(report, group, settings.label, run_processes(job_of(group, settings, left)));
  }
}

}  // namespace tessera::gpu_kit
