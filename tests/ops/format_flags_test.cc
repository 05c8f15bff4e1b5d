// Every flag that formats take, against every format, on either side: it shows, or it is refused by
// its name. None is ignored.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/format/deepspeed_zero.h>
#include <tessera/format/megatron_torch.h>
#include <tessera/format/registry.h>
#include <tessera/format/safetensors.h>
#include <tessera/format/torch_checkpointing.h>
#include <tessera/format/torch_rank_files.h>

#include <catch2/catch.hpp>
#include <functional>
#include <string>

#include "lib/format/hdf5/helper.h"
#include "tests/support/convert_case.h"

namespace format_flags_test {

using namespace tessera;
using namespace tessera::testing;
using Catch::Matchers::Contains;

namespace {

using Give = std::function<void(ConvertOptions&)>;

struct Flag {
  const FormatOption* option;
  Give before;  // what the flag needs beside it
  Give give;
  /// Formats that take it and where this source shows no difference.
  std::vector<std::string_view> unseen = {};
};

void use_mesh(ConvertOptions& options, const char* megatrons = "tp=2") {
  options.target.mesh = Mesh::parse(options.to.starts_with("megatron") ? megatrons : "dp=2");
}

/// The same where it is not what is looked at: of a size that the format can have.
void use_fitting_mesh(ConvertOptions& options) {
  use_mesh(options);
  if (!capabilities_of(options.to).many_ranks) options.target.mesh = Mesh::parse("dp=1");
}

void place(ConvertOptions& options, const char* text) {
  options.target.placements = {{"*weight", Placement::parse_list(text)}};
}

/// Each with a value that most formats which take it can hold.
std::vector<Flag> write_flags() {
  const Give nothing = [](ConvertOptions&) {};
  const Give mesh = [](ConvertOptions& o) { use_mesh(o); };
  return {
      {&kWorldSizeFlag, nothing, [](ConvertOptions& o) { o.target.world_size = 2; }},
      {&kMeshFlag, nothing, mesh},
      {&kPlacementsFlag, use_fitting_mesh,
       [](ConvertOptions& o) { place(o, o.to == "megatron-dist" ? "shard(0)" : "replicate"); }},
      {&kReplicateFlag,
       [](ConvertOptions& o) {
         use_fitting_mesh(o);
         if (o.to == "megatron-dist") o.target.mesh = Mesh::parse("pp=2");
       },
       [](ConvertOptions& o) { o.target.replicate = {"*weight"}; },
       {"megatron-dist"}},  // it cuts none of these names by itself
      {&kZeroStageFlag, nothing, [](ConvertOptions& o) { o.own.set(kZeroStageFlag, 3); }},
      {&kMetadataVersionFlag, nothing,
       [](ConvertOptions& o) { o.own.set(kMetadataVersionFlag, 1); }},
      {&kMaxShardSizeFlag, nothing, [](ConvertOptions& o) { o.own.set(kMaxShardSizeFlag, 500); }},
      {&kAsIndexFlag, nothing, [](ConvertOptions& o) { o.own.set(kAsIndexFlag, "/base"); }},
      {&kAssumePlainFlag, use_fitting_mesh,
       [](ConvertOptions& o) { o.own.set(kAssumePlainFlag, true); }},
      {&kMegatronCoreFlag,
       nothing,
       [](ConvertOptions& o) { o.own.set(kMegatronCoreFlag, 17); },
       {"megatron-torch"}},  // no layers of further tokens here
      {&kBaseFlag, nothing, [](ConvertOptions& o) { o.own.set(kBaseFlag, "/base"); }},
      {&kFlatLayoutFlag, nothing, [](ConvertOptions& o) { o.own.set(kFlatLayoutFlag, "{}"); }},
  };
}

/// What would be written, or the failure.
std::string outcome(FileSystem& fs, const ConvertOptions& options, Status& status) {
  status = {};
  try {
    ConvertOptions dry = options;
    dry.dry_run = true;
    std::string text;
    for (const ConvertedFile& file : convert(fs, dry).files)
      text +=
          fmt::format("{} {} {} {}\n", file.path, file.size_bytes, file.tensor_bytes, file.tensors);
    return text;
  } catch (const Error& error) {
    status = error.status();
    return status.to_string();
  }
}

bool is_built(const FormatDriver& driver) {
  try {
    if (driver.id() == "hdf5") h5::find_helper();
    return true;
  } catch (const Error&) {
    return false;  // a build without libhdf5
  }
}

void check_flag(MemoryFileSystem& fs, const ConvertOptions& plain, const FormatDriver& driver,
                const Flag& flag) {
  ConvertOptions options = plain;
  flag.before(options);
  Status status;
  const std::string before = outcome(fs, options, status);
  flag.give(options);
  const std::string after = outcome(fs, options, status);
  const std::string name(flag.option->flag), id(driver.id());
  CAPTURE(id, name, before, after);
  if (!takes(driver.capabilities().writes_with, *flag.option)) {
    CHECK(status.code == Code::kInvalidArgument);
    CHECK_THAT(status.message, Contains(name));
    CHECK_THAT(status.message, Contains(id));
  } else if (std::ranges::find(flag.unseen, driver.id()) == flag.unseen.end()) {
    CHECK(after != before);  // other files, or a failure of what was asked for
  }
}

}  // namespace

TEST_CASE("every flag against every format that is written: it shows, or is refused by its name",
          "[wide]") {
  MemoryFileSystem fs;
  load_sample(fs, "safetensors/hf_sharded");
  fs.rename("/source", "/base");
  const std::string source = load_sample(fs, "dcp/fsdp2_w2_flat_optim");
  int seen = 0;
  for (const FormatDriver* driver : all_formats()) {
    if (!driver->capabilities().writes || !is_built(*driver)) continue;
    ++seen;
    const ConvertOptions plain =
        convert_options(source, "/out", std::nullopt, std::string(driver->id()));
    for (const Flag& flag : write_flags()) check_flag(fs, plain, *driver, flag);
  }
  CHECK(seen >= 9);
}

TEST_CASE("the flags of the matrix are all that formats declare") {
  const std::vector<Flag> flags = write_flags();
  for (const bool to_write : {false, true})
    for (const FormatOption* option : format_options(to_write)) {
      INFO(option->flag);
      CHECK(std::ranges::count_if(
                flags, [&](const Flag& flag) { return flag.option->flag == option->flag; }) == 1);
    }
}

TEST_CASE("every flag of reading against every sample: taken, or refused by its name") {
  struct Sample {
    const char* name;
    const char* format;
  };
  const Sample samples[] = {
      {"dcp/fsdp2_w4", "torch-dcp"},
      {"torchsave/adamw_zip", "torch-save"},
      {"torchsave/dtensor_rankfiles_w2", "torch-rank-files"},
      {"safetensors/hf_sharded", "safetensors"},
      {"fairscale/single_flat_w2", "fairscale-fsdp"},
      {"deepspeed/zero2_w2", "deepspeed-zero"},
      {"megatron/legacy_tp2", "megatron-torch"},
      {"megatron/torch_dist_tp2_dp1", "megatron-dist"},
      {"torchsnapshot/model_optim_w2", "torchsnapshot"},
  };
  for (const Sample& sample : samples) {
    MemoryFileSystem fs;
    const std::string source = load_sample(fs, sample.name);
    const std::vector<const FormatDriver*> there = formats_at(fs, source);
    REQUIRE(there.size() == 1);
    CHECK(there[0]->id() == sample.format);
    for (const FormatOption* option : format_options(/*to_write=*/false)) {
      ConvertOptions options = convert_options(source, "/out", 2, "torch-dcp");
      options.dry_run = true;
      if (option->kind == FormatOption::Kind::kSwitch) options.own.put(*option, true);
      if (option->kind == FormatOption::Kind::kPath) options.own.put(*option, std::string());
      if (option->kind == FormatOption::Kind::kFile)
        options.own.put(*option, std::string(R"({"flat_params": {}})"));
      const Status status = status_of(fs, options);
      CAPTURE(sample.name, std::string(option->flag), status.to_string());
      const bool refused = status.message.find(" is for ") != std::string::npos;
      CHECK(refused != takes(there[0]->capabilities().reads_with, *option));
      if (refused) {
        CHECK(status.code == Code::kInvalidArgument);
        CHECK_THAT(status.message, Contains(std::string(option->flag)));
      }
    }
  }
}

TEST_CASE("a mesh of another kind of ranks is refused, not taken for data-parallel ones") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "dcp/fsdp2_w2_flat_optim");
  for (const std::string format : {"deepspeed-zero", "fairscale-fsdp"}) {
    for (const char* mesh : {"tp=2", "replicate=2", "dp=2,tp=2"}) {
      ConvertOptions options = convert_options(source, "/out", std::nullopt, format);
      options.target.mesh = Mesh::parse(mesh);
      const Status status = status_of(fs, options);
      CAPTURE(format, mesh);
      CHECK(status.code == Code::kUnsupported);
      CHECK_THAT(status.message, Contains("--mesh " + std::string(mesh)));
    }
    ConvertOptions options = convert_options(source, "/" + format, std::nullopt, format);
    options.target.mesh = Mesh::parse("dp=2");
    CHECK(status_of(fs, options).code == Code::kOk);
  }
}

