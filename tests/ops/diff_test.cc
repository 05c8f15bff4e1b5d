// Two checkpoints of any format and sharding: what is equal, what differs, and by how much.
#include <fmt/format.h>
#include <tessera/ops/diff.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>

#include "tests/support/convert_case.h"
#include "tests/support/inspect_case.h"

namespace diff_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

DiffReport diff_paths(const std::string& a, const std::string& b, const DiffOptions& options = {}) {
  OpenedCheckpoint left = open_path(a), right = open_path(b);
  return diff_checkpoints(left, right, options);
}
DiffReport diff_samples(const std::string& a, const std::string& b,
                        const DiffOptions& options = {}) {
  return diff_paths(case_path(a), case_path(b), options);
}
DiffReport diff_fixtures(const DiffOptions& options = {}) {
  return diff_paths(fixture("diff/a.pt"), fixture("diff/b.pt"), options);
}

const TensorDiff* tensor(const DiffReport& report, const std::string& name) {
  const auto found = std::ranges::find(report.tensors, name, &TensorDiff::name);
  return found == report.tensors.end() ? nullptr : &*found;
}
const ValueDiff* value(const DiffReport& report, const std::string& name) {
  const auto found = std::ranges::find(report.values, name, &ValueDiff::name);
  return found == report.values.end() ? nullptr : &*found;
}

std::string list(const DiffReport& report) {
  std::string text;
  for (const TensorDiff& d : report.tensors) text += d.name + " " + d.a + " " + d.b + "\n";
  for (const ValueDiff& d : report.values) text += d.name + "\n";
  return text;
}

}  // namespace

TEST_CASE("one state is equal across shardings and formats") {
  for (const auto& [a, b] :
       {std::pair("dcp/fsdp2_w4", "dcp/fsdp2_w3"), std::pair("dcp/fsdp2_w4", "dcp/fsdp2_tp_2x2"),
        std::pair("dcp/fsdp2_w2_zstd", "dcp/hsdp_2x2"),
        std::pair("dcp/fsdp2_w4", "torchsave/full_state_dict"),
        std::pair("torchsave/fsdp1_full", "dcp/fsdp1_mesh_flat_w4"),
        std::pair("torchsave/adamw_zip", "torchsave/adamw_legacy"),
        std::pair("olmo-core/model_and_optim_w1", "olmo-core/model_and_optim_w2")}) {
    const DiffReport report = diff_samples(a, b);
    INFO(a << " " << b << "\n" << list(report));
    CHECK(report.equal);
    CHECK(report.tensors_compared > 10);
    CHECK(report.tensors_equal == report.tensors_compared);
    CHECK(report.tensors.empty());
    CHECK(report.values.empty());
  }
}

TEST_CASE("an optimizer keyed by id equals the same one keyed by FQN") {
  for (const bool swap : {false, true}) {
    const std::string a = "torchsave/fsdp1_full", b = "torchsave/fsdp1_full_rekeyed";
    const DiffReport report = swap ? diff_samples(b, a) : diff_samples(a, b);
    INFO(list(report));
    CHECK(report.equal);
    CHECK(report.tensors_equal == 54);
  }
  DiffOptions raw;
  raw.canonical_optim = false;
  CHECK_FALSE(diff_samples("torchsave/fsdp1_full", "torchsave/fsdp1_full_rekeyed", raw).equal);
  // Across formats, too.
  CHECK(diff_samples("torchsave/fsdp1_full_rekeyed", "dcp/fsdp1_mesh_orig_w2").equal);
}

TEST_CASE("options repeated per parameter equal options kept by the group") {
  for (const bool swap : {false, true}) {
    const std::string a = "dcp/fsdp2_w4", b = "dcp/fsdp2_w2_flat_optim";
    const DiffReport report = swap ? diff_samples(b, a) : diff_samples(a, b);
    INFO(list(report));
    CHECK(report.equal);
    CHECK(report.values_compared > 100);
  }
}

