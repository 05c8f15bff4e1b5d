// What ls and hash say of every sample, held against what the frameworks' own loaders said of it.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/ops/hash.h>
#include <tessera/ops/ls.h>

#include <catch2/catch.hpp>
#include <set>

#include "tests/support/inspect_case.h"
#include "tests/support/sample_case.h"

namespace oracle_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

/// "float32 [4,5] <sha256>" by name.
std::map<std::string, std::string> hashed(const HashReport& report) {
  std::map<std::string, std::string> content;
  for (const HashedTensor& tensor : report.tensors)
    content[tensor.name] =
        fmt::format("{} {} {}", tensor.dtype, Shape(tensor.shape).to_string(), tensor.sha256);
  return content;
}

bool is_known_refusal(const std::string& name) {
  return name == "torchsave/torchscript" || name.find("rankfiles") != std::string::npos;
}

void check_sample(const std::string& name) {
  INFO(name);
  const SampleCase oracle(name);
  OpenedCheckpoint opened = open_sample(name);
  const HashReport hash = hash_checkpoint(opened);
  CHECK(hashed(hash) == expected_content(oracle.expected));
  CHECK(oracle.expected.find("tensors")->as_list().size() == hash.tensors.size());
  const LsReport ls = list_tensors(opened);
  CHECK(ls.tensors.size() == hash.tensors.size());
  std::map<std::string, std::string> values;
  for (const auto& [key, value] : ls.values) values[key] = canonical_json(value);
  for (const auto& [key, value] : expected_values(oracle.expected)) {
    INFO("value " << key);
    REQUIRE(values.contains(key));
    CHECK(values.at(key) == value);
  }
}

void check_group(const std::string& group) {
  std::size_t checked = 0;
  for (const std::string& name : sample_names(group)) {
    if (is_known_refusal(name)) continue;
    check_sample(name);
    ++checked;
  }
  CHECK(checked > 0);
}

}  // namespace

TEST_CASE("torch-dcp samples list and hash as PyTorch loads them") { check_group("dcp"); }
TEST_CASE("samples of older PyTorch list and hash as it loads them") { check_group("dcp-old"); }
TEST_CASE("torch-save samples list and hash as torch.load reads them") { check_group("torchsave"); }
TEST_CASE("safetensors samples list and hash as safetensors reads them") {
  check_group("safetensors");
}
TEST_CASE("OLMo-core samples list and hash as it loads them") { check_group("olmo-core"); }
TEST_CASE("OLMo's local samples list and hash as its own unsharding joins them") {
  check_group("olmo-local");
}
TEST_CASE("torchao's samples list and hash by the parts of its tensors") { check_group("torchao"); }
TEST_CASE("Trainer's samples list and hash as their libraries read them") {
  check_group("hf-trainer");
}
TEST_CASE("torchsnapshot samples list and hash as it restores them") {
  check_group("torchsnapshot");
}

TEST_CASE("Megatron samples list and hash as Megatron-core and their script say") {
  check_group("megatron");
}

TEST_CASE("samples of one content have one root, others another") {
  std::map<std::string, std::string> roots;
  const auto root_of = [&](const std::string& name) {
    auto& root = roots[name];
    if (root.empty()) {
      OpenedCheckpoint opened = open_sample(name);
      root = hash_checkpoint(opened).root;
    }
    return root;
  };
  int pairs = 0;
  for (const std::string& group : {"dcp", "torchsave", "olmo-core", "megatron", "torchao"}) {
    for (const std::string& name : sample_names(group)) {
      if (is_known_refusal(name)) continue;
      const SampleCase sample_case(name);
      const Value* same = sample_case.expected.find("same_content_as");
      if (!same) continue;
      INFO(name << " and " << same->as_string());
      CHECK(root_of(name) == root_of(same->as_string()));
      ++pairs;
    }
  }
  CHECK(pairs > 15);
  CHECK(root_of("dcp/fsdp2_w4") != root_of("torchsave/fsdp1_full"));
  CHECK(root_of("dcp/fsdp2_w4") != root_of("dcp/objects_w2"));
}

TEST_CASE("the root is SHA-256 over sorted, escaped lines") {
  // printf 'a\\tb\tfloat32\t\tff\nw\tint8\t2,3\t00\n' | sha256sum
  const std::vector<HashedTensor> tensors = {{"w", "int8", {2, 3}, "00"},
                                             {"a\tb", "float32", {}, "ff"}};
  CHECK(content_root(tensors) ==
        "e01a63164ceef1383d81a07714539529e442cb0e74158cf9618d5fdce591b6b8");
  CHECK(content_root({}) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST_CASE("the root of values is SHA-256 over sorted lines, and was of their RFC 8785 form") {
  // printf 'dict\\ta\\t11\\nvalue\\ta\\\\tb\\t00\\n' | sha256sum
  CHECK(values_root({{"a\tb", "00"}, {"a", "11", true, true}}) ==
        "afd7a18e1619785ba65d6198063e21c014e1147ac363bd3b88e99fd38361b9e2");
  // printf '{"a":1,"b":[0.001]}' | sha256sum
  CHECK(values_root_v1({{"b", Value::list({Value::real(0.001)})}, {"a", Value::integer(1)}}) ==
        "e13d17bd5703232f6ffdbac62b40c1e7d79178fd843c8d9cd17d951a99812aa6");
}

TEST_CASE("an object whose class would have to run is refused by name") {
  try {
    open_sample("torchsave/torchscript");
    FAIL("opened");
  } catch (const Error& error) {
    CHECK(error.code() == Code::kUnsupported);
    CHECK(error.status().message.find("TorchScript") != std::string::npos);
  }
}

}  // namespace oracle_test
