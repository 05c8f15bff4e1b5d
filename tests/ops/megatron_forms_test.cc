// Megatron's two formats by its own checkpoints: what stands beside the weights in one (options of
// groups, generators of random numbers, the form of the optimizer's state) is in the other where
// Megatron looks for it.
#include <tessera/ops/rules.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "lib/ops/edit/extra_state.h"
#include "lib/ops/edit/megatron_places.h"
#include "lib/ops/edit/module_names.h"
#include "tests/support/convert_case.h"
#include "tests/support/megatron_case.h"
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

TEST_CASE("the model alone goes by the arguments of its run") {
  MemoryFileSystem fs;
  load_real(fs, "whole_tp2");
  ConvertOptions options = convert_options("/c", "/model", std::nullopt, "safetensors");
  options.selection.only = Part::kModel;
  options.transform.rules = parse_rules_flag("llama:hf");  // heads and groups are in args
  CHECK(convert(fs, options).published);
  const OpenedContent model = content_at(fs, "/model");
  write(fs, "/c", "/hub", "hf", "", "llama");
  CHECK(model.tensors == content_at(fs, "/hub").tensors);
}

TEST_CASE("the model alone keeps the copy of a tied embedding in the last stage") {
  MemoryFileSystem fs;
  load_real(fs, "buckets_pp2_dp2_tied");
  ConvertOptions options = convert_options("/c", "/ranks", std::nullopt, "megatron-torch");
  options.target.mesh = Mesh::parse("tp=1,pp=2");
  options.selection.only = Part::kModel;
  // args say that it is tied, and nothing of groups.
  options.transform.rules = parse_rules_flag("llama:megatron,heads=4,groups=2");
  CHECK(convert(fs, options).published);
  const OpenedContent ranks = content_at(fs, "/ranks");
  CHECK(names(ranks, "args").empty());
  CHECK(ranks.tensors.at("model.output_layer.weight") ==
        ranks.tensors.at("model.embedding.word_embeddings.weight"));
}

