// The one-screen picture: right numbers, and no tensor byte read for it.
#include <tessera/ops/ls.h>
#include <tessera/ops/summary.h>
#include <tessera/storage/counting_file_system.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/support/convert_case.h"
#include "tests/support/inspect_case.h"
#include "tests/support/rank_archive.h"
#include "tests/support/safetensors_file.h"

namespace summary_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

const ByteRow* row(const std::vector<ByteRow>& rows, const std::string& key) {
  const auto found = std::ranges::find(rows, key, &ByteRow::key);
  return found == rows.end() ? nullptr : &*found;
}

struct Extent {
  std::string file;
  std::uint64_t begin, end;
};
/// Where tensor elements lie, of leaves alone.
std::vector<Extent> tensor_bytes(const std::string& path) {
  OpenedCheckpoint opened = open_path(path);
  opened.locate_all({});
  std::vector<Extent> extents;
  for (std::uint32_t i : leaf_tensors(opened.manifest)) {
    const StoredTensor& tensor = opened.manifest.tensors[i];
    for (std::uint32_t c = 0; c < tensor.chunk_count; ++c) {
      const Source& source = opened.manifest.source(tensor, c);
      if (source.kind == Source::Kind::kExtent && source.length > 0)
        extents.push_back({opened.manifest.files[source.file].path, source.offset,
                           source.offset + source.length});
    }
  }
  return extents;
}

}  // namespace

TEST_CASE("summary and ls read no tensor byte") {
  for (const char* name :
       {"dcp/fsdp2_w4", "dcp/fsdp2_w2_two_threads", "dcp/hsdp_2x2", "safetensors/hf_sharded",
        "safetensors/hf_dcp_sharded_w2", "olmo-core/model_and_optim_w2"}) {
    const std::vector<Extent> extents = tensor_bytes(case_path(name));
    REQUIRE_FALSE(extents.empty());
    CountingFileSystem counting(disk());
    OpenedCheckpoint opened = open_checkpoint(counting, case_path(name));
    const SummaryReport summary = summarize(opened);
    LsOptions options;
    options.chunks = true;
    const LsReport ls = list_tensors(opened, options);
    CHECK(summary.tensors == ls.tensors.size());
    CHECK(counting.total().reads > 0);
    for (const Extent& e : extents) {
      INFO(name << " " << e.file << " [" << e.begin << "," << e.end << ")");
      CHECK(counting.bytes_read_within("/" + e.file, e.begin, e.end) == 0);
    }
    CHECK(counting.total().creates == 0);
    CHECK(counting.total().writes == 0);
  }
}

TEST_CASE("what summary and ls read does not grow with the tensors") {
  constexpr std::uint64_t kSmall = 96 << 10;  // headers, and the tail where a zip's directory is
  const std::string header =
      R"({"a":{"dtype":"U8","shape":[2097152],"data_offsets":[0,2097152]},)"
      R"("b":{"dtype":"U8","shape":[2097152],"data_offsets":[2097152,4194304]}})";
  MemoryFileSystem fs;
  fs.write_file("/x.safetensors", as_bytes(safetensors_of(header, std::string(4 << 20, 'x'))));
  for (const char* format : {"torch-save", "torch-dcp", "safetensors"}) {
    INFO(format);
    const std::string out = std::string("/") + format;
    REQUIRE(convert(fs, convert_options("/x.safetensors", out, 1, format)).published);
    CountingFileSystem counting(fs);
    OpenedCheckpoint opened = open_checkpoint(counting, out);
    CHECK(summarize(opened).tensor_bytes == 4 << 20);
    CHECK(list_tensors(opened).tensors.size() == 2);
    // The header's MiB is read whole, to be held against the seal; archives have sums of their own.
    const bool has_header = std::string_view(format) == "safetensors";
    CHECK(counting.total().bytes_read < kSmall + (has_header ? kMiB : 0));
  }
}