TEST_CASE(
    "a checkpoint of an old release equals its own conversion, by whatever names either has") {
  int compared = 0;
  for (const auto& folder :
       std::filesystem::directory_iterator(TESSERA_SOURCE_DIR "/sample_checkpoints/dcp-old")) {
    const std::string name = "dcp-old/" + folder.path().filename().string();
    INFO(name);
    MemoryFileSystem fs;
    const std::string source = load_sample(fs, name);
    ConvertOptions options = convert_options(source, "/a.pt", std::nullopt, "torch-save");
    options.target.opaque = KeepPolicy::kDrop;
    convert(fs, options);
    OpenedCheckpoint left = open_checkpoint(fs, source), right = open_checkpoint(fs, "/a.pt");
    const std::size_t stored = left.manifest.state.entries.size();
    const DiffReport report = diff_checkpoints(left, right);
    INFO(list(report));
    CHECK(std::ranges::all_of(report.values, [](const ValueDiff& d) {
      return d.what == ValueDiff::What::kMissing &&
             canonical_json(d.a).find("__bytesio") != std::string::npos;
    }));  // what --opaque drop left out
    CHECK(report.tensors.empty());
    CHECK(left.manifest.state.entries.size() == stored);
    ++compared;
  }
  CHECK(compared > 10);
}

TEST_CASE("each kind of difference is told, on the side it is on") {
  const DiffReport report = diff_fixtures();
  CHECK_FALSE(report.equal);
  CHECK_FALSE(tensor(report, "same"));
  REQUIRE(tensor(report, "gone"));
  CHECK(tensor(report, "gone")->what == TensorDiff::What::kMissing);
  REQUIRE(tensor(report, "new"));
  CHECK(tensor(report, "new")->what == TensorDiff::What::kUnexpected);
  REQUIRE(tensor(report, "shape"));
  CHECK(tensor(report, "shape")->what == TensorDiff::What::kShape);
  CHECK(tensor(report, "shape")->a.find("[5,7]") != std::string::npos);
  CHECK(tensor(report, "shape")->b.find("[7,5]") != std::string::npos);
  REQUIRE(tensor(report, "kind"));
  CHECK(tensor(report, "kind")->what == TensorDiff::What::kDType);
  REQUIRE(tensor(report, "ulp"));
  CHECK(tensor(report, "ulp")->what == TensorDiff::What::kValues);
  REQUIRE(value(report, "lr"));
  CHECK(value(report, "lr")->what == ValueDiff::What::kDiffers);
  CHECK(value(report, "left")->what == ValueDiff::What::kMissing);
  CHECK(value(report, "right")->what == ValueDiff::What::kUnexpected);
  CHECK_FALSE(value(report, "seed"));
}

TEST_CASE("a difference is measured as NumPy measures it") {
  const Value expected = json_file(fixture("diff/expected.json"));
  const DiffReport report = diff_fixtures();
  const TensorDiff& near = *tensor(report, "near");
  CHECK(near.count == expected.find("count")->as_int());
  CHECK(near.numel == 35);
  for (const auto& [name, got] :
       {std::pair("max_abs", near.max_abs), std::pair("max_rel", near.max_rel),
        std::pair("l2", near.l2), std::pair("relative_l2", near.relative_l2),
        std::pair("cosine", near.cosine)})
    CHECK(std::abs(got - expected.find(name)->as_real()) <=
          1e-12 * std::abs(expected.find(name)->as_real()));
  const TensorDiff& ulp = *tensor(report, "ulp");
  CHECK(ulp.count == 1);
  CHECK(ulp.first == 17);
  CHECK(ulp.first_index == std::vector<std::int64_t>{2, 3});
  CHECK(ulp.first_a != ulp.first_b);
}

TEST_CASE("exact looks at bits: other zeros and other NaN differ") {
  const DiffReport report = diff_fixtures();
  CHECK(tensor(report, "zero"));
  CHECK(tensor(report, "nan_bits"));
  REQUIRE(tensor(report, "nan_one"));
  CHECK(tensor(report, "nan_one")->nonfinite_mismatch == 1);
  CHECK(tensor(report, "inf_one")->nonfinite_mismatch == 1);
}

