// Checkpoints as training frameworks leave them: DeepSpeed's Muon, pipelines and experts, Megatron's
// latent attention and older releases, nanotron, ColossalAI. tests/format/data/families/README.md
// says who wrote each.
#include <tessera/base/error.h>
#include <tessera/encoding/json.h>
#include <tessera/format/deepspeed_zero.h>
#include <tessera/ops/convert.h>
#include <tessera/state/optim_state.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "lib/format/deepspeed_zero/stacked_experts.h"
#include "lib/format/nanotron/slices.h"
#include "tests/support/convert_case.h"
#include "tests/support/sample_case.h"

namespace tessera::families_test {
namespace {

using namespace testing;
using Catch::Matchers::Contains;
using Tensors = std::map<std::string, std::string>;

const std::string kData = TESSERA_SOURCE_DIR "/tests/format/data/families/";

std::string text_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// A case's folder in memory, below /source.
struct Case {
  MemoryFileSystem fs;
  Tensors expected;

  Case(const std::string& name, const std::string& folder) {
    const std::filesystem::path root = kData + name + "/" + folder;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root))
      if (entry.is_regular_file())
        fs.write_file("/source/" + std::filesystem::relative(entry.path(), root).string(),
                      as_bytes(text_of(entry.path())));
    const std::string oracle = text_of(kData + name + "/expected.json");
    if (!oracle.empty()) expected = expected_content(parse_json(as_bytes(oracle)));
  }
  /// One rank's file as it stands.
  Tensors file(const std::string& path, const std::string& format = "torch-save") {
    OpenOptions options;
    options.from = format;
    OpenedCheckpoint opened = open_checkpoint(fs, path, options);
    Tensors out;
    for (const HashedTensor& tensor : hash_checkpoint(opened, {}).tensors)
      out[tensor.name] = tensor.dtype + " " + Shape(tensor.shape).to_string() + " " + tensor.sha256;
    return out;
  }
  Tensors read(const std::string& path = "/source") { return content_at(fs, path).tensors; }
  /// Names of the oracle that were read otherwise, or not.
  Tensors missed(const Tensors& found) const {
    Tensors out;
    for (const auto& [name, line] : expected) {
      auto at = found.find(name);
      if (at == found.end())
        at = found.find("model." + name);  // of a loader that has weights alone
      if (at == found.end() || at->second != line)
        out.emplace(name, at == found.end() ? "not read" : at->second + ", expected " + line);
    }
    return out;
  }
  Status convert_to(const std::string& to, std::optional<std::int64_t> ranks,
                    const std::string& format,
                    const std::function<void(ConvertOptions&)>& change = {}) {
    ConvertOptions options = convert_options("/source", to, ranks, format);
    if (change) change(options);
    return status_of(fs, options);
  }
};

Tensors only_optimizer(const Tensors& all) {
  Tensors out;
  for (const auto& [name, line] : all)
    if (name.starts_with("optim.state.")) out.emplace(name, line);
  return out;
}

std::string optimizer_kind(FileSystem& fs, const std::string& path) {
  const OpenedCheckpoint opened = open_checkpoint(fs, path);
  const auto optims = canonical_optim_states(opened.manifest, find_roles(opened.manifest.state));
  return optims.empty() ? "" : optims.front().kind;
}

}  // namespace

TEST_CASE("the momentum of DeepSpeed's Muon is read whole from what each rank keeps of it") {
  Case muon("deepspeed_muon_zero2", "ckpt");
  const Tensors found = muon.read();
  CHECK(muon.missed(found) == Tensors{});
  for (const char* name : {"head.weight", "layers.0.up.weight", "layers.1.up.weight",
                           "layers.0.down.weight", "layers.1.down.weight"})
    CHECK_THAT(found.at("optim.state." + std::string(name) + ".momentum_buffer"),
               Contains("bfloat16"));
  CHECK(optimizer_kind(muon.fs, "/source") == "Muon, with AdamW for other groups");
}