TEST_CASE("tensors, bytes and kinds add up") {
  const OpenedCheckpoint opened = open_sample("dcp/fsdp2_w4");
  const SummaryReport summary = summarize(opened);
  CHECK(summary.format == "torch-dcp");
  CHECK(summary.complete);
  CHECK(summary.world_size == 4);
  CHECK(summary.tensors == 54);
  CHECK(summary.parameters == 14);  // a floating buffer cannot be told from a frozen weight
  CHECK(summary.trainable == 13);
  CHECK(summary.frozen == 1);
  for (const auto& rows : {summary.by_kind, summary.by_dtype}) {
    std::uint64_t tensors = 0, bytes = 0;
    for (const ByteRow& r : rows) tensors += r.tensors, bytes += r.bytes;
    CHECK(tensors == summary.tensors);
    CHECK(bytes == summary.tensor_bytes);
    CHECK(std::ranges::is_sorted(rows, std::greater<>(), &ByteRow::bytes));
  }
  REQUIRE(row(summary.by_kind, "exp_avg"));
  CHECK(row(summary.by_kind, "exp_avg")->numel == summary.parameter_numel - 3);
  CHECK(row(summary.by_kind, "exp_avg_sq")->bytes == row(summary.by_kind, "exp_avg")->bytes);
  CHECK(row(summary.by_kind, "step")->tensors == 13);
}

TEST_CASE("optimizers are described: kind, dialect, leaves, groups") {
  struct Expected {
    const char* sample;
    const char* kind;
    const char* dialect;
    std::vector<std::uint64_t> members;
  };
  const Expected kExpected[] = {
      {"dcp/fsdp2_w4", "AdamW", "state keyed by FQN", {6, 7}},
      {"torchsave/adamw_zip", "AdamW", "state keyed by integer id", {6, 7}},
      {"torchsave/sgd_tied_zip", "SGD with momentum", "state keyed by integer id", {11}},
  };
  for (const Expected& expected : kExpected) {
    INFO(expected.sample);
    const OpenedCheckpoint opened = open_sample(expected.sample);
    const SummaryReport summary = summarize(opened);
    REQUIRE(summary.optimizers.size() == 1);
    const OptimizerSummary& optim = summary.optimizers[0];
    CHECK(optim.kind == expected.kind);
    CHECK(optim.dialect == expected.dialect);
    std::vector<std::uint64_t> members;
    for (const GroupSummary& group : optim.groups) members.push_back(group.members);
    CHECK(members == expected.members);
    CHECK(optim.groups[0].lr);
  }
}

TEST_CASE("tensors beside the model are no parameters, and fp32 copies train nothing") {
  RankArchive archive;
  const auto vector = [&] { return archive.tensor({2}, {1, 2}); };
  const auto state = [&](bool trained) {
    std::vector<std::pair<std::string, Value>> leaves = {{"fp32", vector()}};
    if (trained) leaves.insert(leaves.end(), {{"exp_avg", vector()}, {"exp_avg_sq", vector()}});
    return dict(std::move(leaves));
  };
  const Value model = dict({{"a.weight", vector()}, {"b.weight", vector()}});
  const Value group =
      dict({{"lr", archive.tensor(Shape{}, {0.5f})}, {"params", Value::list({text("a.weight")})}});
  const Value optim =
      dict({{"state", dict({{"a.weight", state(true)}, {"b.weight", state(false)}})},
            {"param_groups", Value::list({group})}});
  MemoryFileSystem fs;
  fs.make_directories("/in");
  fs.write_file(
      "/in/a.pt",
      archive.render(
          dict({{"model", model}, {"optim", optim}, {"datamodule", dict({{"mix", vector()}})}})));
  const SummaryReport summary = summarize(open_checkpoint(fs, "/in/a.pt"));
  CHECK(summary.parameters == 2);
  CHECK(summary.parameter_numel == 4);
  CHECK(summary.trainable == 1);
  CHECK(summary.frozen == 1);
  REQUIRE(summary.optimizers.size() == 1);
  REQUIRE(summary.optimizers[0].groups.size() == 1);
  CHECK_FALSE(summary.optimizers[0].groups[0].lr);
  CHECK(summary.optimizers[0].groups[0].lr_is_tensor);
}

