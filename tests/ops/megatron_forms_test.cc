// Megatron's two formats by its own checkpoints: what stands beside the weights in one (options of
// groups, generators of random numbers, the form of the optimizer's state) is in the other where
// Megatron looks for it.
#include <tessera/ops/rules.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "lib/ops/edit/megatron_places.h"
#include "tests/support/convert_case.h"
#include "tests/support/sample_case.h"

namespace megatron_forms_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

/// A checkpoint of real models and optimizers, in /c.
void load_real(MemoryFileSystem& fs, const std::string& name) {
  const SampleCase sample("../tests/format/data/megatron_ranks/" + name, "iter_0000007");
  const auto copy = [&](const std::string& file, std::uint64_t size) {
    Bytes bytes(size);
    sample.directory->open(file)->read_at(0, bytes);
    fs.write_file("/c/" + file, bytes);
  };
  for (const FileInfo& info : sample.directory->list()) {
    if (info.type != FileType::kDirectory) {
      copy(info.name, info.size_bytes);
      continue;
    }
    for (const FileInfo& inside : sample.directory->list(info.name))
      copy(info.name + "/" + inside.name, inside.size_bytes);
  }
}

ConvertReport write(MemoryFileSystem& fs, const std::string& from, const std::string& to,
                    const std::string& format, const std::string& mesh,
                    const std::string& rules = "") {
  ConvertOptions options = convert_options(from, to, std::nullopt, format);
  if (!mesh.empty()) options.target.mesh = Mesh::parse(mesh);
  if (!rules.empty()) options.transform.rules = parse_rules_flag(rules);
  options.transform.strict_rules = !rules.empty();
  options.verify = true;
  const ConvertReport report = convert(fs, options);
  CHECK(report.published);
  return report;
}

std::vector<std::string> names(const OpenedContent& content, const std::string& part) {
  std::vector<std::string> found;
  for (const auto& list : {content.tensors, content.values})
    for (const auto& [name, what] : list)
      if (name.find(part) != std::string::npos) found.push_back(name);
  return found;
}

}  // namespace

TEST_CASE("state that was buckets says that it is whole, and keeps its groups' options") {
  const std::string name = GENERATE(as<std::string>{}, "buckets_tp2_small", "buckets_pp2_dp2_tied");
  MemoryFileSystem fs;
  load_real(fs, name);
  write(fs, "/c", "/out", "megatron-dist", "tp=1");
  const OpenedContent out = content_at(fs, "/out");
  CHECK(out.values.at("optimizer.param_state_sharding_type") == "\"fully_reshardable\"");
  CHECK(out.values.at("content_metadata").find("fully_reshardable") != std::string::npos);
  CHECK(names(out, "dp_group_idx").empty());
  CHECK(out.values.at("optimizer.optimizer.param_groups.0.lr") == "0.001");
  CHECK(names(out, "optimizer.optimizer.param_groups.1.wd_mult").size() == 1);
  CHECK(out.tensors == content_at(fs, "/c").tensors);
}

TEST_CASE("rank files made of torch_dist have generators and groups of each rank's own") {
  MemoryFileSystem fs;
  load_real(fs, "whole_tp2");
  write(fs, "/c", "/ranks", "megatron-torch", "tp=2", "llama:megatron");
  const OpenedContent ranks = content_at(fs, "/ranks");
  CHECK(names(ranks, "model.rng_state").empty());
  CHECK(names(ranks, "rng_state/shard").empty());
  CHECK(ranks.tensors.contains("rng_state.rank_0.0.torch_rng_state"));
  CHECK(ranks.tensors.contains("rng_state.rank_1.0.rng_tracker_states.model-parallel-rng"));
  CHECK_FALSE(names(ranks, "optimizer.param_groups.0.lr").empty());
  CHECK(names(ranks, "fp32_param").size() == 15);

  write(fs, "/ranks", "/back", "megatron-dist", "tp=2", "llama:megatron-dist");
  const OpenedContent back = content_at(fs, "/back"), source = content_at(fs, "/c");
  CHECK(back.tensors == source.tensors);
  for (const std::string object : {"rng_state/shard_0.0_1.2", "rng_state/shard_0.1_1.2"})
    CHECK(back.values.at(object) == source.values.at(object));
  CHECK(back.values.at("optimizer.param_state_sharding_type") == "\"fully_reshardable\"");
}