TEST_CASE("Muon's momentum goes between stages and world sizes as DeepSpeed keeps it in each") {
  for (const char* from : {"deepspeed_muon_zero2", "deepspeed_muon_zero3"}) {
    Case muon(from, "ckpt");
    const Tensors before = muon.read();
    for (const int stage : {1, 2, 3}) {
      for (const int ranks : {1, 2, 3}) {
        const std::string to = "/to" + std::to_string(stage) + std::to_string(ranks);
        CAPTURE(from, stage, ranks);
        const Status status = muon.convert_to(to, ranks, "deepspeed-zero", [&](ConvertOptions& o) {
          o.own.set(kZeroStageFlag, stage);
          o.verify = true;
        });
        REQUIRE(status.code == Code::kOk);
        Tensors after = muon.read(to);
        CHECK(only_optimizer(after) == only_optimizer(before));
        CHECK(muon.missed(after) == Tensors{});
      }
    }
  }
}

TEST_CASE("a rank of Muon holds the momentum of every parameter that its part touches") {
  Case muon("deepspeed_muon_zero3", "ckpt");
  REQUIRE(muon.convert_to("/to", 2, "deepspeed-zero",
                          [](ConvertOptions& o) { o.own.set(kZeroStageFlag, 2); })
              .code == Code::kOk);
  // What DeepSpeed itself wrote for this model and these ranks: 66+60+60 and 60+60+60 elements.
  const OpenedCheckpoint opened = open_checkpoint(muon.fs, "/to");
  std::map<std::uint32_t, std::int64_t> held;
  for (const StoredTensor& tensor : opened.manifest.tensors)
    if (tensor.name.ends_with(".momentum_buffer"))
      held[opened.manifest.source(tensor, 0).file] += tensor.spec.shape.numel();
  CHECK(held.size() == 2);  // the border parameter is read from the first rank
  std::int64_t all = 0;
  for (const auto& [file, numel] : held) all += numel;
  CHECK(all == 66 + 4 * 60);
}

TEST_CASE("a pipeline of DeepSpeed without tensor parallelism is joined by name") {
  Case pipeline("deepspeed_pipeline", "ckpt");
  const Tensors found = pipeline.read();
  CHECK(pipeline.missed(found).empty());
  CHECK(found.contains("optim.state.0.word_embeddings.weight.exp_avg"));
  CHECK(found.contains("optim.state.3.final_linear.weight.exp_avg_sq"));
  const OpenedCheckpoint opened = open_checkpoint(pipeline.fs, "/source");
  CHECK_THAT(opened.manifest.dialect, Contains("pipeline of 2 stages"));
  CHECK(opened.manifest.world_size == 4);
  const auto optims = canonical_optim_states(opened.manifest, find_roles(opened.manifest.state));
  REQUIRE(optims.size() == 1);
  CHECK(optims[0].groups.size() == 1);  // both stages' are one
  CHECK(optims[0].groups[0].members.size() == 14);
  // Engines of other kinds load other files.
  const Status stage_2 = pipeline.convert_to(
      "/zero", 2, "deepspeed-zero", [](ConvertOptions& o) { o.own.set(kZeroStageFlag, 2); });
  CHECK(stage_2.code == Code::kUnsupported);
  CHECK_THAT(stage_2.message, Contains("pipeline") && Contains("stage 1"));
  CHECK(pipeline.convert_to("/universal", 1, "deepspeed-universal").code == Code::kUnsupported);
  REQUIRE(pipeline.convert_to("/dcp", 3, "torch-dcp").code == Code::kOk);
  CHECK(pipeline.missed(pipeline.read("/dcp")).empty());
}

TEST_CASE("a pipeline is written as its stages and layers, over any number of ranks") {
  Case pipeline("deepspeed_pipeline", "ckpt");
  const Tensors before = pipeline.read();
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    const std::string to = "/to" + std::to_string(ranks);
    REQUIRE(
        pipeline.convert_to(to, ranks, "deepspeed-zero", [](ConvertOptions& o) { o.verify = true; })
            .code == Code::kOk);
    CHECK(pipeline.read(to) == before);
    REQUIRE(pipeline
                .convert_to("", 2, "deepspeed-zero",
                            [&](ConvertOptions& o) {
                              o.source = to;
                              o.destination = to + ".back";
                            })
                .code == Code::kOk);
    for (const auto& entry : pipeline.fs.contents("/source/global_step2")) {
      if (!entry.first.ends_with(".pt")) continue;
      CAPTURE(entry.first);
      CHECK(pipeline.file(to + ".back/global_step2/" + entry.first) ==
            pipeline.file("/source/global_step2/" + entry.first));
    }
  }
  const Status renamed =
      pipeline.convert_to("/renamed", 2, "deepspeed-zero", [](ConvertOptions& o) {
        o.names.renames = {{"0.word_embeddings.*", "0.embed.*"}};
      });
  CHECK(renamed.code == Code::kUnsupported);
  CHECK_THAT(renamed.message, Contains("no longer"));
  const Status cast = pipeline.convert_to("/cast", 2, "deepspeed-zero", [](ConvertOptions& o) {
    o.transform.dtype = DType::kBFloat16;
  });
  CHECK(cast.code == Code::kUnsupported);
}

