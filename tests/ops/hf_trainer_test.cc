// Folders of Hugging Face's Trainer: one state of weights and optimizer, whose ids are named as the
// live trainer named them.
#include <tessera/base/error.h>
#include <tessera/encoding/json.h>
#include <tessera/ops/verify.h>
#include <tessera/state/optim_state.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "lib/format/hf_trainer/parameter_order.h"
#include "tests/support/convert_case.h"
#include "tests/support/note_text.h"
#include "tests/support/open_case.h"
#include "tests/support/sample_case.h"
#include "tests/support/verify_case.h"

namespace hf_trainer_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

using Names = std::map<std::string, std::string>;  // id -> parameter

Names named_ids(const OpenedCheckpoint& opened, bool certain = true) {
  Names out;
  for (const OptimState& optim :
       canonical_optim_states(opened.manifest, find_roles(opened.manifest.state)))
    for (const OptimParameter& p : optim.parameters)
      if (p.inferred && p.certain == certain) out[p.stored_key] = p.fqn;
  return out;
}

Names expected_ids(const std::string& sample) {
  Names out;
  const SampleCase oracle(sample);
  for (const auto& [id, name] : oracle.expected.find("param_id_to_fqn")->as_dict())
    out[id.as_string()] = name.as_string();
  return out;
}

void rename_weights(MemoryFileSystem& fs, std::string_view from, std::string_view to) {
  REQUIRE(from.size() == to.size());
  edit(fs, "/source/model.safetensors", [&](Bytes& bytes) {
    std::string text(as_text(bytes));
    for (std::size_t at = text.find(from); at != text.npos; at = text.find(from, at))
      text.replace(at, from.size(), to);
    bytes.assign(as_bytes(text).begin(), as_bytes(text).end());
  });
}

}  // namespace

TEST_CASE("a trainer's folder is one state, and its ids are the parameters that the trainer had") {
  for (const std::string& name : sample_names("hf-trainer")) {
    INFO(name);
    MemoryFileSystem fs;
    load_sample(fs, name);
    const OpenedCheckpoint opened = open_checkpoint(fs, "/source");
    CHECK(opened.driver->id() == "hf-trainer");
    CHECK(named_ids(opened) == expected_ids(name));
    CHECK(named_ids(opened, /*certain=*/false).empty());
    CHECK(opened.notes.empty());
    std::vector<std::string> beside;
    for (const Beside& file : opened.beside) beside.push_back(file.path);
    CHECK(beside ==
          std::vector<std::string>{"rng_state.pth", "trainer_state.json", "training_args.bin"});
  }
}

TEST_CASE("a conversion of a trainer's folder takes the optimizer along, by ids or by names") {
  for (const std::string& name : sample_names("hf-trainer")) {
    INFO(name);
    MemoryFileSystem fs;
    load_sample(fs, name);
    const SampleCase oracle(name);
    const auto content = expected_content(oracle.expected);
    ConvertOptions by_id = convert_options("/source", "/ids", 2, "torch-dcp");
    by_id.verify = true;
    const ConvertReport report = convert(fs, by_id);
    CHECK(report.published);
    CHECK(report.balance.left_out().empty());
    OpenedCheckpoint ids = open_checkpoint(fs, "/ids");
    ids.locate_all({});
    CHECK(content_of(ids.manifest, *ids.directory) == content);
    CHECK(named_ids(ids) == expected_ids(name));

    ConvertOptions by_name = convert_options("/source", "/names", 2, "torch-dcp");
    by_name.optim_keys = OptimKeys::kFqn;
    convert(fs, by_name);
    OpenedCheckpoint names = open_checkpoint(fs, "/names");
    names.locate_all({});
    const auto named = content_of(names.manifest, *names.directory);
    for (const auto& [id, fqn] : expected_ids(name))
      for (const char* leaf : {"exp_avg", "exp_avg_sq", "step"})
        CHECK(named.at("optimizer.state." + fqn + "." + leaf) ==
              content.at("optimizer.state." + id + "." + leaf));
  }
}