TEST_CASE("generators of random numbers are no weights of the hub") {
  MemoryFileSystem fs;
  load_real(fs, "whole_tp2");
  write(fs, "/c", "/hub", "hf", "", "llama");  // the number of heads is in args
  const OpenedContent hub = content_at(fs, "/hub");
  CHECK(names(hub, "rng").empty());
  CHECK(hub.tensors.contains("model.layers.1.self_attn.k_proj.weight"));
  CHECK(hub.tensors.size() == 2 * 9 + 3);
}

TEST_CASE("generators of another mesh stay objects, and out of the model") {
  MemoryFileSystem fs;
  load_real(fs, "whole_tp2");
  write(fs, "/c", "/ranks", "megatron-torch", "tp=1", "llama:megatron");
  const OpenedContent ranks = content_at(fs, "/ranks");
  CHECK(names(ranks, "model.rng_state").empty());
  CHECK(names(ranks, "rng_state.rank").empty());
  CHECK_FALSE(names(ranks, "rng_state/shard_0.1_1.2").empty());
}

TEST_CASE("a layer-wise optimizer in files of data-parallel ranks is not lost without a word") {
  MemoryFileSystem fs;
  load_real(fs, "grouped_tp2_ep2");
  fs.write_file("/c/mp_rank_00_000/layer_wise_optimizer_1.pt",
                fs.read_file("/c/mp_rank_00_000/model_optim_rng.pt"));
  CHECK(names(content_at(fs, "/c"), "optimizer").empty());
  ConvertOptions options = convert_options("/c", "/out", std::nullopt, "");
  options.target.mesh = Mesh::parse("tp=1,ep=2");
  const Status status = status_of(fs, options);
  CHECK(status.code == Code::kUnsupported);
  CHECK(status.message.find("layer_wise_optimizer_<N>.pt") != std::string::npos);
  options.selection.only = Part::kModel;
  CHECK(convert(fs, options).published);
}

TEST_CASE("what Megatron asks for by its own metadata follows halves of gated matrices") {
  const auto says = [](const std::string& weight) {
    Manifest manifest;
    StoredTensor tensor;
    tensor.name = weight;
    tensor.spec = {DType::kFloat32, Shape({2, 2})};
    manifest.tensors.push_back(tensor);
    manifest.state.entries.push_back({weight, {key_item(weight)}, Value::tensor(0)});
    manifest.state.entries.push_back(
        {"content_metadata",
         {key_item("content_metadata")},
         Value::dict({{Value::string("singleton_local_shards"), Value::boolean(true)}})});
    say_gates_are_whole(manifest);
    return manifest.state.entries[1].value.find("singleton_local_shards")->as_bool();
  };
  CHECK(says("decoder.layers.0.mlp.linear_fc1.weight_w"));
  CHECK_FALSE(says("decoder.layers.mlp.linear_fc1.weight"));
}

TEST_CASE("layers of further tokens have the name of the release that args show") {
  const std::string name = "mtp.layers.0.transformer_layer.mlp.linear_fc2.weight";
  const auto named = [&](const std::string& weight, bool of_rank_files, const Value& args) {
    Manifest manifest;
    StoredTensor tensor;
    tensor.name = weight;
    tensor.spec = {DType::kFloat32, Shape({2, 2})};
    manifest.tensors.push_back(tensor);
    manifest.state.entries.push_back({weight, {key_item(weight)}, Value::tensor(0)});
    manifest.state.entries.push_back({"args", {key_item("args")}, args});
    name_further_layers(manifest, of_rank_files);
    return std::string(manifest.state.entries[0].name);
  };
  const auto arguments = [](const std::string& key) {
    OpaqueObject object;
    object.module = "argparse";
    object.name = "Namespace";
    object.has_state = true;
    object.state = Value::dict({{Value::string("num_layers"), Value::integer(2)},
                                {Value::string(key), Value::boolean(false)}});
    return Value::opaque(object);
  };
  const Value old = arguments("mtp_num_layers"), now = arguments("mtp_use_repeated_layer");
  const std::string new_name = "mtp.layers.0.mtp_model_layer.mlp.linear_fc2.weight";
  const std::string hybrid = "mtp.layers.0.mtp_model_layer.layers.0.mlp.linear_fc2.weight";
  CHECK(named(name, true, now) == new_name);
  CHECK(named(name, true, old) == name);
  CHECK(named(new_name, false, now) == name);
  CHECK(named(new_name, false, old) == name);
  CHECK(named(hybrid, false, now) == hybrid);
  CHECK(named("decoder.layers.0.transformer_layer.w", true, now) ==
        "decoder.layers.0.transformer_layer.w");
}

}  // namespace megatron_forms_test