TEST_CASE("a pipeline's layers that are cut by tensor parallelism are refused as that") {
  Case pipeline("deepspeed_pipeline", "ckpt");
  const std::string folder = "/source/global_step2/";
  pipeline.fs.write_file(folder + "layer_01-model_01-model_states.pt",
                         pipeline.fs.read_file(folder + "layer_01-model_states.pt"));
  CHECK_THROWS_WITH(pipeline.read(), Contains("tensor parallelism (layer_01-model_01") &&
                                         !Contains("ds_to_universal"));
}

TEST_CASE("a stage of a pipeline that is missing is named") {
  Case pipeline("deepspeed_pipeline", "ckpt");
  const std::string folder = "/source/global_step2/";
  pipeline.fs.remove_file(folder + "mp_rank_00_model_states.pt");
  for (const int rank : {0, 1})
    pipeline.fs.remove_file(folder + "bf16_zero_pp_rank_" + std::to_string(rank) +
                            "_mp_rank_00_optim_states.pt");
  CHECK_THROWS_WITH(pipeline.read(), Contains("stage 0"));
}

TEST_CASE("a Universal Checkpoint of a pipeline, whose module is empty, is read") {
  Case universal("universal_of_pipeline", "universal");
  REQUIRE(universal.convert_to("/hf", std::nullopt, "hf").code == Code::kOk);
  CHECK(universal.missed(universal.read("/hf")).empty());
  const OpenedCheckpoint opened = open_checkpoint(universal.fs, "/source");
  const auto optims = canonical_optim_states(opened.manifest, find_roles(opened.manifest.state));
  REQUIRE(optims.size() == 1);
  REQUIRE(optims[0].groups.size() == 1);
  CHECK(optims[0].groups[0].members.size() == 14);
}

TEST_CASE("experts' fp32 weights are those that their bf16 files are rounded from") {
  Case moe("deepspeed_moe", "ckpt");
  REQUIRE(moe.convert_to("/hf", std::nullopt, "hf",
                         [](ConvertOptions& o) { o.transform.dtype = DType::kBFloat16; })
              .code == Code::kOk);
  const Tensors weights = moe.file("/hf", "safetensors");
  int experts = 0;
  for (const int layer : {0, 1})
    for (const int expert : {0, 1, 2, 3}) {
      const Tensors copies =
          moe.file("/source/global_step2/layer_" + std::to_string(layer) + "_expert_" +
                   std::to_string(expert) + "_mp_rank_00_model_states.pt");
      for (const auto& [name, line] : copies) {
        CAPTURE(name);
        REQUIRE(weights.contains(name));
        CHECK(weights.at(name) == line);
        ++experts;
      }
    }
  CHECK(experts == 2 * 4 * 4);
  const Tensors all = moe.read();
  CHECK(
      all.contains("optim.state.moe.1.deepspeed_moe.experts.deepspeed_experts.3.0.weight.exp_avg"));
  CHECK(all.contains("optim.state.moe.1.deepspeed_moe.gate.wg.weight.exp_avg"));
}