TEST_CASE("a reshard of a trainer's folder is such a folder again, with what lies beside it") {
  for (const std::string& name : sample_names("hf-trainer")) {
    INFO(name);
    MemoryFileSystem fs;
    load_sample(fs, name);
    ConvertOptions options = convert_options("/source", "/again", 1);
    options.verify = true;
    options.copy_assets = true;
    const ConvertReport report = convert(fs, options);
    CHECK(report.to == "hf-trainer");
    CHECK(report.balance.left_behind.empty());
    CHECK_FALSE(std::ranges::any_of(report.notes, [](const Note& note) {
      return note.file == "trainer_state.json";  // copied, and not said to be left
    }));
    for (const char* file : {"rng_state.pth", "trainer_state.json", "training_args.bin"})
      CHECK(fs.read_file(std::string("/again/") + file) ==
            fs.read_file(std::string("/source/") + file));
    OpenedCheckpoint again = open_checkpoint(fs, "/again");
    CHECK(again.driver->id() == "hf-trainer");
    again.locate_all({});
    CHECK(content_of(again.manifest, *again.directory) ==
          expected_content(SampleCase(name).expected));
    CHECK(named_ids(again) == expected_ids(name));
    CHECK(verify(fs, "/again").ok);
    // Hugging Face's loaders take no file that does not say so.
    const bool adapter = fs.stat("/source/adapter_model.safetensors").has_value();
    const OpenedCheckpoint weights = open_checkpoint(
        fs, adapter ? "/again/adapter_model.safetensors" : "/again/model.safetensors");
    CHECK(weights.manifest.provenance.at("__metadata__.format") == "pt");
    CHECK(weights.manifest.provenance.size() == 1);
  }
}

TEST_CASE("several models of a run are one state, each with its optimizer") {
  MemoryFileSystem fs;
  load_sample(fs, "hf-trainer/llama_adamw");
  const auto put = [&](const char* from, const char* to) {
    fs.write_file(std::string("/source/") + to, fs.read_file(std::string("/source/") + from));
  };
  // As accelerate's save_state numbers them.
  put("model.safetensors", "model_1.safetensors");
  put("optimizer.pt", "optimizer_1.pt");
  put("scheduler.pt", "scheduler_1.pt");
  OpenedCheckpoint opened = open_checkpoint(fs, "/source");
  CHECK(opened.driver->id() == "hf-trainer");
  CHECK(opened.notes.empty());
  const std::vector<OptimState> found =
      canonical_optim_states(opened.manifest, find_roles(opened.manifest.state));
  REQUIRE(found.size() == 2);
  const Names want = expected_ids("hf-trainer/llama_adamw");
  for (std::size_t i = 0; i < found.size(); ++i) {
    CHECK(found[i].root == (i == 0 ? "optimizer" : "optimizer_1"));
    CHECK(found[i].issues.empty());
    CHECK(found[i].parameters.size() == want.size());
    for (const OptimParameter& p : found[i].parameters) {
      CHECK(p.fqn == want.at(p.stored_key));
      REQUIRE(p.weight != kNoTensor);
      CHECK(opened.manifest.tensors[p.weight].name == (i == 0 ? "model." : "model_1.") + p.fqn);
    }
  }
  opened.locate_all({});
  const auto content = content_of(opened.manifest, *opened.directory);
  CHECK(content.contains("model_1.model.norm.weight"));
  CHECK(content.contains("optimizer_1.state.0.exp_avg"));

  ConvertOptions options = convert_options("/source", "/again", 1);
  options.verify = true;
  CHECK(convert(fs, options).balance.left_out().empty());
  for (const char* file : {"model.safetensors", "model_1.safetensors", "optimizer.pt",
                           "optimizer_1.pt", "scheduler.pt", "scheduler_1.pt"}) {
    INFO(file);
    CHECK(fs.stat(std::string("/again/") + file));
  }
  OpenedCheckpoint again = open_checkpoint(fs, "/again");
  again.locate_all({});
  CHECK(content_of(again.manifest, *again.directory) == content);
  ConvertOptions sharded = convert_options("/source", "/dcp", 2, "torch-dcp");
  sharded.verify = true;
  CHECK(convert(fs, sharded).balance.left_out().empty());
  OpenedCheckpoint dcp = open_checkpoint(fs, "/dcp");
  dcp.locate_all({});
  CHECK(content_of(dcp.manifest, *dcp.directory) == content);
}

