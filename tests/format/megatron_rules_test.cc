// --rules between Hugging Face's names and Megatron's ranks: weights, moments and fp32 masters are
// fused, cut and stacked alike, at every size and back.
#include <tessera/base/error.h>
#include <tessera/ops/convert.h>
#include <tessera/ops/diff.h>
#include <tessera/ops/open.h>
#include <tessera/state/optim_state.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/format/megatron_fixture.h"

namespace tessera::megatron_rules_test {
namespace {

constexpr const char* kNumbers = ",heads=4,groups=2";

struct Workshop {
  MemoryFileSystem fs;

  /// A state that PyTorch wrote.
  std::string load(const std::string& name) {
    std::ifstream stream(std::string(TESSERA_SOURCE_DIR) + "/tests/ops/data/rules/" + name + ".pt",
                         std::ios::binary);
    std::ostringstream text;
    text << stream.rdbuf();
    REQUIRE_FALSE(text.str().empty());
    fs.make_directories("/in");
    fs.write_file("/in/" + name + ".pt", as_bytes(text.str()));
    return "/in/" + name + ".pt";
  }
  void convert_to(const std::string& from, const std::string& to, const std::string& format,
                  const std::string& rules, const std::string& mesh = "") {
    ConvertOptions options;
    options.source = from;
    options.destination = to;
    options.to = format;
    if (!mesh.empty()) options.target.mesh = Mesh::parse(mesh);
    if (!rules.empty()) options.transform.rules = parse_rules_flag(rules);
    options.rank_state = RankStatePolicy::kKeep;
    options.verify = mesh.empty();
    convert(fs, options);
  }
  /// "" when both hold the same, by name.
  std::string difference(const std::string& a, const std::string& b) {
    OpenedCheckpoint left = open_checkpoint(fs, a), right = open_checkpoint(fs, b);
    const DiffReport report = diff_checkpoints(left, right);
    std::string text;
    for (const TensorDiff& tensor : report.tensors) text += tensor.name + " ";
    for (const ValueDiff& value : report.values) text += value.name + " ";
    return report.equal ? "" : "differ: " + text;
  }
  std::set<std::string> chunks(const std::string& path, const std::string& name) {
    const OpenedCheckpoint opened = open_checkpoint(fs, path);
    std::set<std::string> out;
    const StoredTensor* tensor = opened.manifest.find(name);
    REQUIRE(tensor);
    for (std::size_t c = 0; c < tensor->chunk_count; ++c)
      out.insert(opened.manifest.chunk(*tensor, c).to_string());
    return out;
  }
};

}  // namespace

TEST_CASE("a family's weights and moments go to Megatron's ranks by rules and come back the same") {
  for (const std::string family : {"llama", "qwen2"}) {
    Workshop shop;
    const std::string hf = shop.load(family + ".hf");
    const std::string side = family + ":megatron" + kNumbers;
    shop.convert_to(hf, "/one", "megatron-torch", side, "tp=1");
    shop.convert_to("/one", "/plain.pt", "torch-save", family + ":hf" + kNumbers);
    for (const std::string mesh : {"tp=2", "tp=2,pp=2", "pp=2", "tp=1"}) {
      CAPTURE(family, mesh);
      const std::string at = "/ranks-" + mesh;
      shop.convert_to(hf, at, "megatron-torch", side, mesh);
      CHECK(shop.difference(at, "/one") == "");
      shop.convert_to(at, at + ".pt", "torch-save", family + ":hf" + kNumbers);
      CHECK(shop.difference(at + ".pt", "/plain.pt") == "");
    }
  }
}

TEST_CASE("what rules wrote is what a rank of Megatron's holds") {
  Workshop shop;
  shop.convert_to(shop.load("llama.hf"), "/ranks", "megatron-torch",
                  std::string("llama:megatron") + kNumbers, "tp=2");
  // Rank 1 has the lower half of the gates, then that of the ups: without args shapes say so.
  OpenedCheckpoint hf = open_checkpoint(shop.fs, "/in/llama.hf.pt");
  OpenedCheckpoint ranks = open_checkpoint(shop.fs, "/ranks");
  hf.locate_all({});
  ranks.locate_all({});
  const auto whole = testing::content_of(ranks.manifest, *ranks.directory);
  CHECK(whole.contains("optimizer.state.decoder.layers.0.mlp.linear_fc1.weight.exp_avg"));
  CHECK(shop.chunks("/ranks", "model.decoder.layers.0.mlp.linear_fc1.weight").size() == 4);
  CHECK(shop.chunks("/ranks", "optimizer.state.decoder.layers.0.mlp.linear_fc1.weight.exp_avg") ==
        shop.chunks("/ranks", "model.decoder.layers.0.mlp.linear_fc1.weight"));
}

TEST_CASE("torch_dist cuts moments and masters as their parameter whatever they are keyed by") {
  for (const OptimKeys keys : {OptimKeys::kFqn, OptimKeys::kId}) {
    Workshop shop;
    ConvertOptions options;
    options.source = shop.load("llama.hf");
    options.destination = "/dist";
    options.to = "megatron-dist";
    options.target.mesh = Mesh::parse("tp=2,pp=2");
    options.transform.rules = parse_rules_flag(std::string("llama:megatron-dist") + kNumbers);
    options.optim_keys = keys;
    convert(shop.fs, options);
    const OpenedCheckpoint opened = open_checkpoint(shop.fs, "/dist");
    const Roles roles = find_roles(opened.manifest.state);
    const auto states = canonical_optim_states(opened.manifest, roles);
    REQUIRE(states.size() == 1);
    std::size_t cut = 0;
    for (const OptimParameter& parameter : states[0].parameters) {
      const StoredTensor& weight = opened.manifest.tensors[parameter.weight];
      for (const OptimLeaf& leaf : parameter.leaves) {
        if (leaf.name == "step") continue;
        CAPTURE(weight.name, leaf.name);
        CHECK(shop.chunks("/dist", opened.manifest.tensors[leaf.tensor].name) ==
              shop.chunks("/dist", weight.name));
        cut += weight.chunk_count > 1;
      }
    }
    CHECK(cut >= 8);
  }
}

TEST_CASE("masters and moments of 16-bit ranks become stacked layers and come back") {
  testing::ToyOptions toy;
  toy.tp = 2;
  toy.half = true;
  Workshop shop;
  testing::write_toy(shop.fs, "/toy", toy);
  // The toy's names are Megatron's: stacked per layer and back they are what they were.
  const std::string rules =
      R"({"schema":"tessera.rules/1","name":"stack","sides":["stacked","layers"],"tensors":[)"
      R"({"layers":"decoder.layers.{layer}.self_attention.{rest}.weight",)"
      R"("stacked":{"name":"decoder.layers.self_attention.{rest}.weight","stack":"layer"}},)"
      R"({"layers":"decoder.layers.{layer}.mlp.{rest}.weight",)"
      R"("stacked":{"name":"decoder.layers.mlp.{rest}.weight","stack":"layer"}}]})";
  const auto apply = [&](const std::string& from, const std::string& to, const std::string& format,
                         const std::string& side, const std::string& mesh) {
    ConvertOptions options;
    options.source = from;
    options.destination = to;
    options.to = format;
    options.target.mesh = Mesh::parse(mesh);
    options.transform.rules = RulesRequest{"stack", rules, side, {}};
    options.rank_state = RankStatePolicy::kKeep;
    convert(shop.fs, options);
  };
  apply("/toy", "/dist", "megatron-dist", "stacked", "tp=2,pp=4");
  const std::string weight = "decoder.layers.mlp.linear_fc1.weight";
  // As torch_dist names them: weights by themselves, of state the leaf first, masters `param`.
  for (const std::string leaf : {"param", "exp_avg", "exp_avg_sq"})
    CHECK(shop.chunks("/dist", "optimizer.state." + leaf + "." + weight) ==
          shop.chunks("/dist", weight));
  CHECK(shop.chunks("/dist", weight).size() == 8);
  apply("/dist", "/back", "megatron-torch", "layers", "tp=2");
  CHECK(shop.difference("/back", "/toy") == "");
}

}  // namespace tessera::megatron_rules_test