TEST_CASE("experts are written as the ranks that share them keep them") {
  Case moe("deepspeed_moe", "ckpt");
  const Tensors before = moe.read();
  const auto verify = [](ConvertOptions& o) { o.verify = true; };
  for (const int ranks : {2, 4, 6}) {
    CAPTURE(ranks);
    const std::string to = "/to" + std::to_string(ranks);
    REQUIRE(moe.convert_to(to, ranks, "deepspeed-zero", verify).code == Code::kOk);
    CHECK(moe.read(to) == before);
    // Another time, from what was written: the copies of 16 bits go along, and all else.
    REQUIRE(moe.convert_to(to, 2, "deepspeed-zero",
                           [&](ConvertOptions& o) {
                             o.source = to;
                             o.destination = to + ".back";
                           })
                .code == Code::kOk);
    for (const auto& entry : moe.fs.contents("/source/global_step2")) {
      if (!entry.first.ends_with(".pt")) continue;
      CAPTURE(entry.first);
      CHECK(moe.file(to + ".back/global_step2/" + entry.first) ==
            moe.file("/source/global_step2/" + entry.first));
    }
  }
  CHECK(moe.convert_to("/three", 3, "deepspeed-zero").code == Code::kInvalidArgument);
  const Status stage_3 = moe.convert_to("/stage3", 2, "deepspeed-zero",
                                        [](ConvertOptions& o) { o.own.set(kZeroStageFlag, 3); });
  CHECK(stage_3.code == Code::kUnsupported);
  CHECK_THAT(stage_3.message, Contains("stages 1 and 2"));
  CHECK(moe.convert_to("/universal", 1, "deepspeed-universal").code == Code::kUnsupported);
}

TEST_CASE("experts that DeepSpeed stacked are read whole, at every stage") {
  for (const char* name : {"deepspeed_autoep", "deepspeed_autoep_zero3"}) {
    CAPTURE(name);
    Case moe(name, "ckpt");
    const Tensors found = moe.read();
    CHECK(moe.missed(found) == Tensors{});
    // The router's second name is the router.
    CHECK(found.at("model.model.layers.1.mlp.gate.gate.weight") ==
          found.at("model.model.layers.1.mlp.router.gate.weight"));
    const OpenedCheckpoint opened = open_checkpoint(moe.fs, "/source");
    const auto optims = canonical_optim_states(opened.manifest, find_roles(opened.manifest.state));
    REQUIRE(optims.size() == 1);
    CHECK(optims[0].issues.empty());
    REQUIRE(optims[0].groups.size() == 2);
    CHECK(optims[0].groups[1].members.size() == 2 * 3);
    REQUIRE(
        moe.convert_to("/dcp", 3, "torch-dcp", [](ConvertOptions& o) { o.verify = true; }).code ==
        Code::kOk);
    CHECK(moe.read("/dcp") == found);
    for (const char* format : {"deepspeed-zero", "deepspeed-universal"}) {
      const Status refused = moe.convert_to("/ds", 1, format);
      CHECK(refused.code == Code::kUnsupported);
      CHECK_THAT(refused.message, Contains("AutoEP"));
    }
  }
}

TEST_CASE("experts that ranks hold in another order are refused by what they are") {
  const auto layers = [](std::vector<std::int64_t> first, std::vector<std::int64_t> second) {
    const auto rank = [](std::int64_t number, const std::vector<std::int64_t>& experts) {
      ValueList list;
      for (const std::int64_t expert : experts) list.push_back(Value::integer(expert));
      return Value::dict({{Value::string("rank"), Value::integer(number)},
                          {Value::string("experts"), Value::list(std::move(list))}});
    };
    const Value placement =
        Value::dict({{Value::string("ranks"), Value::list({rank(0, first), rank(1, second)})}});
    const Value layer =
        Value::dict({{Value::string("num_experts"), Value::integer(4)},
                     {Value::string("ep_size"), Value::integer(2)},
                     {Value::string("expert_placement"), placement},
                     {Value::string("expert_key_prefix"), Value::string("l.0.mlp.experts")}});
    return Value::dict({{Value::string("ds_autoep_layers"), Value::list({layer})}});
  };
  const Value healthy = layers({0, 1}, {2, 3});
  const deepspeed::StackedExperts stacked{Field(healthy)};
  CHECK(stacked.count("l.0.mlp.experts.w1") == 4);
  CHECK(!stacked.count("l.1.mlp.experts.w1"));
  CHECK(!stacked.count("l.0.mlp.experts.w1.3"));
  CHECK(stacked.row("l.0.mlp.experts.w1.3") == std::pair(std::string("l.0.mlp.experts.w1"), 3L));
  CHECK(!stacked.row("l.0.mlp.experts.w1.4"));
  CHECK(stacked.router("l.0.mlp.gate.gate.weight") == "l.0.mlp.router.gate.weight");
  CHECK(!stacked.router("l.0.mlp.experts.w1"));
  CHECK(!stacked.router("l.0.mlp.router.gate.weight"));
  CHECK(!stacked.router("l.0.self_attn.gate.weight"));
  for (const Value& odd : {layers({0, 2}, {1, 3}), layers({2, 3}, {0, 1}), layers({0, 1}, {2})}) {
    try {
      deepspeed::StackedExperts{Field(odd)};
      FAIL("taken");
    } catch (const Error& error) {
      CHECK(error.code() == Code::kUnsupported);
      CHECK_THAT(error.status().message, Contains("AutoEP"));
    }
  }
}