TEST_CASE("a trainer's folder made of another format has the ids that the trainer gave") {
  for (const std::string& name : sample_names("hf-trainer")) {
    for (const OptimKeys keys : {OptimKeys::kFqn, OptimKeys::kKeep}) {
      INFO(name << (keys == OptimKeys::kFqn ? " by names" : " by ids"));
      MemoryFileSystem fs;
      load_sample(fs, name);
      ConvertOptions there = convert_options("/source", "/dcp", 2, "torch-dcp");
      there.optim_keys = keys;
      convert(fs, there);
      ConvertOptions back = convert_options("/dcp", "/back", 1, "hf-trainer");
      back.verify = true;
      const ConvertReport report = convert(fs, back);
      CHECK(report.published);
      CHECK(report.balance.left_out().empty());
      CHECK(std::ranges::any_of(report.notes, [](const Note& note) {
        return has(note.message, "no trainer_state.json");
      }));
      OpenedCheckpoint again = open_checkpoint(fs, "/back");
      CHECK(again.driver->id() == "hf-trainer");
      again.locate_all({});
      CHECK(content_of(again.manifest, *again.directory) ==
            expected_content(SampleCase(name).expected));
      if (fs.stat("/source/config.json"))
        fs.write_file("/back/config.json", fs.read_file("/source/config.json"));
      CHECK(named_ids(open_checkpoint(fs, "/back")) == expected_ids(name));
    }
  }
}

TEST_CASE("files without which a trainer does not resume, or forgets its optimizer, are missed") {
  const auto warned = [](const ConvertReport& report, std::string_view words) {
    return std::ranges::count_if(report.notes, [words](const Note& note) {
      return note.severity == Severity::kWarning && has(note.message, words);
    });
  };
  MemoryFileSystem fs;
  load_sample(fs, "hf-trainer/llama_adamw");
  REQUIRE(fs.stat("/source/scheduler.pt"));
  convert(fs, convert_options("/source", "/dcp", 2, "torch-dcp"));
  // The leaves of a schedule are there, its list of empty dicts is not: DCP has no place for one.
  const ConvertReport leaves = convert(fs, convert_options("/dcp", "/leaves", 1, "hf-trainer"));
  CHECK(fs.stat("/leaves/scheduler.pt"));
  CHECK(warned(leaves, "no trainer_state.json") == 1);
  CHECK(warned(leaves, "no scheduler.pt") == 0);
  CHECK(warned(leaves, "no lr_lambdas") == 1);
  // torch.save keeps it.
  convert(fs, convert_options("/source", "/whole.pt", 1, "torch-save"));
  const ConvertReport whole = convert(fs, convert_options("/whole.pt", "/whole", 1, "hf-trainer"));
  CHECK(fs.stat("/whole/scheduler.pt"));
  CHECK(warned(whole, "no lr_lambdas") == 0);
  // No schedule at all.
  ConvertOptions bare = convert_options("/source", "/bare", 2, "torch-dcp");
  bare.selection.exclude = {"scheduler.*"};
  convert(fs, bare);
  const ConvertReport none = convert(fs, convert_options("/bare", "/none", 1, "hf-trainer"));
  CHECK_FALSE(fs.stat("/none/scheduler.pt"));
  CHECK(warned(none, "no scheduler.pt") == 1);
  CHECK(warned(none, "no lr_lambdas") == 0);
  // What lies beside the source travels.
  for (const char* name : {"scheduler.pt", "trainer_state.json"})
    fs.write_file(std::string("/bare/") + name, fs.read_file(std::string("/source/") + name));
  const ConvertReport beside = convert(fs, convert_options("/bare", "/beside", 1, "hf-trainer"));
  CHECK(fs.stat("/beside/scheduler.pt"));
  CHECK(warned(beside, "the result has no") == 0);
}

