#pragma once
// What the control groups of this process allow. Reads /proc and /sys below `root`, so that tests
// can show it a tree of their own.
#include <cstdint>
#include <filesystem>
#include <optional>

namespace tessera {

struct CgroupLimits {
  std::optional<double> cpus;                 // quota / period, the tightest of all ancestors
  std::optional<std::uint64_t> memory_bytes;  // the tightest of all ancestors
};

/// Limits of cgroup v2 and v1 (hybrid hosts have both). Never throws: what cannot be read sets no
/// limit.
CgroupLimits read_cgroup_limits(const std::filesystem::path& root);

}  // namespace tessera
