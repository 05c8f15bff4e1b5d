#include "lib/base/cgroup.h"

#include <tessera/base/small_file.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <charconv>
#include <string>

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostBytes = std::size_t{1} << 20;

/// What cannot be read limits nothing.
std::string text_of(const fs::path& path) {
  std::string text;
  return read_small_file(path.string(), kMostBytes, text) == 0 ? text : std::string();
}

std::optional<std::string> first_line(const fs::path& path) {
  const std::string text = text_of(path);
  if (text.empty()) return std::nullopt;
  return text.substr(0, text.find('\n'));
}

std::optional<std::int64_t> number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

void tighten_cpus(CgroupLimits& limits, std::optional<std::int64_t> quota,
                  std::optional<std::int64_t> period) {
  if (!quota || !period || *quota <= 0 || *period <= 0) return;
  const double cpus = static_cast<double>(*quota) / static_cast<double>(*period);
  limits.cpus = limits.cpus ? std::min(*limits.cpus, cpus) : cpus;
}

void tighten_memory(CgroupLimits& limits, const fs::path& file) {
  const auto line = first_line(file);
  if (!line) return;
  const auto bytes = number(*line);  // "max" is no number
  if (!bytes || *bytes < 0) return;
  const auto value = static_cast<std::uint64_t>(*bytes);
  limits.memory_bytes = limits.memory_bytes ? std::min(*limits.memory_bytes, value) : value;
}

void read_v2(CgroupLimits& limits, const fs::path& folder) {
  tighten_memory(limits, folder / "memory.max");
  const auto line = first_line(folder / "cpu.max");
  if (!line) return;
  const auto fields = split(*line, ' ');
  if (fields.size() == 2) tighten_cpus(limits, number(fields[0]), number(fields[1]));
}

void read_v1_cpu(CgroupLimits& limits, const fs::path& folder) {
  const auto quota = first_line(folder / "cpu.cfs_quota_us");
  const auto period = first_line(folder / "cpu.cfs_period_us");
  if (quota && period) tighten_cpus(limits, number(*quota), number(*period));
}

/// Calls `read` on mount/path and on every ancestor down to the mount: a limit binds all below it.
/// Inside a container the path is often the host's and absent here; the mount itself then has the
/// answer.
template <class F>
void each_ancestor(const fs::path& mount, std::string_view path, F read) {
  fs::path relative = fs::path(path).relative_path().lexically_normal();
  while (!relative.empty() && relative != ".") {
    if (relative.begin()->string() != "..") read(mount / relative);
    relative = relative.parent_path();
  }
  read(mount);
}

}  // namespace

CgroupLimits read_cgroup_limits(const fs::path& root) {
  CgroupLimits limits;
  const fs::path mounts = root / "sys/fs/cgroup";
  const std::string groups = text_of(root / "proc/self/cgroup");
  for (const std::string_view view : split(groups, '\n')) {
    const std::string line(view);
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) {
      for (const fs::path& mount : {mounts, mounts / "unified"})
        each_ancestor(mount, path, [&](const fs::path& folder) { read_v2(limits, folder); });
      continue;
    }
    for (const std::string_view controller : split(controllers, ',')) {
      for (const fs::path& mount : {mounts / controllers, mounts / controller}) {
        if (controller == "cpu")
          each_ancestor(mount, path, [&](const fs::path& folder) { read_v1_cpu(limits, folder); });
        if (controller == "memory")
          each_ancestor(mount, path, [&](const fs::path& folder) {
            tighten_memory(limits, folder / "memory.limit_in_bytes");
          });
      }
    }
  }
  return limits;
}

}  // namespace tessera
