// W to W' for every sharded format that is written, W' beyond the rows of every tensor included:
// the files are, byte for byte, those that the source itself gives at W'. So is what comes back.
#include <tessera/format/deepspeed_zero.h>
#include <tessera/format/registry.h>

#include <catch2/catch.hpp>

#include "tests/support/convert_case.h"
#include "tests/support/random_optimizer.h"
#include "tests/support/sample_case.h"
#include "tests/support/sanitized.h"
#include "tests/support/written_checkpoint.h"

namespace every_world_size_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

const std::vector<std::int64_t> kWorldSizes =
    kSanitized ? std::vector<std::int64_t>{1, 3, 16}
               : std::vector<std::int64_t>{1, 2, 3, 4, 7, 8, 16, 70};

struct Sharded {
  std::string format;
  int zero_stage = 0;
};
const std::vector<Sharded> kFormats = {{"torch-dcp"},         {"torch-rank-files"},
                                       {"fairscale-fsdp"},    {"deepspeed-zero", 1},
                                       {"deepspeed-zero", 2}, {"deepspeed-zero", 3}};

/// Megatron's ranks are tensor-parallel ones: data-parallel ranks hold copies.
void reshard(MemoryFileSystem& fs, const std::string& from, const std::string& to,
             const Sharded& as, std::int64_t world_size) {
  ConvertOptions options = convert_options(from, to, world_size, as.format);
  if (as.zero_stage > 0) options.own.set(kZeroStageFlag, as.zero_stage);
  if (as.format.starts_with("megatron")) {
    options.target.world_size.reset();
    options.target.mesh = Mesh({{"tp", world_size}});
  }
  REQUIRE(convert(fs, options).published);
}

/// Weights, moments, steps and groups as the source has them, by name.
void check_holds(const OpenedContent& got, const OpenedContent& want) {
  for (const auto& [name, content] : want.tensors) {
    if (name.ends_with(".step") && !got.tensors.contains(name)) {
      CHECK(got.values.contains(name));  // a format that keeps steps as numbers
      continue;
    }
    INFO(name);
    REQUIRE(got.tensors.contains(name));
    CHECK(got.tensors.at(name) == content);
  }
  for (const auto& [name, value] : want.values) {
    if (name.find("param_groups") == name.npos) continue;
    INFO(name);
    REQUIRE(got.values.contains(name));
    CHECK(got.values.at(name) == value);
  }
}

/// From `source` in this format at every W, and from each of those to every W'.
void check_every_pair(MemoryFileSystem& fs, const std::string& foreign, const Sharded& format,
                      const std::vector<std::int64_t>& world_sizes) {
  INFO(format.format << " stage " << format.zero_stage);
  const OpenedContent want = content_at(fs, foreign);
  // Storages of an archive are numbered as its source has them: one source for all.
  const std::string source = "/source-of-all";
  reshard(fs, foreign, source, format, 5);
  const auto place = [](std::int64_t w) { return "/at-" + std::to_string(w); };
  for (const std::int64_t w : world_sizes) {
    INFO("to " << w);
    reshard(fs, source, place(w), format, w);
    check_holds(content_at(fs, place(w)), want);
    CHECK(open_checkpoint(fs, place(w)).manifest.world_size == w);
  }
  for (const std::int64_t from : world_sizes)
    for (const std::int64_t to : world_sizes) {
      INFO(from << " to " << to);
      reshard(fs, place(from), "/there", format, to);
      CHECK(bytes_below(fs, "/there") == bytes_below(fs, place(to)));
      fs.remove_tree("/there");
    }
  for (const std::int64_t w : world_sizes) fs.remove_tree(place(w));
}

}  // namespace

TEST_CASE("every sharded format goes from every W to every other and back without a change",
          "[wide]") {
  for (const Sharded& format : kFormats) {
    MemoryFileSystem fs;
    check_every_pair(fs, load_sample(fs, "dcp/fsdp2_w3"), format, kWorldSizes);
  }
}

TEST_CASE("every sharded format keeps several groups and frozen parameters from W to W'") {
  for (const Sharded& format : kFormats) {
    MemoryFileSystem fs;
    fs.make_directories("/none");
    TargetRequest request;
    request.single_file = true;
    const Manifest made = random_optimizer(7032, OptimizerKind::kAdam, OptimizerForm::kNames);
    const WrittenCheckpoint written(*find_format("torch-save"), made, *fs.open_directory("/none"),
                                    request);
    fs.write_file("/made.pt", written.files.begin()->second);
    check_every_pair(
        fs, "/made.pt", format,
        kSanitized ? std::vector<std::int64_t>{1, 3} : std::vector<std::int64_t>{1, 3, 70});
  }
}

TEST_CASE("torch_dist goes from every tensor-parallel size to every other and back") {
  for (const char* name : {"megatron/torch_dist_tp2_dp2", "megatron/torch_dist_tp1_dp1"}) {
    MemoryFileSystem fs;
    check_every_pair(fs, load_sample(fs, name), {"megatron-dist"}, kWorldSizes);
  }
}

}  // namespace every_world_size_test
