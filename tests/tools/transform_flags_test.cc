// What the flags that change names and contents say when they cannot be right: exit 2 (5 for what
// is not supported), the flag, the name in question, and nothing is left behind. And ls --rank and
// --file, which mean some of what is there.
#include <catch2/catch.hpp>
#include <fstream>

#include "tests/support/run_command.h"

namespace transform_flags_test {

using namespace tessera::testing;
using Catch::Contains;

namespace {

struct Refused {
  std::vector<std::string> flags;
  int exit;
  std::vector<std::string> says;
};

void write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

void check_refused(const std::string& sample, const std::vector<Refused>& cases,
                   const TemporaryFolder& folder) {
  const std::string source = case_path(sample);
  const std::vector<std::string> before = folder.names();
  for (const Refused& one : cases) {
    std::vector<std::string> words = {source, folder / "out", "--to", "torch-dcp"};
    words.insert(words.end(), one.flags.begin(), one.flags.end());
    const CommandResult result = convert(words);
    INFO(one.flags[0] << " " << (one.flags.size() > 1 ? one.flags[1] : "") << ": " << result.err);
    CHECK(result.exit == one.exit);
    CHECK(result.out.empty());
    for (const std::string& text : one.says) CHECK_THAT(result.err, Contains(text));
    CHECK(folder.names() == before);
  }
}

}  // namespace

TEST_CASE("flags that rename say which name is wrong") {
  const TemporaryFolder folder;
  write(folder / "twice.map", "head.weight a\nhead.weight b\n");
  write(folder / "one.map", "head.weight\n");
  write(folder / "gone.map", "no.such x\n");
  write(folder / "onto.map", "head.weight head.bias\n");
  write(folder / "half.json", "{\"head.weight\": ");
  write(folder / "list.json", "{\"head.weight\": [1]}");
  const std::string at = folder.path() + "/";
  check_refused("dcp/fsdp2_w2",
                {{{"--rename", "head.weight"}, 2, {"head.weight", "OLD=NEW"}},
                 {{"--rename", "no.such.*=x.*"}, 2, {"no.such"}},
                 {{"--rename", "head.weight=head.bias"}, 2, {"head.weight", "head.bias"}},
                 {{"--strip-prefix", "module."}, 2, {"--strip-prefix", "module."}},
                 {{"--map", at + "none.map"}, 3, {"none.map"}},
                 {{"--rename", "model.head.*=x.*"}, 2, {"below \"model\"", "write \"head.*\""}},
                 {{"--rename", "head.weigth=x"}, 2, {"did you mean \"head.weight\""}},
                 {{"--strip-prefix", "model."}, 2, {"--root model"}},
                 {{"--rename", "head.weight*=*"}, 2, {"head.weight", "no name left"}},
                 {{"--map", at + "twice.map"},
                  2,
                  {"twice.map, line 2", "two entries", "head.weight", "line 1"}},
                 {{"--map", at + "one.map"}, 2, {"one.map, line 1", "old new"}},
                 {{"--map", at + "half.json"}, 2, {"half.json", "old"}},
                 {{"--map", at + "list.json"}, 2, {"list.json", "head.weight"}},
                 {{"--map", at + "gone.map"}, 2, {"no.such"}},
                 {{"--map", at + "onto.map"}, 2, {"head.weight", "head.bias"}}},
                folder);
}

TEST_CASE("flags that change contents say what they cannot do") {
  const TemporaryFolder folder;
  check_refused(
      "dcp/fsdp2_w2",
      {{{"--dtype", "int8"}, 2, {"--dtype int8", "bf16"}},
       {{"--keep-dtype", "head.*"}, 2, {"head.*", "GLOB=TYPE"}},
       {{"--dtype", "bf16", "--keep-dtype", "no.such*=fp32"}, 2, {"--keep-dtype", "no.such*"}},
       {{"--keep-dtype", "*.step=bf16"}, 2, {"*.step", "never cast"}},
       {{"--tied", "maybe"}, 2, {"--tied", "keep, drop, error"}},
       {{"--dtype", "as-index"}, 2, {"--dtype as-index needs --as-index"}},
       {{"--as-index"}, 2, {"--as-index", "is for safetensors, not for"}},
       {{"--vocab-size", "0"}, 2, {"--vocab-size"}},
       {{"--vocab-size", "12"}, 2, {"--vocab-tensor GLOB"}},
       {{"--vocab-size", "9000000000000000000", "--vocab-tensor", "embed.weight"},
        2,
        {"--vocab-size", "embed.weight", "larger"}},
       {{"--vocab-tensor", "embed.weight"}, 2, {"--vocab-tensor needs --vocab-size"}},
       {{"--vocab-size", "12", "--vocab-tensor", "no.such"}, 2, {"no.such"}},
       {{"--include", "no.such"}, 2, {"--include", "no.such"}},
       {{"--exclude", "no.such"}, 2, {"--exclude", "no.such"}},
       {{"--only", "weights"}, 2, {"--only"}}},
      folder);
}

TEST_CASE("rules say what is wrong with them or with the checkpoint") {
  const TemporaryFolder folder;
  write(folder / "empty.json", "");
  write(folder / "half.json", "{\"schema\":");
  const std::string head = R"({"schema":"tessera.rules/1","sides":["x","y"],"tensors":[)";
  write(folder / "some.json", head + R"({"x":"head.weight","y":"lm_head.weight"}]})");
  write(folder / "cut.json", head + R"({"parts":["p","q"],"x":"head.weight","y":["p","q"]}]})");
  const std::string at = folder.path() + "/";
  check_refused(
      "dcp/fsdp2_w2",
      {{{"--rules", "lama"}, 2, {"no rules \"lama\"", "llama"}},
       {{"--rules", "llama"}, 2, {"match none"}},
       {{"--rules", at + "none.json"}, 3, {"none.json"}},
       {{"--rules", at + "empty.json"}, 2, {"empty.json", "empty"}},
       {{"--rules", at + "half.json"}, 2, {"half.json"}},
       {{"--rules", at + "some.json:z"}, 2, {"no side", "x, y"}},
       {{"--rules", at + "cut.json:y"}, 2, {"head.weight", "does not divide"}},
       {{"--rules", at + "some.json:y", "--strict-rules"}, 2, {"14 parameters", "embed.weight"}},
       {{"--strict-rules"}, 2, {"--strict-rules needs --rules"}}},
      folder);
  const CommandResult kept = convert({case_path("dcp/fsdp2_w2"), folder / "out", "--to",
                                      "torch-dcp", "--rules", at + "some.json:y"});
  CHECK(kept.exit == 0);
  CHECK_THAT(kept.out + kept.err, Contains("keep their names"));
}

TEST_CASE("ls lists what one rank or one file holds, and says when there is no such one") {
  const std::string source = case_path("dcp/fsdp2_w2");
  const CommandResult second = inspect({"ls", source, "--rank", "1", "--format", "json"});
  CHECK(second.exit == 0);
  CHECK_THAT(second.out, Contains("model.scale_history"));
  CHECK_THAT(second.out, !Contains("model.tokens_seen"));
  const CommandResult file = inspect({"ls", source, "--file", "__0_0.distcp", "--format", "json"});
  CHECK(file.exit == 0);
  CHECK_THAT(file.out, Contains("model.tokens_seen"));
  CHECK_THAT(file.out, !Contains("model.scale_history"));
  const CommandResult rank = inspect({"ls", source, "--rank", "2"});
  CHECK(rank.exit == 2);
  CHECK_THAT(rank.err, Contains("no file is of rank 2") && Contains("2 ranks"));
  const CommandResult none = inspect({"ls", source, "--file", "__7*"});
  CHECK(none.exit == 2);
  CHECK_THAT(none.err, Contains("__7*") && Contains("ckpt-inspect ls --chunks"));
}

}  // namespace transform_flags_test
