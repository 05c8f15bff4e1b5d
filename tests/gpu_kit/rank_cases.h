#pragma once
// What ranks do together on one device, in groups of cases: the processes of a job run one group,
// so that one that dies takes no other group with it.
#include <tessera/fsdp/world.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera::gpu_kit {

struct RankContext {
  fsdp::World& world;
  c10::Device device;
};

struct RankCase {
  std::string name;
  std::function<void(RankContext&)> body;  // throws what is wrong, on any rank
};

struct RankGroupOfCases {
  std::string name;
  int ranks = 0;  // that it is for; 0: any even number
  std::function<std::vector<RankCase>()> cases;
};

/// Values against the plain model on the CPU.
std::vector<RankGroupOfCases> parity_groups();
/// Late streams against the same run without lateness, bit for bit, for seeds 1 to `seeds`.
std::vector<RankGroupOfCases> race_groups(int seeds);

}  // namespace tessera::gpu_kit
