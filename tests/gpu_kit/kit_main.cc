// The kit's program: each part is a run of its own. run.sh plays them all.
//
//   gpu_kit PART [--device cuda:0] [--out FOLDER] [--seconds N] [--ranks N] [--only GROUP]...
//   gpu_kit --list | --version | --help
//
//   parity   values of every option against the plain model, ranks as processes on one device
//   speed    host time, GPU idle time, memory, tokens/s
//   state    save, load, save in the background
//   races    late streams against punctual ones, bit for bit (--seeds N)
//   nccl     parity over NCCL, several ranks on one GPU
//
// Exit status: 0 all passed, 1 something failed, 2 usage, 77 no such device here.
#include <ATen/detail/CUDAHooksInterface.h>
#include <torch/version.h>

#include <cstdio>
#include <iostream>
#include <span>

#include "tests/gpu_kit/jobs.h"
#include "tests/gpu_kit/parts.h"

namespace tessera::gpu_kit {

namespace {

constexpr const char* kUsage =
    "usage: gpu_kit parity|speed|state|races|nccl [--device cuda:0] [--out FOLDER] [--seconds N]\n"
    "               [--ranks N] [--seeds N] [--only GROUP]... [--scratch FOLDER]\n"
    "       gpu_kit --list | --version | --help\n";

struct Arguments {
  std::string part, out, group;
  std::string scratch = std::filesystem::temp_directory_path().string();
  JobSettings jobs;
};

struct Usage {
  std::string what;
};

int number(const std::string& text) {
  try {
    return std::stoi(text);
  } catch (const std::exception&) {
    throw Usage{"\"" + text + "\" is no number"};
  }
}

Arguments parse(std::span<char*> words) {
  Arguments out;
  out.part = words[0];
  for (std::size_t i = 1; i < words.size(); i += 2) {
    const std::string option = words[i];
    if (i + 1 == words.size()) throw Usage{option + " needs a value"};
    const std::string value = words[i + 1];
    if (option == "--device")
      out.jobs.device = value;
    else if (option == "--out")
      out.out = value;
    else if (option == "--seconds")
      out.jobs.budget = std::chrono::seconds(number(value));
    else if (option == "--ranks")
      out.jobs.ranks = number(value);
    else if (option == "--seeds")
      out.jobs.seeds = number(value);
    else if (option == "--only")
      out.jobs.only.push_back(value);
    else if (option == "--scratch")
      out.scratch = value;
    else if (option == "--group")
      out.group = value;
    else if (option == "--transport")
      out.jobs.transport = value;
    else if (option == "--fail-case")
      out.jobs.fail_case = value;
    else
      throw Usage{"there is no option " + option};
  }
  return out;
}

void list(const char* part, const std::vector<RankGroupOfCases>& groups) {
  for (const RankGroupOfCases& group : groups)
    for (const RankCase& each : group.cases())
      std::cout << part << ": " << group.name << ": " << each.name << "\n";
}

bool has_device(const std::string& name) {
  const c10::Device device(name);
  const auto& cuda = at::detail::getCUDAHooks();
  return !device.is_cuda() || (cuda.hasCUDA() && cuda.deviceCount() > 0);
}

/// 2 ranks, 4 ranks .. on one device; no more once none could work together.
void play_nccl(Report& report, JobSettings settings) {
  settings.transport = "nccl";
  settings.budget /= 2;
  if (settings.only.empty()) settings.only = {"strategies", "hybrid", "accumulate"};
  const int most = settings.ranks;
  for (settings.ranks = 2; settings.ranks <= most; settings.ranks *= 2) {
    settings.label = fmt::format("{} ranks, ", settings.ranks);
    run_jobs(report, parity_groups(), settings);
    if (report.passes() == 0) return;
  }
}

int play(const Arguments& arguments) {
  if (arguments.part == "rank") return play_rank(arguments.group, arguments.jobs);
  Report report(arguments.part, arguments.out);
  const c10::Device device(arguments.jobs.device);
  if (arguments.part == "parity")
    run_jobs(report, parity_groups(), arguments.jobs);
  else if (arguments.part == "races")
    run_jobs(report, race_groups(arguments.jobs.seeds), arguments.jobs);
  else if (arguments.part == "nccl")
    play_nccl(report, arguments.jobs);
  else if (arguments.part == "speed")
    measure_speed(report, device);
  else
    measure_state(report, device, arguments.scratch);
  return report.finish();
}

}  // namespace

int run(std::span<char*> words) {
  const std::string first = words.empty() ? "" : words[0];
  if (first == "--help" || first.empty()) {
    std::cout << kUsage;
    return first.empty() ? 2 : 0;
  }
  if (first == "--version") {
    std::cout << "built for torch " << TORCH_VERSION << "\n";
    return 0;
  }
  if (first == "--list") {
    list("parity", parity_groups());
    list("races", race_groups(1));
    return 0;
  }
  static const char* const parts[] = {"parity", "speed", "state", "races", "nccl", "rank"};
  if (std::ranges::find(parts, first) == std::end(parts)) throw Usage{"there is no part " + first};
  const Arguments arguments = parse(words);
  if (!has_device(arguments.jobs.device)) {
    std::cout << arguments.part << ": not played: no " << arguments.jobs.device
              << " here, or a LibTorch without CUDA\n";
    return 77;
  }
  return play(arguments);
}

}  // namespace tessera::gpu_kit

int main(int argc, char** argv) {
  try {
    return tessera::gpu_kit::run(std::span(argv, static_cast<std::size_t>(argc)).subspan(1));
  } catch (const tessera::gpu_kit::Usage& usage) {
    std::cerr << "gpu_kit: " << usage.what << "\n";
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "gpu_kit: " << error.what() << "\n";
    return 1;
  }
}