TEST_CASE("an optimizer whose groups are not the trainer's is regrouped where that is sure") {
  MemoryFileSystem fs;
  load_sample(fs, "hf-trainer/llama_adamw");
  ConvertOptions flat = convert_options("/source", "/dcp", 2, "torch-dcp");
  flat.optim_keys = OptimKeys::kFqn;
  convert(fs, flat);
  // Names that no model has, in the groups that the trainer made: their order is the optimizer's.
  ConvertOptions renamed = convert_options("/dcp", "/known", 1, "hf-trainer");
  renamed.names.renames = {{"*gate_proj*", "*gate_prej*"}};
  convert(fs, renamed);
  Names ids;
  for (auto [id, fqn] : expected_ids("hf-trainer/llama_adamw")) {
    if (const std::size_t at = fqn.find("gate_proj"); at != fqn.npos)
      fqn.replace(at, 9, "gate_prej");
    ids[id] = fqn;
  }
  CHECK(named_ids(open_checkpoint(fs, "/known")) == ids);
  // A name that says "no decay", in the group that decays: these groups are not the trainer's.
  renamed.destination = "/unknown";
  renamed.names.renames = {{"*gate_proj*", "*gate_norm*"}};
  const Status unknown = status_of(fs, renamed);
  CHECK(unknown.code == Code::kUnsupported);
  CHECK(has(unknown.message, "in which order"));
  CHECK(has(unknown.hint, "--optim-keys id"));
  renamed.optim_keys = OptimKeys::kId;
  CHECK(convert(fs, renamed).published);
}

TEST_CASE("FSDP's full state dict is one state, by names, and stays one") {
  MemoryFileSystem fs;
  load_sample(fs, "accelerate/fsdp2_full_w2");
  const auto content = expected_content(SampleCase("accelerate/fsdp2_full_w2").expected);
  OpenedCheckpoint opened = open_checkpoint(fs, "/source");
  CHECK(opened.driver->id() == "hf-trainer");
  opened.locate_all({});
  CHECK(content_of(opened.manifest, *opened.directory) == content);
  ConvertOptions again = convert_options("/source", "/again", 1);
  again.verify = true;
  CHECK(convert(fs, again).published);
  CHECK(fs.stat("/again/pytorch_model_fsdp.bin"));
  CHECK(fs.stat("/again/optimizer.bin"));
  OpenedCheckpoint written = open_checkpoint(fs, "/again");
  written.locate_all({});
  CHECK(content_of(written.manifest, *written.directory) == content);
  // Trainer without FSDP keeps ids.
  ConvertOptions plain = convert_options("/source", "/plain", 1);
  plain.optim_keys = OptimKeys::kId;
  CHECK(convert(fs, plain).published);
  CHECK(fs.stat("/plain/model.safetensors"));
  CHECK(fs.stat("/plain/optimizer.pt"));
  // Trainer saves the model beside it, which FSDP does not read.
  fs.write_file("/source/model.safetensors", fs.read_file("/plain/model.safetensors"));
  CHECK(open_checkpoint(fs, "/source").manifest.find("optimizer.state.lm_head.weight.exp_avg") !=
        nullptr);
  // A cut file is found.
  edit(fs, "/source/optimizer.bin", [](Bytes& bytes) { bytes.resize(bytes.size() / 2); });
  CHECK(find(verify(fs, "/source"), "CK042", "optimizer.bin") != nullptr);
}

