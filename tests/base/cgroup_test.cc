#include "lib/base/cgroup.h"

#include <stdlib.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>

namespace cgroup_test {

namespace fs = std::filesystem;
using tessera::read_cgroup_limits;

namespace {

/// A root folder with the files a test puts in, removed with it.
class FakeRoot {
 public:
  FakeRoot() {
    std::string name = (fs::temp_directory_path() / "tessera-cgroup-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~FakeRoot() { fs::remove_all(path_); }
  FakeRoot(const FakeRoot&) = delete;

  FakeRoot& with(const std::string& file, const std::string& text) {
    fs::create_directories((path_ / file).parent_path());
    std::ofstream(path_ / file) << text;
    return *this;
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

}  // namespace

TEST_CASE("without control groups there is no limit") {
  FakeRoot root;
  CHECK_FALSE(read_cgroup_limits(root.path()).cpus);
  CHECK_FALSE(read_cgroup_limits(root.path()).memory_bytes);
}

TEST_CASE("cgroup v2: the tightest ancestor binds") {
  FakeRoot root;
  root.with("proc/self/cgroup", "0::/a/b\n")
      .with("sys/fs/cgroup/a/b/cpu.max", "max 100000\n")
      .with("sys/fs/cgroup/a/cpu.max", "150000 100000\n")
      .with("sys/fs/cgroup/a/b/memory.max", "4096\n")
      .with("sys/fs/cgroup/a/memory.max", "1024\n")
      .with("sys/fs/cgroup/memory.max", "max\n");
  const auto limits = read_cgroup_limits(root.path());
  CHECK(limits.cpus == 1.5);
  CHECK(limits.memory_bytes == 1024);
}

TEST_CASE("cgroup v2 in a container: the mount's own files count when the path is the host's") {
  FakeRoot root;
  root.with("proc/self/cgroup", "0::/../../pod7/x\n")
      .with("sys/fs/cgroup/cpu.max", "200000 100000\n")
      .with("sys/fs/cgroup/memory.max", "8192\n");
  const auto limits = read_cgroup_limits(root.path());
  CHECK(limits.cpus == 2.0);
  CHECK(limits.memory_bytes == 8192);
}

TEST_CASE("cgroup v1: quota and limit by controller") {
  FakeRoot root;
  root.with("proc/self/cgroup", "5:memory:/m\n4:cpu,cpuacct:/c\n1:name=systemd:/x\n")
      .with("sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_quota_us", "50000\n")
      .with("sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_period_us", "100000\n")
      .with("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n")
      .with("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
      .with("sys/fs/cgroup/memory/m/memory.limit_in_bytes", "2048\n")
      .with("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  const auto limits = read_cgroup_limits(root.path());
  CHECK(limits.cpus == 0.5);
  CHECK(limits.memory_bytes == 2048);
}

TEST_CASE("unreadable limits are no limits") {
  FakeRoot root;
  root.with("proc/self/cgroup", "garbage\n0::/a\n")
      .with("sys/fs/cgroup/a/cpu.max", "many 100000\n")
      .with("sys/fs/cgroup/cpu.max", "100000 0\n")
      .with("sys/fs/cgroup/a/memory.max", "99999999999999999999999999\n");
  CHECK_FALSE(read_cgroup_limits(root.path()).cpus);
  CHECK_FALSE(read_cgroup_limits(root.path()).memory_bytes);
}

}  // namespace cgroup_test