TEST_CASE(
    "the flag --replicate says that a name without a rule is not cut; what Megatron cuts it "
    "refuses") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "dcp/fsdp2_w2_model_only");
  ConvertOptions options = convert_options(source, "/out", std::nullopt, "megatron-torch");
  options.target.mesh = Mesh::parse("tp=2");
  options.names.renames = {{"*", "model.*"}};
  CHECK_THAT(status_of(fs, options).message, Contains("does not say along which dim"));
  options.target.replicate = {"*"};
  options.verify = true;
  REQUIRE(status_of(fs, options).to_string() == Status{}.to_string());
  CHECK(content_at(fs, "/out").chunks.size() > 0);

  MemoryFileSystem other;
  const std::string megatron = load_sample(other, "megatron/legacy_tp2");
  options = convert_options(megatron, "/out", std::nullopt, "megatron-torch");
  options.target.mesh = Mesh::parse("tp=2");
  options.target.replicate = {"*weight"};
  const Status refused = status_of(other, options);
  CHECK(refused.code == Code::kUnsupported);
  CHECK_THAT(refused.message, Contains("--replicate"));
}

TEST_CASE("a run that resumes has the same options of its formats") {
  FormatSettings one, other;
  one.set(kZeroStageFlag, 1);
  other.set(kZeroStageFlag, 3);
  CHECK(one.texts() != other.texts());
  other.set(kZeroStageFlag, 1);
  CHECK(one.texts() == other.texts());
  one.set(kShardNames, ShardNames{"index", {}});  // not the user's
  CHECK(one.texts() == other.texts());
  CHECK(one.given().size() == 1);
}

}  // namespace format_flags_test