TEST_CASE("accelerate's names of files stay where its folder is written again") {
  MemoryFileSystem fs;
  load_sample(fs, "hf-trainer/llama_adamw");
  for (const char* stem : {"optimizer", "scheduler"}) {
    const std::string path = std::string("/source/") + stem;
    fs.write_file(path + ".bin", fs.read_file(path + ".pt"));
    fs.remove_file(path + ".pt");
  }
  convert(fs, convert_options("/source", "/again", 1));
  CHECK(fs.stat("/again/optimizer.bin"));
  CHECK(fs.stat("/again/scheduler.bin"));
  CHECK_FALSE(fs.stat("/again/optimizer.pt"));
}

TEST_CASE("another adapter of the model, in a folder of its name, is named and left behind") {
  MemoryFileSystem fs;
  load_sample(fs, "hf-trainer/llama_lora");
  fs.create_directory("/source/other one");
  fs.write_file("/source/other one/adapter_model.safetensors",
                fs.read_file("/source/adapter_model.safetensors"));
  const OpenedCheckpoint opened = open_checkpoint(fs, "/source");
  CHECK(opened.driver->id() == "hf-trainer");
  CHECK(opened.beside.at(0).path == "other one");
  CHECK(opened.beside[0].what == "an adapter");
  const ConvertReport report = convert(fs, convert_options("/source", "/again", 1));
  REQUIRE(report.balance.left_behind.size() == 1);
  CHECK(report.balance.left_behind[0].path == "other one");
}

TEST_CASE("hf-trainer is a model with its optimizer on one rank") {
  MemoryFileSystem fs;
  load_sample(fs, "hf-trainer/llama_lora");
  CHECK(status_of(fs, convert_options("/source", "/three", 3)).code == Code::kUnsupported);
  convert(fs, convert_options("/source/adapter_model.safetensors", "/alone", 1, "torch-dcp"));
  CHECK(has(status_of(fs, convert_options("/alone", "/none", 1, "hf-trainer")).hint, "--to hf"));
  ConvertOptions model = convert_options("/source", "/model", 1);
  model.selection.only = Part::kModel;
  const Status alone = status_of(fs, model);
  CHECK(alone.code == Code::kUnsupported);
  CHECK(has(alone.hint, "--to hf"));
}

TEST_CASE("a trainer's weights alone are what --to hf and --only model take") {
  MemoryFileSystem fs;
  load_sample(fs, "hf-trainer/llama_adamw");
  CHECK(convert(fs, convert_options("/source", "/hf", std::nullopt, "hf")).published);
  const OpenedCheckpoint hf = open_checkpoint(fs, "/hf");
  CHECK(hf.manifest.tensors.size() == 21);
  CHECK(hf.manifest.find("model.layers.1.mlp.up_proj.weight") != nullptr);
  ConvertOptions model = convert_options("/source", "/model", 1, "torch-dcp");
  model.selection.only = Part::kModel;
  CHECK(convert(fs, model).published);
  CHECK(open_checkpoint(fs, "/model").manifest.tensors.size() == 21);
  // A part that is named is read alone.
  CHECK(open_checkpoint(fs, "/source/model.safetensors").driver->id() == "safetensors");
  CHECK(open_checkpoint(fs, "/source/optimizer.pt").driver->id() == "torch-save");
}

TEST_CASE("an optimizer's file that is cut is a finding, and the weights can be had without it") {
  MemoryFileSystem fs;
  load_sample(fs, "hf-trainer/llama_adamw");
  edit(fs, "/source/optimizer.pt", [](Bytes& bytes) { bytes.resize(bytes.size() / 2); });
  const VerifyReport report = verify(fs, "/source");
  CHECK_FALSE(report.ok);
  CHECK(find(report, "CK042", "optimizer.pt") != nullptr);
  const Status whole = status_of(fs, convert_options("/source", "/out", 1, "torch-dcp"));
  CHECK(whole.code == Code::kCorrupt);
  ConvertOptions model = convert_options("/source", "/model", 1, "torch-dcp");
  model.selection.only = Part::kModel;
  const ConvertReport kept = convert(fs, model);
  CHECK(kept.published);
  CHECK(by_code(kept.notes).contains("ELSEWHERE"));
  CHECK(convert(fs, convert_options("/source", "/hf", std::nullopt, "hf")).published);
}