TEST_CASE("a lost file of stacked experts, and a lost rank, are findings") {
  for (const char* lost : {"layer_0_expert_2_mp_rank_00_model_states.pt",
                           "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"}) {
    CAPTURE(lost);
    Case moe("deepspeed_autoep", "ckpt");
    moe.fs.remove_file("/source/global_step2/" + std::string(lost));
    OpenOptions tolerant;
    tolerant.read.tolerate_damage = true;
    OpenedCheckpoint opened = open_checkpoint(moe.fs, "/source", tolerant);
    CHECK(std::ranges::any_of(opened.manifest.notes, [](const Note& note) {
      return note.code == Finding::kMissingFile && note.severity == Severity::kError;
    }));
  }
}

TEST_CASE("experts without ZeRO are read with their state, by names that each share's ids are") {
  Case moe("deepspeed_moe_plain", "ckpt");
  const Tensors found = moe.read();
  CHECK(moe.missed(found) == Tensors{});
  const auto of_state = [](const auto& item) {
    return item.first.starts_with("model.") || item.first.starts_with("optim.state.");
  };
  CHECK(std::ranges::count_if(found, of_state) == static_cast<std::ptrdiff_t>(moe.expected.size()));
  const OpenedCheckpoint opened = open_checkpoint(moe.fs, "/source");
  const auto optims = canonical_optim_states(opened.manifest, find_roles(opened.manifest.state));
  REQUIRE(optims.size() == 1);
  CHECK(optims[0].issues.empty());
  REQUIRE(optims[0].groups.size() == 2);
  CHECK(optims[0].groups[0].members.size() == 4);
  CHECK(optims[0].groups[1].members.size() == 2 * 4 * 4);
  REQUIRE(moe.convert_to("/dcp", 3, "torch-dcp", [](ConvertOptions& o) { o.verify = true; }).code ==
          Code::kOk);
  CHECK(moe.read("/dcp") == found);
  for (const char* format : {"deepspeed-zero", "deepspeed-universal"}) {
    const Status refused = moe.convert_to("/ds", 1, format);
    CHECK(refused.code == Code::kUnsupported);
    CHECK_THAT(refused.message, Contains("experts"));
  }
}

TEST_CASE("experts without ZeRO: a lost share is a finding, and stops nothing else") {
  Case moe("deepspeed_moe_plain", "ckpt");
  moe.fs.remove_file("/source/global_step2/expp_rank_0_mp_rank_00_optim_states.pt");
  CHECK_THROWS_AS(open_checkpoint(moe.fs, "/source"), Error);
  OpenOptions tolerant;
  tolerant.read.tolerate_damage = true;
  const OpenedCheckpoint opened = open_checkpoint(moe.fs, "/source", tolerant);
  CHECK(std::ranges::any_of(opened.manifest.notes, [](const Note& note) {
    return note.code == Finding::kMissingFile && note.severity == Severity::kError;
  }));
  CHECK(opened.manifest.find("model.moe.1.deepspeed_moe.experts.deepspeed_experts.3.0.weight") !=
        nullptr);
}

