// Modules of torch.nn read as what their state_dict() holds, and those that only look like one.
// Against PyTorch: tests/interop/modules_test.py.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/encoding/torch_archive.h>

#include <catch2/catch.hpp>

#include "lib/encoding/memory_file.h"
#include "tests/support/hostile_bytes.h"

namespace tessera::torch_modules_test {
namespace {

std::string text(const std::string& s) {
  return "X" + testing::le(static_cast<std::uint32_t>(s.size())) + s;
}
std::string dict(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string out = "}(";
  for (const auto& [key, value] : entries) out += text(key) + value;
  return out + "u";
}
/// A view of two elements of the one storage.
std::string tensor(int offset = 0) {
  return "ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + "ctorch\nFloatStorage\n" +
         text("0") + text("cpu") + "K\x04tQK" + std::string(1, static_cast<char>(offset)) +
         "K\x02\x85K\x01\x85\x89" + "ccollections\nOrderedDict\n)RtR";
}

struct Module {
  std::string class_name = "torch.nn.modules.linear\nLinear";
  std::string parameters = "}", buffers = "}", modules = "}";
  std::string unsaved = "c__builtin__\nset\n](e\x85R";
  std::vector<std::pair<std::string, std::string>> more = {};

  std::string pickled() const {
    std::vector<std::pair<std::string, std::string>> state = {{"training", "\x88"},
                                                              {"_parameters", parameters},
                                                              {"_buffers", buffers},
                                                              {"_modules", modules}};
    if (!unsaved.empty()) state.emplace_back("_non_persistent_buffers_set", unsaved);
    state.insert(state.end(), more.begin(), more.end());
    return "c" + class_name + "\n)\x81" + dict(state) + "b";
  }
};

TorchArchive opened(const std::string& root, bool modules = true) {
  const std::string zip =
      testing::torch_zip_of(std::string("\x80\x02", 2) + root + ".", std::string(16, 'x'));
  const MemoryFile file(as_bytes(zip), "a.pt");
  return open_torch_archive(ByteWindow::whole(file), {.modules_as_state = modules});
}

/// "0.weight:1 0.bias:2": names and tensors of the root's dict; "?" for what is no tensor.
std::string listed(const Value& root) {
  std::string out;
  for (const auto& [key, value] : root.as_dict())
    out += fmt::format("{}{}:{}", out.empty() ? "" : " ", key.as_string(),
                       value.is_tensor() ? fmt::to_string(value.tensor_index()) : "?");
  return out;
}

Code code_of(const std::string& root, std::string* message = nullptr) {
  try {
    opened(root);
  } catch (const Error& error) {
    if (message) *message = error.status().message;
    return error.code();
  }
  return Code::kInternal;
}

}  // namespace

TEST_CASE("a module's parameters, its buffers, then what is below it, as state_dict() has them") {
  Module inner{.parameters = dict({{"weight", tensor()}, {"bias", "N"}}),
               .buffers = dict({{"mean", tensor(2)}, {"scratch", tensor(1)}}),
               .unsaved = "c__builtin__\nset\n](" + text("scratch") + "e\x85R",
               .more = {{"in_features", "K\x03"}, {"cache", tensor(0)}}};
  Module outer{.class_name = "torch.nn.modules.container\nSequential",
               .parameters = dict({{"own", tensor()}}),
               .modules = dict({{"0", inner.pickled()}, {"1", "N"}, {"2", Module{}.pickled()}})};
  for (const std::string& in : {outer.pickled(), "](" + outer.pickled() + "e"}) {
    const TorchArchive archive = opened(in);
    const bool whole = archive.root.is_dict();
    const Value& state = whole ? archive.root : archive.root.as_list()[0];
    CHECK(state.kind() == Value::Kind::kOrderedDict);
    std::vector<std::string> names;
    for (const auto& [key, value] : state.as_dict()) {
      CHECK(value.is_tensor());
      names.push_back(key.as_string());
    }
    CHECK(names == std::vector<std::string>{"own", "0.weight", "0.mean"});
    std::vector<std::string> left;
    for (const LeftOut& entry : archive.left_out) left.push_back(entry.name);
    const std::string at = whole ? "" : "0.";
    CHECK(left == std::vector<std::string>{at + "0.scratch", at + "0.cache",
                                           whole ? "torch.nn.modules.container.Sequential" : "0"});
    CHECK(archive.left_out[0].bytes == 8);
    REQUIRE(archive.notes.size() == 1);
    CHECK(archive.notes[0].severity == Severity::kInfo);
    CHECK(archive.notes[0].message.find("3 modules hold besides") != std::string::npos);
    CHECK(archive.notes[0].message.find("in_features") != std::string::npos);
  }
}

TEST_CASE("a module in a tuple or in another object stays a part of that, and is read beside it") {
  const Module module{.parameters = dict({{"w", tensor()}})};
  const std::string memo = module.pickled() + "q\x01";
  for (const std::string& first : {"(" + memo + "t", "cmy\nObject\n)\x81" + memo + "b"}) {
    for (const bool closed_first : {true, false}) {
      const std::string root =
          closed_first ? dict({{"a", first}, {"b", "h\x01"}}) : dict({{"b", memo}, {"a", first}});
      const TorchArchive archive = opened(root);
      const Value& read = *archive.root.find("b");
      CHECK(read.is_dict());
      const Value& around = *archive.root.find("a");
      const Value& kept =
          around.kind() == Value::Kind::kTuple ? around.as_list()[0] : around.as_opaque().state;
      CHECK(kept.kind() == Value::Kind::kOpaque);
    }
  }
}

TEST_CASE("modules that are not torch.nn's, or do more than it, stay objects") {
  const Module plain{.parameters = dict({{"w", tensor()}})};
  Module foreign = plain, hooked = plain, own_method = plain, packed = plain, list = plain;
  foreign.class_name = "my.model\nNet";
  hooked.more = {{"_state_dict_hooks", dict({{"a", "cmy\nhook\n"}})}};
  own_method.more = {{"state_dict", "N"}};
  packed.class_name = "torch.nn.quantized.modules.linear\nLinear";
  list.parameters = "](" + tensor() + "e";
  for (const Module& other : {foreign, hooked, own_method, packed, list}) {
    std::string message;
    CHECK(code_of(other.pickled(), &message) == Code::kUnsupported);
    CHECK(message.find(other.class_name.substr(other.class_name.find('\n') + 1)) !=
          std::string::npos);
    // Below a key it is a value, and does not hide what stands beside it.
    CHECK(listed(opened(dict({{"m", other.pickled()}, {"n", plain.pickled()}})).root) == "m:? n:?");
    // In a module of torch.nn's it is one entry; alone it is refused by its own name.
    const Module around{.class_name = "torch.nn.modules.container\nSequential",
                        .modules = dict({{"0", plain.pickled()}, {"1", other.pickled()}})};
    const TorchArchive archive = opened(around.pickled());
    REQUIRE(archive.root.as_dict().size() == 2);
    CHECK(archive.root.find("0.w")->is_tensor());
    CHECK(archive.root.find("1")->kind() == Value::Kind::kOpaque);
    CHECK(archive.notes.at(0).severity == Severity::kWarning);
    const Module alone{.class_name = "torch.nn.modules.container\nSequential",
                       .modules = dict({{"1", other.pickled()}})};
    CHECK(code_of(alone.pickled(), &message) == Code::kUnsupported);
    CHECK(message.find(other.class_name.substr(0, other.class_name.find('\n'))) !=
          std::string::npos);
  }
}

TEST_CASE("modules that hold themselves, or names that clash, stay objects") {
  const std::string itself = "ctorch.nn.modules.container\nSequential\n)\x81q\x01" +
                             dict({{"_parameters", dict({{"w", tensor()}})},
                                   {"_buffers", "}"},
                                   {"_modules", dict({{"0", "h\x01"}})}}) +
                             "b";
  CHECK(code_of(itself) == Code::kUnsupported);
  CHECK(opened(dict({{"m", itself}, {"w", tensor()}})).root.find("w")->is_tensor());
  const Module inner{.parameters = dict({{"w", tensor()}})};
  const Module clash{.parameters = dict({{"a.w", tensor()}}),
                     .modules = dict({{"a", inner.pickled()}})};
  CHECK(code_of(clash.pickled()) == Code::kUnsupported);
  Module number = inner;
  number.parameters = "}K\x01" + tensor() + "s";
  CHECK(code_of(number.pickled()) == Code::kUnsupported);
}

TEST_CASE("what is not asked for is not read as state") {
  const Module module{.parameters = dict({{"w", tensor()}})};
  CHECK_THROWS_AS(opened(module.pickled(), false), Error);
  CHECK(opened(dict({{"m", module.pickled()}}), false).root.find("m")->kind() ==
        Value::Kind::kOpaque);
}

}  // namespace tessera::torch_modules_test
