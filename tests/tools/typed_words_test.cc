// What people type who know other tools, and ls --tree.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/run_command.h"
#include "tools/args/typed.h"

namespace typed_words_test {

using namespace tessera::testing;
using namespace tessera::tools;
using Words = std::vector<std::string>;

TEST_CASE("words of other tools are those of this one") {
  const auto ours = [](Tool tool, const Words& typed) { return in_our_words(tool, typed); };
  CHECK(ours(Tool::kInspect, {"ls", "p", "--json"}) == Words{"ls", "p", "--format=json"});
  CHECK(ours(Tool::kInspect, {"-V"}) == Words{"--version"});
  CHECK(ours(Tool::kInspect, {"help"}) == Words{"--help"});
  CHECK(ours(Tool::kInspect, {"help", "ls"}) == Words{"ls", "--help"});
  CHECK(ours(Tool::kInspect, {"formats"}) == Words{"--formats"});
  CHECK(ours(Tool::kInspect, {"info", "p"}) == Words{"summary", "p"});
  CHECK(ours(Tool::kInspect, {"tree", "p"}) == Words{"ls", "p", "--tree"});
  CHECK(ours(Tool::kConvert, {"a", "-o", "b", "--to", "hf"}) == Words{"a", "--to", "hf", "b"});
  CHECK(ours(Tool::kConvert, {"a", "b", "-o"}) == Words{"a", "b", "-o"});  // refused later
  CHECK(ours(Tool::kInspect, {"ls", "--", "--json", "-V"}) == Words{"ls", "--", "--json", "-V"});
}

TEST_CASE("a path of that name wins") {
  const TemporaryFolder t;
  for (const char* name : {"info", "tree", "help", "formats"}) {
    const std::string path = t / name;
    std::filesystem::copy(case_path("torchsave/bare_tensor_zip"), path);
    CHECK(inspect({path}).exit == 0);
    CHECK(in_our_words(Tool::kInspect, Words{path}) == Words{path});
  }
}

TEST_CASE("they work from the command line") {
  CHECK(inspect({"formats"}).out.find("torch-dcp            reads, writes") == 0);
  CHECK(inspect({"help", "ls"}).out == inspect({"ls", "--help"}).out);
  const std::string path = case_path("dcp/fsdp2_w4");
  CHECK(inspect({"ls", path, "--json"}).out == inspect({"ls", path, "--format", "json"}).out);
  CHECK(inspect({path, "--color", "always"}).out.find("\x1b[") != std::string::npos);
  CHECK(inspect({path}).out.find("\x1b[") == std::string::npos);
  const CommandResult part = inspect({"ls", path, "--include", "head"});
  CHECK(part.exit == 2);
  CHECK_THAT(part.err, Catch::Contains("\"*head*\""));
}

TEST_CASE("the tree of a checkpoint sums its modules") {
  const std::string path = case_path("dcp/fsdp2_w4");
  const std::string tree = inspect({"tree", path}).out;
  CHECK_THAT(tree, Catch::Contains("model ") && Catch::Contains("15 tensors") &&
                       Catch::Contains("embed.weight") && Catch::Contains("float32 [11, 6]"));
  CHECK_THAT(tree, Catch::EndsWith("54 tensors, 1,172 elements, 4.6 KiB\n"));
  CHECK(inspect({"ls", path, "--tree", "--json"}).exit == 2);
}

TEST_CASE("layers that are alike are one line, others are not") {
  const TemporaryFolder t;
  std::string header = "{";
  for (int layer = 0; layer < 12; ++layer) {
    const bool odd = layer == 11;  // of another shape
    header += "\"m.layers." + std::to_string(layer) + ".w\":{\"dtype\":\"U8\",\"shape\":[" +
              (odd ? "2" : "1") + "],\"data_offsets\":[" + std::to_string(layer) + "," +
              std::to_string(layer + (odd ? 2 : 1)) + "]},";
  }
  header.back() = '}';
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size() & 0xff);
  file[1] = static_cast<char>(header.size() >> 8);
  const std::string path = t / "m.safetensors";
  std::ofstream(path, std::ios::binary) << file << header << std::string(13, 'x');
  const std::string tree = inspect({"tree", path}).out;
  CHECK_THAT(tree,
             Catch::Contains("[0-10].w") && Catch::Contains("11 alike") && Catch::Contains("11.w"));
}

}  // namespace typed_words_test