TEST_CASE("latent projections of Megatron's local layers are joined, and written as rows again") {
  Case mla("megatron_mla_pp2", "ckpt");
  const Tensors found = mla.read();
  CHECK(mla.missed(found).empty());
  CHECK_THAT(found.at("model.decoder.layers.0.self_attention.linear_q_down_proj.weight"),
             Contains("[8,8]"));
  REQUIRE(mla.convert_to("/same", std::nullopt, "megatron-torch",
                         [](ConvertOptions& o) { o.target.mesh = Mesh::parse("tp=2,pp=2"); })
              .code == Code::kOk);
  CHECK(mla.read("/same") == found);
  // Each rank's own tensors are as many and as large as before: the last stage's copy of the
  // embedding, which layers of further tokens need, among them.
  for (const char* rank :
       {"mp_rank_00_000", "mp_rank_00_001", "mp_rank_01_000", "mp_rank_01_001"}) {
    CAPTURE(rank);
    const std::string file = std::string(rank) + "/model_optim_rng.pt";
    CHECK(mla.file("/same/" + file) == mla.file("/source/iter_0000010/" + file));
  }
}

TEST_CASE(
    "what a core of 0.12 keeps of its optimizer besides state and groups is the optimizer's") {
  Case core("megatron_core_0_12", "ckpt");
  CHECK(core.missed(core.read()).empty());
  REQUIRE(core.convert_to("/hf", std::nullopt, "hf").code == Code::kOk);
  const Tensors weights = core.read("/hf");
  CHECK(weights.size() == 12);
  for (const auto& [name, line] : weights) CHECK(name.find("param_state") == name.npos);
  const OpenedCheckpoint opened = open_checkpoint(core.fs, "/source");
  const Roles roles = find_roles(opened.manifest.state);
  int steps = 0;
  for (std::size_t i = 0; i < roles.entries.size(); ++i)
    if (opened.manifest.state.entries[i].name.starts_with("optimizer.param_state.")) {
      CHECK(roles.entries[i].role == Role::kOptimGroup);
      ++steps;
    }
  CHECK(steps == 6);
  ConvertOptions options = convert_options("/source", "/dist", std::nullopt, "megatron-dist");
  options.target.mesh = Mesh::parse("tp=1,pp=1");
  const ConvertReport report = convert(core.fs, options);
  CHECK(std::ranges::any_of(report.notes, [](const Note& note) {
    return note.severity == Severity::kWarning && note.message.find("0.12") != note.message.npos;
  }));
}

TEST_CASE(
    "what Transformer Engine keeps on each rank is kept for the same mesh, refused for others") {
  Case engine("te_extra_state", "ckpt");
  const Tensors before = engine.read();
  const std::string name = "decoder.layers.0.mlp.linear_fc1._extra_state";
  CHECK_FALSE(before.contains("model." + name));
  CHECK(before.at("_extra_state.rank_0.model." + name) !=
        before.at("_extra_state.rank_1.model." + name));
  const auto to = [&](const std::string& path, const std::string& mesh, RankStatePolicy policy) {
    return engine.convert_to(path, std::nullopt, "megatron-torch", [&](ConvertOptions& o) {
      o.target.mesh = Mesh::parse(mesh);
      o.rank_state = policy;
    });
  };
  REQUIRE(to("/same", "tp=2", RankStatePolicy::kDefault).code == Code::kOk);
  for (const char* rank : {"mp_rank_00", "mp_rank_01"}) {
    const std::string file = std::string(rank) + "/model_optim_rng.pt";
    CHECK(engine.file("/same/" + file) == engine.file("/source/iter_0000100/" + file));
  }
  CHECK(to("/one", "tp=1", RankStatePolicy::kDefault).code != Code::kOk);
  REQUIRE(to("/one", "tp=1", RankStatePolicy::kDrop).code == Code::kOk);
  for (const auto& [key, line] : engine.read("/one")) CHECK(key.find("_extra_state") == key.npos);
}

