// What somebody types in the first hours, and must be answered well.
#include <tessera/encoding/json.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "tests/support/run_command.h"
#include "tests/support/safetensors_file.h"

namespace newcomer_test {

using namespace tessera;
using namespace tessera::testing;
using Catch::Matchers::Contains;

namespace {

void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

/// A run of three saves, of which the second lacks its metadata.
void make_run(const TemporaryFolder& t) {
  for (const char* step : {"step-1", "step-2", "step-3"})
    std::filesystem::copy(case_path("dcp/fsdp2_w2"), t / step,
                          std::filesystem::copy_options::recursive);
  std::filesystem::remove(t / "step-2/.metadata");
}

/// One tensor of `count` zeros called `name`.
std::string zeros(const std::string& name, std::size_t count) {
  const std::string header = "{\"" + name + "\":{\"dtype\":\"F32\",\"shape\":[" +
                             std::to_string(count) + "],\"data_offsets\":[0," +
                             std::to_string(4 * count) + "]}}";
  return safetensors_of(header, std::string(4 * count, '\0'));
}

}  // namespace

TEST_CASE("verify of several reports on each, whatever one of them is") {
  const TemporaryFolder t;
  make_run(t);
  const std::vector<std::string> paths{t / "step-1", t / "step-2", t / "absent", t / "step-3"};
  std::vector<std::string> words{"verify"};
  words.insert(words.end(), paths.begin(), paths.end());
  const CommandResult human = inspect(words);
  CHECK(human.exit == 4);
  for (const std::string& path : paths) CHECK_THAT(human.out, Contains(path));
  CHECK_THAT(human.out, Contains("CK001") && Contains("no .metadata"));
  CHECK_THAT(human.err, Contains("no .metadata"));
  words.insert(words.end(), {"--format", "json"});
  const CommandResult json = inspect(words);
  CHECK(json.exit == 4);
  const Value document = parse_json(as_bytes(json.out));
  const ValueList& checkpoints = document.find("checkpoints")->as_list();
  REQUIRE(checkpoints.size() == 4);
  const bool ok[] = {true, false, false, true};
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(checkpoints[i].find("path")->as_string() == paths[i]);
    CHECK(checkpoints[i].find("ok")->as_bool() == ok[i]);
  }
  CHECK(inspect({"verify", t / "step-1", t / "step-3"}).exit == 0);
  CHECK(inspect({"verify", t / "step-1", t / "absent"}).exit == 3);
}

TEST_CASE("a short file is one line for all that it took along") {
  const TemporaryFolder t;
  make_run(t);
  std::filesystem::resize_file(t / "step-1/__1_0.distcp", 100);
  const CommandResult result = inspect({"verify", t / "step-1"});
  CHECK(result.exit == 1);
  CHECK_THAT(result.out, Contains("__1_0.distcp is ") && Contains(" short: "));
  const std::size_t first = result.out.find("__1_0.distcp");
  CHECK(result.out.find("__1_0.distcp", first + 1) == std::string::npos);
}

TEST_CASE("a type's short name is known to every flag that takes a type") {
  const TemporaryFolder t;
  write_text(t / "a.safetensors", zeros("w", 4));
  REQUIRE(convert({t / "a.safetensors", t / "b.safetensors", "--dtype", "bf16"}).exit == 0);
  for (const char* name : {"bf16", "bfloat16", "torch.bfloat16", "BF16"})
    CHECK(inspect({"diff", t / "a.safetensors", t / "b.safetensors", "--as", name}).exit == 0);
  const CommandResult wrong =
      inspect({"diff", t / "a.safetensors", t / "b.safetensors", "--as", "bf61"});
  CHECK(wrong.exit == 2);
  CHECK_THAT(wrong.err, Contains("bf16"));
}

TEST_CASE("help names the formats that can be written, and completion offers no others") {
  for (const auto& result : {convert({"--help"}), reshard({"--help"})})
    for (const char* format : {"torch-dcp", "torch-save", "torch-rank-files", "safetensors", "hdf5",
                               "deepspeed-zero", "deepspeed-universal", "megatron-torch", "hf"})
      CHECK_THAT(result.out, Contains(format));
  const std::string bash = convert({"--generate", "bash"}).out;
  const std::size_t to = bash.find("--to)");
  REQUIRE(to != std::string::npos);
  CHECK(bash.substr(to, bash.find(";;", to) - to).find("torchsnapshot") == std::string::npos);
}