TEST_CASE("tolerances forgive what they say, and no more") {
  DiffOptions abs, rel, ulp, none;
  abs.abs = 1e-3;
  rel.rel = 1e-6;
  ulp.ulp = 1;
  none.ulp = 0;
  const DiffReport by_abs = diff_fixtures(abs);
  CHECK_FALSE(tensor(by_abs, "near"));
  CHECK_FALSE(tensor(by_abs, "ulp"));
  CHECK_FALSE(tensor(by_abs, "zero"));
  CHECK_FALSE(tensor(by_abs, "nan_bits"));
  CHECK(tensor(by_abs, "nan_one"));
  CHECK(tensor(by_abs, "inf_one"));
  const DiffReport by_rel = diff_fixtures(rel);
  CHECK(tensor(by_rel, "near"));
  CHECK_FALSE(tensor(by_rel, "ulp"));
  const DiffReport by_ulp = diff_fixtures(ulp);
  CHECK(tensor(by_ulp, "near"));
  CHECK_FALSE(tensor(by_ulp, "ulp"));
  CHECK_FALSE(tensor(by_ulp, "zero"));
  CHECK(tensor(diff_fixtures(none), "ulp"));
}

TEST_CASE("NaN equals NaN only where that is wanted") {
  DiffOptions options;
  options.abs = 0;
  CHECK_FALSE(tensor(diff_fixtures(options), "nan_bits"));
  options.nan_equal = false;
  CHECK(tensor(diff_fixtures(options), "nan_bits"));
}

TEST_CASE("as a type: both are rounded to it first, and may be of different types") {
  DiffOptions options;
  options.as = DType::kBFloat16;
  const DiffReport report = diff_fixtures(options);
  CHECK_FALSE(tensor(report, "kind"));
  CHECK_FALSE(tensor(report, "ulp"));
  CHECK(tensor(report, "shape"));
  options.as = DType::kFloat64;
  CHECK(tensor(diff_fixtures(options), "kind"));
}

TEST_CASE("the first difference ends a quick comparison") {
  DiffOptions options;
  options.stop_at_first = true;
  const DiffReport report = diff_fixtures(options);
  CHECK_FALSE(report.equal);
  CHECK(report.tensors_compared == 0);  // names already differ: nothing was read
  CHECK(diff_samples("dcp/fsdp2_w4", "dcp/fsdp2_w3", options).equal);
}

TEST_CASE("optimizer state and groups are part of the comparison") {
  const DiffReport report = diff_paths(fixture("optim/healthy.pt"), fixture("optim/reset_step.pt"));
  INFO(list(report));
  CHECK(report.tensors.size() == 1);
  CHECK(tensor(report, "optim.state.3.step"));
  const DiffReport half = diff_paths(fixture("optim/healthy.pt"), fixture("optim/half_missing.pt"));
  REQUIRE(tensor(half, "optim.state.5.exp_avg_sq"));
  CHECK(tensor(half, "optim.state.5.exp_avg_sq")->what == TensorDiff::What::kMissing);
  const DiffReport groups = diff_paths(fixture("optim/healthy.pt"), fixture("optim/group_step.pt"));
  CHECK(value(groups, "optim.param_groups.0.step"));
}

TEST_CASE("tensors larger than the memory limit compare in blocks, in any number of threads") {
  DiffOptions options;
  options.transfer.memory_limit_bytes = 64 << 10;
  options.transfer.threads = 3;
  const std::string stat = fixture("stat/tensors.pt");
  const DiffReport report = diff_paths(stat, stat, options);
  INFO(list(report));
  CHECK(report.equal);
  CHECK(report.tensors_compared == 19);
}

TEST_CASE("with the root of each side named, a model equals the model inside a whole state") {
  OpenOptions root;
  root.selection.root = "model";
  OpenedCheckpoint a = open_sample("dcp/fsdp2_w4", root),
                   b = open_sample("dcp/fsdp2_w2_model_only");
  const DiffReport report = diff_checkpoints(a, b);
  INFO(list(report));
  CHECK(report.equal);
  CHECK(report.tensors_equal == 15);
}

}  // namespace diff_test