TEST_CASE("tied weights are found by their one storage") {
  const OpenedCheckpoint opened = open_sample("torchsave/sgd_tied_zip");
  const SummaryReport summary = summarize(opened);
  REQUIRE(summary.tied.size() == 1);
  CHECK(summary.tied[0] == std::vector<std::string>{"model.embed.weight", "model.head.weight"});
  const OpenedCheckpoint other = open_sample("torchsave/adamw_zip");
  CHECK(summarize(other).tied.empty());
}

TEST_CASE("views of one storage are tied where they are one tensor, not where they overlap") {
  const OpenedCheckpoint views = open_path(fixture("ties.pt"));
  using Sets = std::vector<std::vector<std::string>>;
  CHECK(summarize(views).tied == Sets{{"whole", "whole_again"},
                                      {"low", "low_again"},
                                      {"turned", "turned_again"},
                                      {"rows", "rows_again"}});
  const OpenedCheckpoint sample = open_sample("torchsave/tied_views_zip");
  CHECK(summarize(sample).tied == Sets{{"embed.weight", "head.weight"}});
  // Both moments of a parameter were saved as views of one buffer, at one place: PyTorch did that.
  const OpenedCheckpoint gathered = open_sample("torchsave/fsdp1_full");
  const Sets moments = summarize(gathered).tied;
  CHECK(moments.size() == 13);
  for (const auto& names : moments) {
    REQUIRE(names.size() == 2);
    CHECK(names[0] + "_sq" == names[1]);
  }
}

TEST_CASE("a master that is its weight, and a step of many parameters, are no ties") {
  int checked = 0;
  for (const std::string& name : sample_names("deepspeed")) {
    INFO(name);
    CHECK(summarize(open_sample(name)).tied.empty());
    ++checked;
  }
  CHECK(checked >= 7);
}

TEST_CASE("damage is told by name, without failing") {
  MemoryFileSystem fs;
  load_sample(fs, "dcp/fsdp2_w2");
  fs.remove_file("/source/__1_0.distcp");
  OpenOptions options;
  options.read.tolerate_damage = true;
  const OpenedCheckpoint opened = open_checkpoint(fs, "/source", options);
  const SummaryReport summary = summarize(opened);
  CHECK_FALSE(summary.complete);
  REQUIRE_FALSE(summary.problems.empty());
  CHECK(summary.problems[0].find("__1_0.distcp") != std::string::npos);
}

TEST_CASE("roots of the state dict have roles") {
  const OpenedCheckpoint opened = open_sample("torchsave/adamw_zip");
  const SummaryReport summary = summarize(opened);
  std::map<std::string, std::string> roles;
  for (const RootRow& r : summary.roots) roles[r.name] = r.role;
  CHECK(roles.at("model") == "model");
  CHECK(roles.at("optim") == "optimizer");
  CHECK(roles.at("") == "other");  // epoch
  const auto epoch = std::ranges::find(summary.numbers, "epoch", &SourcedNumber::name);
  REQUIRE(epoch != summary.numbers.end());
  CHECK(epoch->value == 2);
}

TEST_CASE("a state dict at the top is the model") {
  const OpenedCheckpoint opened = open_sample("dcp/fsdp2_w2_model_only");
  const SummaryReport summary = summarize(opened);
  CHECK(summary.optimizers.empty());
  CHECK(summary.frozen == 0);
  CHECK(std::ranges::all_of(summary.roots, [](const RootRow& r) { return r.role == "model"; }));
}

}  // namespace summary_test
