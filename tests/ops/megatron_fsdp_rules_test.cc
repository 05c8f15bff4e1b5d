// Rules megatron-fsdp: states named as Megatron-FSDP's checkpoints become torch_dist and come back,
// with the optimizer (tests/ops/data/make_megatron_fsdp.py). That megatron-core loads what is
// written is tests/interop/megatron_fsdp_test.py.
#include <tessera/base/error.h>
#include <tessera/encoding/json.h>
#include <tessera/ops/rules.h>
#include <tessera/state/optim_state.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

#include "tests/support/convert_case.h"

namespace megatron_fsdp_rules_test {

using namespace tessera;
using namespace tessera::testing;
using Lines = std::map<std::string, std::string>;

namespace {

std::string data_file(const std::string& name) {
  std::ifstream stream(std::string(TESSERA_SOURCE_DIR) + "/tests/ops/data/megatron_fsdp/" + name,
                       std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  REQUIRE_FALSE(text.str().empty());
  return text.str();
}

/// The state as a folder of DCP, which is what Megatron-LM writes.
std::string fsdp_folder(MemoryFileSystem& fs, const std::string& name) {
  fs.make_directories("/in");
  fs.write_file("/in/" + name + ".pt", as_bytes(data_file(name + ".pt")));
  convert(fs, convert_options("/in/" + name + ".pt", "/fsdp", 2, "torch-dcp"));
  return "/fsdp";
}

ConvertOptions with_rules(const std::string& from, const std::string& to, const std::string& format,
                          const std::string& side) {
  ConvertOptions options = convert_options(from, to, std::nullopt, format);
  if (format == "megatron-dist") options.target.mesh = Mesh::parse("tp=1");
  options.transform.rules = parse_rules_flag("megatron-fsdp:" + side);
  options.transform.strict_rules = true;
  options.verify = true;
  return options;
}

std::string side_of(const std::string& name) {
  return name == "plain" ? "megatron-dist-layers" : "megatron-fsdp";
}

OptimState optimizer_of(const OpenedCheckpoint& checkpoint) {
  const auto states =
      canonical_optim_states(checkpoint.manifest, find_roles(checkpoint.manifest.state));
  REQUIRE(states.size() == 1);
  return states[0];
}

}  // namespace

TEST_CASE("Megatron-FSDP: state and options are those of the weights, whatever wraps the names") {
  const auto* name = GENERATE("gated", "plain", "experts");
  INFO(name);
  MemoryFileSystem fs;
  const OpenedCheckpoint checkpoint = open_checkpoint(fs, fsdp_folder(fs, name));
  const Roles roles = find_roles(checkpoint.manifest.state);
  CHECK(roles.model_roots == std::vector<std::string>{"model.module"});
  const OptimState optim = optimizer_of(checkpoint);
  CHECK(optim.issues.empty());
  CHECK(optim.unlisted_weights.empty());
  REQUIRE(optim.groups.size() == 2);
  std::size_t members = 0;
  for (const OptimGroup& group : optim.groups) members += group.members.size();
  CHECK(members == optim.parameters.size());
  for (const OptimParameter& parameter : optim.parameters) {
    INFO(parameter.fqn);
    CHECK(parameter.weight != kNoTensor);
    CHECK(parameter.leaves.size() == 2);
    CHECK(parameter.group_step.value == 7.0);
    CHECK_FALSE(parameter.fqn.starts_with("module."));
  }
}

TEST_CASE("Megatron-FSDP: halves, experts and layers become torch_dist's, and come back") {
  const auto* name = GENERATE("gated", "plain", "experts");
  INFO(name);
  MemoryFileSystem fs;
  const std::string source = fsdp_folder(fs, name);
  convert(fs, with_rules(source, "/dist", "megatron-dist", "megatron-dist"));
  OpenedCheckpoint dist = open_checkpoint(fs, "/dist");
  dist.locate_all({});
  const Lines found = content_at(fs, "/dist").tensors;
  const Value expected = parse_json(as_bytes(data_file(std::string(name) + ".json")));
  for (const auto& [key, line] : expected.as_dict()) {
    const std::string& weight = key.as_string();
    INFO(weight);
    REQUIRE(found.contains(weight));
    CHECK(found.at(weight) == "float32 " + line.as_string());
    CHECK(found.at("optimizer.state.param." + weight) == found.at(weight));
    std::vector<float> values = dist.read<float>(weight), wanted;
    for (const float w : values) wanted.push_back(2 * w + 1);
    CHECK(dist.read<float>("optimizer.state.exp_avg." + weight) == wanted);
    for (float& w : values) w *= w;
    CHECK(dist.read<float>("optimizer.state.exp_avg_sq." + weight) == values);
  }
  CHECK(found.size() == 4 * expected.as_dict().size());
  const OptimState optim = optimizer_of(dist);
  CHECK(optim.groups.size() == 2);
  CHECK(std::ranges::all_of(optim.parameters,
                            [](const OptimParameter& p) { return p.weight != kNoTensor; }));

  convert(fs, with_rules("/dist", "/back", "torch-dcp", side_of(name)));
  const OpenedContent before = content_at(fs, source), after = content_at(fs, "/back");
  CHECK(after.tensors == before.tensors);
  CHECK(after.values == before.values);
}

TEST_CASE("Megatron-FSDP: groups of torch_dist that list no parameters are those Megatron makes") {
  MemoryFileSystem fs;
  const std::string source = fsdp_folder(fs, "gated");
  convert(fs, with_rules(source, "/dist", "megatron-dist", "megatron-dist"));
  const auto without_members = [&](bool with_multiples) {
    ConvertOptions plain = convert_options("/dist", "/few", std::nullopt, "megatron-dist");
    plain.target.mesh = Mesh::parse("tp=1");
    plain.force = true;
    plain.selection.exclude = {"optimizer.optimizer.param_groups.*.params"};
    if (!with_multiples)
      plain.selection.exclude.push_back("optimizer.optimizer.param_groups.*.wd_mult");
    convert(fs, plain);
    return with_rules("/few", with_multiples ? "/back" : "/no", "torch-dcp", "megatron-fsdp");
  };
  convert(fs, without_members(true));
  const OpenedContent before = content_at(fs, source), after = content_at(fs, "/back");
  CHECK(after.tensors == before.tensors);
  CHECK(after.values == before.values);
  const Status unknown = status_of(fs, without_members(false));
  CHECK(unknown.code == Code::kUnsupported);
  CHECK_THAT(unknown.message, Catch::Contains("options of each parameter"));
}

TEST_CASE("Megatron-FSDP: halves are no tensors of Megatron's other formats") {
  MemoryFileSystem fs;
  const std::string source = fsdp_folder(fs, "gated");
  for (const char* format : {"megatron-dist", "megatron-torch"}) {
    ConvertOptions options = convert_options(source, "/out", std::nullopt, format);
    options.target.mesh = Mesh::parse("tp=1");
    const Status status = status_of(fs, options);
    CHECK(status.code == Code::kUnsupported);
    CHECK_THAT(status.message, Catch::Contains("half of a gated matrix"));
    CHECK_THAT(status.hint, Catch::Contains("--rules megatron-fsdp"));
  }
}

TEST_CASE(
    "Megatron-FSDP: a matrix that is not gated is not cut in halves, nor a gated one left whole") {
  MemoryFileSystem fs;
  for (const char* name : {"gated", "plain"}) {
    INFO(name);
    MemoryFileSystem here;
    convert(here, with_rules(fsdp_folder(here, name), "/dist", "megatron-dist", "megatron-dist"));
    const std::string wrong = side_of(std::string(name) == "plain" ? "gated" : "plain");
    const Status status = status_of(here, with_rules("/dist", "/back", "torch-dcp", wrong));
    CHECK(status.code == Code::kInvalidArgument);
    CHECK_THAT(status.message, Catch::Contains("gated"));
    CHECK_THAT(status.hint,
               Catch::Contains(side_of(name) == "megatron-fsdp" ? "--rules megatron-fsdp"
                                                                : "megatron-dist-layers"));
  }
}

}  // namespace megatron_fsdp_rules_test
