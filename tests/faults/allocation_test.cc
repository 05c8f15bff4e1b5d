// Each of the first 20,000 allocations of reading, resharding, converting, saving, loading and
// verifying is refused once: the work ends with its right result, or as the commands do for lack of
// memory (exit 6) with nothing visible and the old output as it was. Never a crash.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/live/load.h>
#include <tessera/live/save.h>
#include <tessera/ops/verify.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <functional>
#include <set>

#include "tests/faults/allocator.h"
#include "tests/support/convert_case.h"

using namespace tessera;
using namespace tessera::faults;
using namespace tessera::testing;

namespace {

using Tree = std::map<std::string, std::string>;

constexpr std::uint64_t kPromised = 20'000;

enum ChildEnd { kRight = 0, kNoMemory = 6, kWrongCode = 40, kWrongOutput = 41 };

/// What a reader sees of the outputs, hidden names left out.
Tree visible(const MemoryFileSystem& fs) {
  Tree all = fs.contents("/");
  std::erase_if(all, [](const auto& entry) {
    return entry.first.find("/.out") != std::string::npos || entry.first.starts_with(".out") ||
           entry.first.starts_with("source");
  });
  return all;
}

/// A run in a child that was refused memory ends here.
[[noreturn]] void judge(const Status& status, bool is_right, bool is_old) {
  if (status.ok()) ::_exit(is_right ? kRight : kWrongOutput);
  if (status.code != Code::kResourceExhausted) {
    const std::string text = status.to_string() + "\n";
    (void)!::write(2, text.data(), text.size());
    ::_exit(kWrongCode);
  }
  // A replaced one-file result may have lost its seal on the way; folders show old or new.
  ::_exit(is_old || is_right ? kNoMemory : kWrongOutput);
}

/// Runs `work` on a disk in memory, refusing each of its allocations in a child.
AllocationReport refuse_each(const std::string& name, MemoryFileSystem& fs,
                             const std::function<void()>& work, std::uint64_t at_most) {
  const Tree old = visible(fs);
  Tree fresh;
  {  // what the work makes of it, and everything that is allocated only once
    work();
    fresh = visible(fs);
  }
  for (const auto& [path, content] : fresh)
    if (!old.contains(path)) fs.remove_tree("/" + path.substr(0, path.find_last_not_of('/') + 1));
  for (const auto& [path, content] : old)
    if (!path.ends_with('/')) fs.write_file("/" + path, as_bytes(content));
  Status status;
  watch_allocations(0, at_most);
  try {
    work();
  } catch (...) {
    status = current_exception_status();
  }
  const AllocationReport report = stop_watching_allocations();
  if (in_refused_child()) {
    const Tree now = visible(fs);
    judge(status, now == fresh, now == old);
  }
  INFO(name << ", allocation " << report.first_bad_allocation << " ended its run with status "
            << report.first_bad_status << " (exit "
            << (WIFEXITED(report.first_bad_status) ? WEXITSTATUS(report.first_bad_status) : -1)
            << ")");
  REQUIRE(status.ok());
  CHECK(visible(fs) == fresh);
  CHECK(report.refused == report.as_hoped);
  return report;
}

ConvertOptions quiet_convert(const std::string& from, const std::string& to,
                             std::optional<std::int64_t> world_size, const std::string& format) {
  ConvertOptions options = convert_options(from, to, world_size, format);
  options.threads = 1;
  options.force = true;
  options.memory_limit_bytes = 1 << 20;
  return options;
}

}  // namespace

TEST_CASE("each of the first 20000 allocations is refused once: exit 6 or the right result") {
  std::uint64_t refused = 0;
  std::string text;
  const auto run = [&](const std::string& name, MemoryFileSystem& fs,
                       const std::function<void()>& work) {
    if (refused >= kPromised) return;
    const AllocationReport report = refuse_each(name, fs, work, kPromised - refused);
    refused += report.refused;
    text += fmt::format(", {} {}", report.refused, name);
  };
  {
    MemoryFileSystem fs;
    const std::string source = load_sample(fs, "dcp/fsdp2_w2_model_only");
    run("of a reshard", fs, [&] { convert(fs, quiet_convert(source, "/out", 3, "torch-dcp")); });
  }
  {
    MemoryFileSystem fs;
    const std::string source = load_sample(fs, "dcp/fsdp2_w2_model_only");
    VerifyOptions options;
    options.level = VerifyLevel::kFull;
    run("of verify", fs, [&] {
      if (!verify_checkpoint(fs, source, options).ok) fail(Code::kInternal, "damage was found");
    });
  }
  {
    MemoryFileSystem fs;
    std::vector<float> w(5000, 1);
    fs.make_directories("/run");
    run("of a save", fs, [&] {
      LiveState state;
      state.add("w", {DType::kFloat32, {5000}, {}, w.data()});
      state.add_value("step", Value::integer(3));
      SaveOptions options;
      options.file_system = &fs;
      options.force = true;
      const auto ranks = single_rank();
      save("/run/out", state, *ranks, options);
    });
  }
  {
    MemoryFileSystem fs;
    const std::string source = load_sample(fs, "dcp/fsdp2_w2");
    run("of a conversion to safetensors", fs,
        [&] { convert(fs, quiet_convert(source, "/out", std::nullopt, "hf")); });
  }
  {
    MemoryFileSystem fs;
    const std::string source = load_sample(fs, "dcp/fsdp2_w2");
    run("of a conversion to torch-save", fs,
        [&] { convert(fs, quiet_convert(source, "/out.pt", std::nullopt, "torch-save")); });
  }
  fmt::print("allocations: {} refused, one in a run each ({}); 0 crashes, 0 wrong outputs\n",
             refused, text.empty() ? text : text.substr(2));
  REQUIRE(refused >= kPromised);
}