TEST_CASE("nanotron's files of parameters and ranks become the whole model") {
  Case run("nanotron_tp2", "run");
  CHECK(run.read() == run.expected);  // by the pointer latest.txt
  const OpenedCheckpoint opened = open_checkpoint(run.fs, "/source");
  CHECK(opened.path == "/source/10");
  CHECK(opened.manifest.world_size == 2);
  CHECK(std::ranges::any_of(opened.manifest.notes, [](const Note& note) {
    return note.message.find("optimizer, random") != note.message.npos;
  }));
  REQUIRE(run.convert_to("/hf", std::nullopt, "hf").code == Code::kOk);
  CHECK(run.missed(run.read("/hf")).empty());
  // One layer's folder by itself is a part, and no damage.
  const Status part =
      status_of(run.fs, convert_options("/source/10/model/model/decoder/0/pp_block/attn/qkv_proj",
                                        "/x", std::nullopt, "torch-dcp"));
  CHECK(part.code == Code::kUnsupported);
  CHECK_THAT(part.message, Contains("nanotron"));
  // A rank's part that is missing leaves a hole, which is damage.
  run.fs.remove_file(
      "/source/10/model/model/lm_head/pp_block/"
      "model_weight_pp-rank-0-of-1_tp-rank-1-of-2.safetensors");
  CHECK_THROWS_WITH(run.read(), Contains("is in no chunk"));
}

TEST_CASE("slices in nanotron's metadata are checked against what they cut") {
  using nanotron::parse_shape;
  using nanotron::parse_slices;
  CHECK(parse_shape("(24, 8)") == Shape{24, 8});
  CHECK(parse_shape("(24,)") == Shape{24});
  CHECK(parse_shape("()") == Shape{});
  const auto pairs =
      parse_slices("((0,2,None),)#((2,4,None),);((2,4,None))#((6,8,None))", Shape{4}, Shape{8});
  REQUIRE(pairs.size() == 2);
  CHECK(pairs[1].local.origin[0] == 2);
  CHECK(pairs[1].whole.origin[0] == 6);
  CHECK(pairs[1].whole.shape == Shape{2});
  for (const char* text :
       {"", "(", "((0,2,None))", "((0,2,None))#((0,3,None))", "((0,5,None))#((0,5,None))",
        "((3,2,None))#((3,2,None))", "((-1,2,None))#((0,3,None))", "((0,2,None))#((0,2,None))x",
        "((0,2,None),(0,2,None))#((0,2,None))"})
    CHECK_THROWS_AS(parse_slices(text, Shape{4}, Shape{8}), Error);
  CHECK_THROWS_WITH(parse_slices("((0,4,2))#((0,4,2))", Shape{4}, Shape{8}), Contains("steps"));
  CHECK_THROWS_AS(parse_slices("((0,2,None))#((0,2,None))", Shape{4}, Shape{8, 1}), Error);
  for (const char* text : {"", "24", "(24", "(x)", "(-1)", "(1)x"})
    CHECK_THROWS_AS(parse_shape(text), Error);
}

TEST_CASE("shards of ColossalAI's optimizer are its state and its groups") {
  Case colossal("colossal_optimizer", "epoch-0_step-10");
  const OpenedContent found = content_at(colossal.fs, "/source/optimizer");
  CHECK(found.tensors.size() == 12);
  CHECK(found.tensors.contains("state.3.exp_avg_sq"));
  CHECK(found.values.at("param_groups.0.lr") == "0.001");
  const OpenedCheckpoint opened = open_checkpoint(colossal.fs, "/source/optimizer");
  for (const Note& note : opened.manifest.notes) CHECK(note.severity == Severity::kInfo);
}

TEST_CASE("Meta's model-parallel parts are joined by the names of Llama's modules") {
  Case llama("meta_two_shards", "llama");
  CHECK(llama.read() == llama.expected);
  const OpenedCheckpoint opened = open_checkpoint(llama.fs, "/source");
  CHECK_THAT(opened.manifest.dialect, Contains("2 model-parallel parts"));
  SECTION("a part in the middle that is missing is damage") {
    llama.fs.write_file("/source/consolidated.02.pth",
                        llama.fs.read_file("/source/consolidated.01.pth"));
    llama.fs.remove_file("/source/consolidated.01.pth");
    CHECK_THROWS_WITH(llama.read(), Contains("part 1 of 3 is missing"));
  }
  SECTION("so are parts that the width asks for") {
    llama.fs.write_file("/source/params.json", as_bytes(R"({"n_heads": 4, "head_dim": 8})"));
    CHECK_THROWS_WITH(llama.read(), Contains("16 of 32 rows"));
  }
}

}  // namespace tessera::families_test