TEST_CASE("an address gets the command that brings the model, never one that brings a page") {
  const std::pair<const char*, const char*> cases[] = {
      {"https://huggingface.co/gpt2", "hf download gpt2 --local-dir DIR"},
      {"https://huggingface.co/meta-llama/Llama-3-8B/tree/main",
       "hf download meta-llama/Llama-3-8B --local-dir DIR"},
      {"https://huggingface.co/a/b/blob/main/model.safetensors", "hf download a/b"},
      {"https://huggingface.co/a/b/resolve/main/model.safetensors", "curl -LO https://"},
      {"https://example.org/about", "page"}};
  for (const auto& [address, hint] : cases) {
    const CommandResult result = inspect({address});
    CHECK(result.exit == 5);
    CHECK_THAT(result.err, Contains(hint));
  }
  CHECK_THAT(inspect({"https://example.org/about"}).err, !Contains("curl"));
}

TEST_CASE("names are whole where no terminal cuts them") {
  const TemporaryFolder t;
  const std::string name = "model.language_model.layers.17.self_attn.rotary_projection." +
                           std::string(120, 'q') + ".weight";
  write_text(t / "a.safetensors", zeros(name, 4));
  write_text(t / "b.safetensors", zeros(name, 8));
  for (const char* verb : {"ls", "stat", "hash"})
    CHECK_THAT(inspect({verb, t / "a.safetensors"}).out, Contains(name));
  CHECK_THAT(inspect({"diff", t / "a.safetensors", t / "b.safetensors"}).out, Contains(name));
}

TEST_CASE("a limit on the size of files is a failure with a message, and leaves nothing") {
  const TemporaryFolder t;
  write_text(t / "a.safetensors", zeros("w", 1 << 18));
  const CommandResult result =
      run_command({"/bin/bash", "-c", "ulimit -f 64; exec \"$0\" \"$@\"", built("ckpt-convert"),
                   t / "a.safetensors", t / "out", "--to", "torch-dcp"});
  CHECK((result.exit == 3 || result.exit == 6));
  CHECK_THAT(result.err, Contains("limit"));
  CHECK(t.names() == std::vector<std::string>{"a.safetensors"});
}

TEST_CASE("a report may come through a pipe, and names that are no text agree with themselves") {
  const TemporaryFolder t;
  write_text(t / "a.safetensors", zeros("w", 4));
  const CommandResult piped = run_command(
      {"/bin/bash", "-c", "\"$0\" verify \"$1\" --against <(\"$0\" hash \"$1\" --format json)",
       built("ckpt-inspect"), t / "a.safetensors"});
  INFO(piped.err);
  CHECK(piped.exit == 0);
}

TEST_CASE("findings stand below their checkpoint, and a failure names it") {
  const TemporaryFolder t;
  make_run(t);
  std::filesystem::resize_file(t / "step-3/__1_0.distcp", 100);
  const CommandResult result = inspect({"verify", t / "step-1", t / "step-2", t / "step-3"});
  const std::size_t ok = result.out.find("step-1  (full)");
  const std::size_t damaged = result.out.find("step-3  ");
  REQUIRE(ok < damaged);
  REQUIRE(damaged != std::string::npos);
  CHECK(result.out.find("__1_0.distcp is ") > damaged);
  CHECK_THAT(result.err, Contains("step-2/.metadata]"));
  const CommandResult run = inspect({t.path()});
  CHECK_THAT(run.out, Contains("step-3: __1_0.distcp: "));
  CHECK_THAT(inspect({"audit", t.path()}).out, Contains("[step-3] __1_0.distcp: "));
}

TEST_CASE("salvage for a hub says whether the model is whole, and not what it does not write") {
  const TemporaryFolder t;
  make_run(t);
  const std::string file = t / "step-1/__1_0.distcp";
  // Its last records are the optimizer's.
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 5000);
  const CommandResult whole = convert({t / "step-1", t / "whole", "--to", "hf", "--salvage"});
  CHECK(whole.exit == 0);
  CHECK_THAT(whole.out, Contains("the model is whole; of the optimizer") && !Contains("CK011"));
  // A rank of a sharded model holds a part of each tensor; steps lie with the other rank.
  std::filesystem::remove(t / "step-3/__0_0.distcp");
  const CommandResult lost = convert(
      {t / "step-3", t / "lost", "--to", "hf", "--salvage", "--exclude", "model.scale_history"});
  CHECK(lost.exit == 4);
  CHECK_THAT(lost.err, Contains("nothing of the model is whole") && Contains("__0_0.distcp"));
}