TEST_CASE("ids of a model whose order is not known stay without names unless shapes decide") {
  MemoryFileSystem fs;
  load_sample(fs, "hf-trainer/llama_adamw");
  rename_weights(fs, "gate_proj", "gate_prej");
  const OpenedCheckpoint opened = open_checkpoint(fs, "/source");
  Names names = named_ids(opened);
  for (const auto& [id, name] : names) CHECK(expected_ids("hf-trainer/llama_adamw").at(id) == name);
  CHECK(names.size() < 21);
  const auto optims = canonical_optim_states(opened.manifest, find_roles(opened.manifest.state));
  REQUIRE(optims.size() == 1);
  REQUIRE(optims[0].issues.size() == 1);
  CHECK(optims[0].issues[0].code == Finding::kAmbiguousIds);
  CHECK(has(optims[0].issues[0].message, "21 integer ids"));
  ConvertOptions by_name = convert_options("/source", "/names", 2, "torch-dcp");
  by_name.optim_keys = OptimKeys::kFqn;
  const Status refused = status_of(fs, by_name);
  CHECK(refused.code == Code::kUnsupported);
  CHECK(has(refused.message, "stored in the order of their names"));
  CHECK(convert(fs, convert_options("/source", "/ids", 2, "torch-dcp")).published);
}

TEST_CASE("an averaged copy or a further head beside a trainer's weights is no part of them") {
  const std::string sample = "hf-trainer/llama_adamw";
  MemoryFileSystem fs;
  load_sample(fs, sample);
  const std::size_t tensors = open_checkpoint(fs, "/source").manifest.tensors.size();
  const auto beside = [&] {
    const OpenedCheckpoint opened = open_checkpoint(fs, "/source");
    CHECK(opened.manifest.tensors.size() == tensors);
    return std::ranges::count(opened.beside, "other.safetensors", &Beside::path);
  };
  fs.write_file("/source/other.safetensors", fs.read_file("/source/model.safetensors"));
  CHECK(beside() == 1);
  rename_weights(fs, "model.", "other.");
  const Bytes renamed = fs.read_file("/source/model.safetensors");
  load_sample(fs, sample);
  fs.write_file("/source/other.safetensors", renamed);
  CHECK(beside() == 1);
}

TEST_CASE("weights of two models beside one optimizer are not joined with it") {
  MemoryFileSystem fs;
  load_sample(fs, "hf-trainer/llama_lora");
  fs.write_file("/base.safetensors", fs.read_file("/source/adapter_model.safetensors"));
  fs.write_file("/source/model.safetensors", fs.read_file("/base.safetensors"));
  CHECK(refusal(fs, "/source").code != Code::kOk);
}

TEST_CASE("the order of a model's parameters is that of its modules, by type and by names") {
  using hf_trainer::order_of_model;
  const auto order = [](std::vector<std::string_view> names, std::string_view type) {
    return order_of_model(names, type);
  };
  using Order = std::vector<std::size_t>;
  const std::vector<std::string_view> head = {"classifier.dense.weight",
                                              "roberta.encoder.layer.10.output.dense.bias",
                                              "roberta.encoder.layer.2.output.dense.weight"};
  CHECK(order(head, "roberta") == Order{2, 1, 0});
  CHECK(order(head, "xlm-roberta") == Order{0, 2, 1});
  CHECK_FALSE(order(head, ""));  // both have these modules
  const std::vector<std::string_view> bart = {"model.encoder.layers.0.self_attn.k_proj.weight",
                                              "model.encoder.layers.0.self_attn.q_proj.weight"};
  CHECK(order(bart, "") == Order{0, 1});
  const std::vector<std::string_view> llama = {
      "base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight",
      "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"};
  CHECK(order(llama, "") == Order{1, 0});
  CHECK_FALSE(order({"a.weight", "b.weight"}, ""));
  CHECK_FALSE(order({"model.layers.0.weight", "model.layers.x.weight"}, "llama"));
}

}  // namespace hf_trainer_test