TEST_CASE("without grouped queries there are as many key and value heads as heads") {
  MemoryFileSystem fs;
  testing::ToyOptions toy;
  toy.optimizer = testing::ToyOptions::Optimizer::kNone;
  toy.more_args = {{"group_query_attention", Value::boolean(false)},
                   {"num_query_groups", Value::integer(1)}};
  testing::write_toy(fs, "/c", toy);
  ConvertOptions options = convert_options("/c", "/hub", std::nullopt, "hf");
  options.transform.rules = parse_rules_flag("llama:hf");
  CHECK(convert(fs, options).published);
  const OpenedContent hub = content_at(fs, "/hub");
  const auto shape = [&](const std::string& kind) {
    const std::string text = hub.tensors.at("model.layers.0.self_attn." + kind + ".weight");
    return text.substr(0, text.find(']'));
  };
  CHECK(shape("k_proj") == shape("q_proj"));
  CHECK(shape("v_proj") == shape("q_proj"));
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

TEST_CASE("layers that torch_dist stacks are refused where nothing says whose modules they are") {
  MemoryFileSystem fs;
  load_real(fs, "whole_tp2");  // args without transformer_impl
  ConvertOptions options = convert_options("/c", "/ranks", std::nullopt, "megatron-torch");
  options.target.mesh = Mesh::parse("tp=2");
  const Status status = status_of(fs, options);
  CHECK(status.code == Code::kUnsupported);
  CHECK(status.message.find("layer_norm_weight") != std::string::npos);
  CHECK(status.hint.find("--rules llama:megatron") != std::string::npos);
  write(fs, "/c", "/by_rules", "megatron-torch", "tp=2", "llama:megatron");  // as the hint says
}

namespace {

/// Weights of torch_dist, and arguments of their run.
Manifest stored_as(const std::vector<std::pair<std::string, Shape>>& weights,
                   std::vector<std::pair<std::string, Value>> args) {
  Manifest manifest;
  for (const auto& [name, shape] : weights) {
    StoredTensor tensor;
    tensor.name = name;
    tensor.spec = {DType::kFloat32, shape};
    manifest.tensors.push_back(tensor);
    manifest.state.entries.push_back(
        {name,
         {key_item(name)},
         Value::tensor(static_cast<std::uint32_t>(manifest.tensors.size() - 1))});
  }
  manifest.state.entries.push_back(
      {"args", {key_item("args")}, testing::argument_namespace(std::move(args))});
  return manifest;
}

/// "stored -> modules" by the rules made for it.
std::vector<std::string> module_names(const Manifest& manifest) {
  const auto request = rules_to_modules(manifest);
  REQUIRE(request);
  const RulesOutcome plan =
      plan_rules(parse_rules(request->text, request->name), *request, parameter_shapes(manifest),
                 [](const std::string&) { return std::optional<std::int64_t>(); });
  CHECK(plan.unmatched.empty());
  std::vector<std::string> out;
  for (const ParameterEdit& edit : plan.edits)
    for (const NewParameter& made : edit.made)
      out.push_back(made.fqn + " " + made.shape.to_string());
  for (const auto& [from, to] : plan.renames) out.push_back(to);
  std::ranges::sort(out);
  return out;
}

}  // namespace

TEST_CASE("stacked layers become layers by the names of their run's modules") {
  const std::vector<std::pair<std::string, Shape>> weights = {
      {"embedding.word_embeddings.weight", {12, 8}},
      {"decoder.layers.mlp.linear_fc1.layer_norm_weight", {2, 8}},
      {"decoder.layers.mlp.experts.experts.linear_fc1.weight", {2, 3, 24, 8}}};
  const Value yes = Value::boolean(true), no = Value::boolean(false);
  CHECK(module_names(stored_as(
            weights, {{"transformer_impl", testing::text("local")}, {"moe_grouped_gemm", no}})) ==
        std::vector<std::string>{
            "decoder.layers.0.mlp.experts.local_experts.0.linear_fc1.weight [24,8]",
            "decoder.layers.0.mlp.experts.local_experts.1.linear_fc1.weight [24,8]",
            "decoder.layers.0.mlp.experts.local_experts.2.linear_fc1.weight [24,8]",
            "decoder.layers.0.pre_mlp_layernorm.weight [8]",
            "decoder.layers.1.mlp.experts.local_experts.0.linear_fc1.weight [24,8]",
            "decoder.layers.1.mlp.experts.local_experts.1.linear_fc1.weight [24,8]",
            "decoder.layers.1.mlp.experts.local_experts.2.linear_fc1.weight [24,8]",
            "decoder.layers.1.pre_mlp_layernorm.weight [8]", "embedding.word_embeddings.weight"});
  const auto engine =
      module_names(stored_as(weights, {{"transformer_impl", testing::text("transformer_engine")},
                                       {"moe_grouped_gemm", yes}}));
  CHECK(std::ranges::count(engine, "decoder.layers.1.mlp.experts.linear_fc1.weight2 [24,8]") == 1);
  CHECK(std::ranges::count(engine, "decoder.layers.1.mlp.linear_fc1.layer_norm_weight [8]") == 1);
  CHECK_THROWS_AS(rules_to_modules(stored_as(weights, {{"transformer_impl", testing::text("local")},
                                                       {"moe_grouped_gemm", yes}})),
                  Error);  // packed in two matrices
  CHECK_FALSE(
      rules_to_modules(stored_as({{"decoder.layers.0.mlp.linear_fc2.weight", {8, 12}}}, {})));
}

TEST_CASE("experts of one expert each are refused with the renames that rules need") {
  const auto hint = [](const std::string& name) {
    try {
      refuse_single_experts(stored_as({{name, {8, 12}}}, {}));
    } catch (const Error& error) {
      return error.status().hint;
    }
    return std::string();
  };
  CHECK(hint("decoder.layers.0.mlp.experts.experts.3.linear_fc1.weight_w").find("--rename") !=
        std::string::npos);
  CHECK(hint("decoder.layers.0.mlp.experts.experts.linear_fc1.weight").empty());
}

TEST_CASE("tensors stand as Megatron's modules register them") {
  Manifest manifest = stored_as({{"output_layer.weight", {12, 8}},
                                 {"mtp.layers.0.transformer_layer.mlp.linear_fc1.weight", {24, 8}},
                                 {"decoder.layers.10.input_layernorm.weight", {8}},
                                 {"decoder.layers.2.mlp.linear_fc1.weight", {24, 8}},
                                 {"decoder.layers.2.self_attention.linear_qkv.weight", {16, 8}},
                                 {"decoder.layers.2.self_attention.linear_proj.weight", {8, 8}},
                                 {"mtp.layers.0.eh_proj.weight", {8, 16}},
                                 {"decoder.final_layernorm.weight", {8}},
                                 {"decoder.layers.2.mlp.experts.linear_fc1.weight10", {24, 8}},
                                 {"decoder.layers.2.mlp.experts.linear_fc1.weight9", {24, 8}},
                                 {"embedding.word_embeddings.weight", {12, 8}}},
                                {});
  CHECK_FALSE(order_as_modules(manifest));  // no optimizer
  std::vector<std::string> order;
  for (const StateEntry& entry : manifest.state.entries) order.emplace_back(entry.name);
  CHECK(order ==
        std::vector<std::string>{
            "embedding.word_embeddings.weight",
            "decoder.layers.2.self_attention.linear_proj.weight",
            "decoder.layers.2.self_attention.linear_qkv.weight",
            "decoder.layers.2.mlp.experts.linear_fc1.weight9",
            "decoder.layers.2.mlp.experts.linear_fc1.weight10",
            "decoder.layers.2.mlp.linear_fc1.weight", "decoder.layers.10.input_layernorm.weight",
            "decoder.final_layernorm.weight", "mtp.layers.0.eh_proj.weight",
            "mtp.layers.0.transformer_layer.mlp.linear_fc1.weight", "output_layer.weight", "args"});
}

TEST_CASE("groups of a chain of optimizers become those of one, as rank files are read") {
  Manifest manifest;
  const auto option = [&](std::int64_t optimizer, std::int64_t group, const std::string& name,
                          Value value) {
    const Path path{key_item("optimizer"),    int_key_item(optimizer), key_item("optimizer"),
                    key_item("param_groups"), index_item(group),       key_item(name)};
    manifest.state.entries.push_back({dotted(path), path, std::move(value)});
  };
  for (const std::int64_t group : {0, 1}) {
    option(0, group, "wd_mult", Value::real(group == 0 ? 1 : 0));
    option(0, group, "is_expert_parallel", Value::boolean(false));
  }
  for (const std::int64_t group : {0, 1}) {  // as the first above, and another
    option(1, group, "wd_mult", Value::real(group == 0 ? 1 : 2));
    option(1, group, "is_expert_parallel", Value::boolean(true));
  }
  name_optimizer_as_rank_files(manifest);
  std::string found;
  for (const StateEntry& entry : manifest.state.entries) found += std::string(entry.name) + "\n";
  CHECK(found ==
        "optimizer.param_groups.0.wd_mult\noptimizer.param_groups.0.is_expert_parallel\n"
        "optimizer.param_groups.1.wd_mult\noptimizer.param_groups.1.is_expert_parallel\n"
        "optimizer.param_groups.2.wd_mult\noptimizer.param_groups.2.is_expert_parallel\n");
}

TEST_CASE("state of modules goes where each of Megatron's forms has it, or is refused by name") {
  const auto with = [](Manifest manifest, const std::string& name, Value value, Path path = {}) {
    manifest.state.entries.push_back(
        {name, path.empty() ? Path{key_item(name)} : std::move(path), std::move(value)});
    return manifest;
  };
  const auto last = [](const Manifest& manifest) {
    return std::string(manifest.state.entries.back().name);
  };
  const Value own = testing::text("scales");
  const Manifest layers = stored_as({{"decoder.layers.0.mlp.linear_fc2.weight", {8, 12}}}, {});
  Manifest apart =
      with(layers, "decoder.layers.mlp.linear_fc2._extra_state/shard_1_2", Value::list({own}));
  extra_state_to_modules(apart);
  CHECK(last(apart) == "model.decoder.layers.1.mlp.linear_fc2._extra_state");
  CHECK(apart.state.entries.back().value == own);
  CHECK(apart.state.entries[0].name == "model.decoder.layers.0.mlp.linear_fc2.weight");

  const Path inside{key_item("model"), key_item("decoder.layers.1.mlp.linear_fc2._extra_state")};
  Manifest stacked = with(stored_as({{"decoder.layers.mlp.linear_fc2.weight", {2, 8, 12}}}, {}),
                          dotted(inside), own, inside);
  extra_state_to_objects(stacked);
  CHECK(last(stacked) == "decoder.layers.mlp.linear_fc2._extra_state/shard_1_2");
  CHECK(stacked.state.entries.back().value == Value::list({own}));

  const std::string expert =
      "decoder.layers.mlp.experts.experts.linear_fc1._extra_state/shard_1.2_2.3";
  Manifest local = with(
      stored_as({{"decoder.layers.0.mlp.experts.local_experts.0.linear_fc1.weight", {8, 12}}}, {}),
      expert, Value::list({own}));
  extra_state_to_modules(local);
  CHECK(last(local) ==
        "model.decoder.layers.1.mlp.experts.local_experts.2.linear_fc1._extra_state");
  Manifest grouped =
      with(stored_as({{"decoder.layers.0.mlp.experts.linear_fc1.weight0", {8, 12}}}, {}), expert,
           Value::list({own}));
  CHECK_THROWS_WITH(extra_state_to_modules(grouped),
                    Catch::Contains("linear_fc1._extra_state/shard_1.2"));
  const Path of_rank{key_item("_extra_state"), key_item("rank_1"),
                     key_item("model.x._extra_state")};
  Manifest ranks = with(layers, dotted(of_rank), own, of_rank);
  CHECK_THROWS_WITH(extra_state_to_objects(ranks), Catch::Contains("_extra_state.rank_1"));
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
  CHECK(further_layer_name({}, name, true, 17) == new_name);
  CHECK(further_layer_name({}, new_name, true, 16) == name);
  CHECK(further_layer_name({}, name, true) == name);
  CHECK(named("decoder.layers.0.transformer_layer.w", true, now) ==
        "decoder.layers.0.transformer_layer.w");
}

}  // namespace megatron_forms_test