TEST_CASE("a wrong word is answered with the right one") {
  const TemporaryFolder t;
  write_text(t / "a.safetensors", zeros("model.model.layers.0.q_proj.weight", 4));
  const std::string a = t / "a.safetensors";
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"show", a, "q_proj.weight"}, "did you mean \"model.model.layers.0.q_proj.weight\"?"},
      {{"show", a, "model.layers"}, "did you mean \"model.model.layers\"?"},
      {{"ls", a, "*q_proj*"}, "hint: --include '*q_proj*' chooses by name"},
      {{"diff", a, a, "--top", "3"}, "did you mean -n?"},
      {{"optim", a, "-n", "3"}, "did you mean --top?"},
      {{"meta-llama/Llama-3-8B"}, "hf download meta-llama/Llama-3-8B --local-dir DIR"}};
  for (const auto& [words, answer] : cases) {
    INFO(words[0]);
    CHECK_THAT(inspect(words).err, Contains(answer));
  }
  CHECK_THAT(inspect({"summary", "-v", a}).err, Contains("unknown flag -v") && !Contains("mean"));
}

TEST_CASE("one hint compares a whole state with its model in another type") {
  const TemporaryFolder t;
  const std::string source = case_path("dcp/fsdp2_w2");
  REQUIRE(convert({source, t / "hub", "--to", "hf", "--dtype", "bf16"}).exit == 0);
  CHECK_THAT(inspect({"diff", source, t / "hub"}).out,
             Contains("below \"model\", of another type: --root-a model --as bfloat16"));
  CHECK_THAT(inspect({"diff", t / "hub", source}).out, Contains("--root-b model --as bfloat16"));
  CHECK(inspect({"diff", source, t / "hub", "--root-a", "model", "--as", "bfloat16"}).exit == 0);
}

TEST_CASE("the tensor that changed most keeps its name on a narrow terminal") {
  const TemporaryFolder t;
  const std::string name = "model.layers.0.post_attention_layernorm.weight";
  write_text(t / "a.safetensors", zeros(name, 4));
  std::string other = zeros(name, 4);
  other.back() = '?';
  write_text(t / "b.safetensors", other);
  CommandOptions narrow;
  narrow.environment["COLUMNS"] = "80";
  CHECK_THAT(
      inspect({"diff", t / "a.safetensors", t / "b.safetensors", "--by", "layer"}, narrow).out,
      Contains(" post_attention_layernorm.weight "));
}

TEST_CASE("no findings is said of the checkpoint that was looked at") {
  const std::string source = case_path("dcp/fsdp2_w2");
  const CommandResult result = inspect({"optim", source, source});
  CHECK_THAT(result.out, Contains("only the second moments were read: ckpt-inspect optim "));
  CHECK_THAT(inspect({"optim", source}).out, !Contains("only the second moments"));
}

TEST_CASE("a result named as one file is one, where its format has such names") {
  const TemporaryFolder t;
  const std::string source = case_path("dcp/fsdp2_w2");
  const auto made = [&](const std::vector<std::string>& words, const std::string& name) {
    std::vector<std::string> line{built("ckpt-convert"), source, t / name};
    line.insert(line.end(), words.begin(), words.end());
    const CommandResult done = run_command(line);
    INFO(name << ": " << done.err);
    CHECK(done.exit == 0);
    return std::filesystem::is_directory(t / name) ? "folder" : "file";
  };
  for (const char* name : {"a.pt", "a.pth", "a.ckpt", "a.bin"}) {
    CAPTURE(name);
    CHECK(made({}, name) == std::string("file"));
    CHECK(inspect({"diff", source, t / name}).exit == 0);
    CHECK(made({"--to", "torch-save"}, "asked_" + std::string(name)) == std::string("file"));
  }
  CHECK(made({"--to", "torch-dcp"}, "epoch=0.ckpt") == std::string("folder"));  // Lightning's
  CHECK(made({"--to", "torch-save"}, "a.step") == std::string("folder"));
  const CommandResult unclear = run_command({built("ckpt-convert"), source, t / "a.step2"});
  CHECK(unclear.exit == 2);
  CHECK_THAT(unclear.err, Contains("a DST that ends in .pt, .pth, .ckpt, .bin, .safetensors"));
}

}  // namespace newcomer_test
