// Parameters of FairScale's wrappers under new names: they stay in their wrapper's flat parameter,
// its path follows them, and what has no path in common is refused before anything is written.
#include <tessera/base/error.h>
#include <tessera/encoding/torch_archive.h>
#include <tessera/format/torch_save.h>
#include <tessera/ops/convert.h>
#include <tessera/state/roles.h>

#include <catch2/catch.hpp>

#include "tests/format/fairscale_fixture.h"
#include "tests/support/archive_gather.h"
#include "tests/support/convert_case.h"

namespace fairscale_rename_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

using Renames = std::vector<std::pair<std::string, std::string>>;

/// Wrappers of rank 0's metadata: path, stored tensor, names inside; one line for each.
std::vector<std::string> wrappers_at(FileSystem& fs, const std::string& path) {
  const auto directory = fs.open_directory(path);
  const auto file = directory->open("rank_0.pt");
  const Value root = open_torch_archive(ByteWindow::whole(*file)).root;
  std::vector<std::string> out;
  for (const Value& wrapper : root.find("meta")->find("param_metadata")->as_list())
    for (const auto& [stored, info] : wrapper.find("params")->as_dict()) {
      std::string line = wrapper.find("fsdp_path")->as_string() + "|" + stored.as_string() + "|";
      for (const Value& name : info.find("names")->as_list()) line += " " + name.as_string();
      out.push_back(line);
    }
  return out;
}

struct Run {
  std::vector<std::string> wrappers;
  OpenedContent content;
};

Run run(const std::string& sample, const NameRules& names, std::int64_t ranks) {
  MemoryFileSystem fs;
  ConvertOptions options = convert_options(load_sample(fs, sample), "/out", ranks);
  options.names = names;
  options.verify = true;
  const ConvertReport report = convert(fs, options);
  CHECK(report.verify_findings == std::vector<std::string>{});
  CHECK(report.published);
  if (!report.published) return {};
  return {wrappers_at(fs, "/out"), content_at(fs, "/out")};
}

std::string refused(const std::string& sample, const NameRules& names) {
  MemoryFileSystem fs;
  ConvertOptions options = convert_options(load_sample(fs, sample), "/out", 3);
  options.names = names;
  std::string message;
  CHECK(test::code_of([&] { convert(fs, options); }, &message) == Code::kUnsupported);
  CHECK_FALSE(fs.stat("/out"));
  return message;
}

NameRules renames(const Renames& lines) {
  NameRules rules;
  rules.renames = lines;
  return rules;
}
NameRules map(const Renames& lines) {
  NameRules rules;
  rules.map = lines;
  return rules;
}

std::string with(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = text.find(from); at != text.npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

}  // namespace

TEST_CASE("a wrapper whose parameters all move follows them") {
  for (const std::string sample : {"fairscale/nested_flat_w2", "fairscale/nested_flat_w4",
                                   "fairscale/nested_unflat_w2", "fairscale/single_flat_w2"}) {
    const Run plain = run(sample, {}, 3);
    for (const std::int64_t ranks : {1, 2, 3, 7}) {
      CAPTURE(sample, ranks);
      const Run moved = run(sample, renames({{"layers.0.*", "first.block.*"}}), ranks);
      std::vector<std::string> expected;
      for (const std::string& line : plain.wrappers)
        expected.push_back(with(line, "layers.0", "first.block"));
      CHECK(moved.wrappers == expected);
      std::map<std::string, std::string> tensors;
      for (const auto& [name, content] : plain.content.tensors)
        tensors.emplace(with(name, "layers.0.", "first.block."), content);
      CHECK(moved.content.tensors == tensors);
    }
  }
}

TEST_CASE("a wrapper keeps its path while its parameters lie below it") {
  const Run plain = run("fairscale/nested_flat_w2", {}, 2);
  const std::string old = plain.wrappers.at(1).substr(plain.wrappers[1].rfind('|') + 2);
  const std::string name = old.substr(0, old.find(' '));
  const Run moved =
      run("fairscale/nested_flat_w2", map({{"layers.0." + name, "layers.0.other.weight"}}), 4);
  std::vector<std::string> expected = plain.wrappers;
  expected[1] = with(expected[1], " " + name, " other.weight");
  CHECK(moved.wrappers == expected);
}

TEST_CASE("two wrappers may change places") {
  const Run plain = run("fairscale/nested_flat_w2", {}, 2);
  const Run moved = run("fairscale/nested_flat_w2",
                        renames({{"layers.0.*", "layers.1.*"}, {"layers.1.*", "layers.0.*"}}), 3);
  REQUIRE(plain.wrappers.size() == 3);
  CHECK(moved.wrappers ==
        std::vector<std::string>{plain.wrappers[0], with(plain.wrappers[1], "layers.0", "layers.1"),
                                 with(plain.wrappers[2], "layers.1", "layers.0")});
}

TEST_CASE("parameters of one wrapper without a path in common are refused by its name") {
  const Run plain = run("fairscale/nested_flat_w2", {}, 2);
  const std::string old = plain.wrappers.at(1).substr(plain.wrappers[1].rfind('|') + 2);
  const std::string name = old.substr(0, old.find(' '));
  const std::string message =
      refused("fairscale/nested_flat_w2", map({{"layers.0." + name, "apart.weight"}}));
  CHECK(message.find("\"layers.0\"") != std::string::npos);
  CHECK(message.find("apart.weight") != std::string::npos);
}

TEST_CASE("two wrappers with one path are refused") {
  const Run plain = run("fairscale/nested_flat_w2", {}, 2);
  NameRules rules;
  for (const std::size_t w : {1, 2}) {
    std::string names = plain.wrappers.at(w).substr(plain.wrappers[w].rfind('|') + 2) + " ";
    const std::string path = fmt::format("layers.{}.", w - 1);
    for (std::size_t at = 0; at < names.size(); at = names.find(' ', at) + 1) {
      const std::string name = names.substr(at, names.find(' ', at) - at);
      rules.map.emplace_back(path + name, w == 1 ? "both.a." + name : "both.a." + name + "2");
    }
  }
  // The second's names end in another way: they have no path in common.
  CHECK(refused("fairscale/nested_flat_w2", rules).find("layers.1") != std::string::npos);
  CHECK(refused("fairscale/nested_flat_w2", renames({{"layers.0.*", "*"}})).find("two of") !=
        std::string::npos);
}

TEST_CASE("a wrapper that no rank shares takes each rank's own along to its new path") {
  const SceneCheckpoint checkpoint(scene_of_experts());
  Manifest source = read_all(fairscale_fsdp_driver(), checkpoint.place());
  rename_parameters(source, find_roles(source.state), [](const std::string& fqn) {
    return fqn == "expert.e" ? std::string("moved.e") : fqn;
  });
  TargetRequest request;
  request.world_size = 3;
  const WrittenCheckpoint written(fairscale_fsdp_driver(), source, *checkpoint.directory, request);
  const Manifest raw =
      read_all(torch_save_driver(), {written.directory.get(), "rank_2.pt", "rank_2.pt"});
  CHECK(floats_of(raw, *written.directory, "weights.moved.flat_param_0") ==
        std::vector<float>{2, 8});
}

}  // namespace fairscale_rename_test
