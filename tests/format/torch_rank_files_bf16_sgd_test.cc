// bfloat16 models under SGD, with momentum and without (an optimizer that has groups, but no
// state), in every form of rank files; as PyTorch saved them, against what PyTorch says they hold.
#include <tessera/format/deepspeed_zero.h>
#include <tessera/format/fairscale_fsdp.h>
#include <tessera/format/torch_rank_files.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/support/archive_gather.h"
#include "tests/support/note_text.h"
#include "tests/support/written_checkpoint.h"

namespace tessera::torch_rank_files_bf16_sgd_test {
namespace {

using testing::SampleCase;
using testing::WrittenCheckpoint;

struct Case {
  SampleCase sample;
  ReadOptions options;
  bool local;

  explicit Case(const std::string& name)
      : sample("../tests/format/data/rank_files_bf16_sgd/" + name),
        local(name.find("local") != name.npos) {
    if (local)
      options.own.set(kFlatLayoutFlag, test::read_whole(TESSERA_SOURCE_DIR
                                                        "/tests/format/data/rank_files_bf16_sgd/" +
                                                        name + "/expected.json"));
  }
  Manifest read() const {
    return testing::read_all(torch_rank_files_driver(), sample.place(), options);
  }
  std::map<std::string, std::string> expected() const {
    ValueDict entries = sample.expected.as_dict();
    for (auto& [key, value] : entries)
      if (local && key.as_string() == "tensors") value = *sample.expected.find("unflattened");
    return testing::expected_content(Value::dict(std::move(entries)));
  }
};

const std::vector<std::string> kCases = {
    "plain/sharded_w3",    "plain/mesh_w2",    "plain/local_orig_w2",    "plain/local_flat_w3",
    "momentum/sharded_w3", "momentum/mesh_w2", "momentum/local_orig_w2", "momentum/local_flat_w3"};

TargetRequest ranks(std::int64_t world_size) {
  TargetRequest request;
  request.world_size = world_size;
  return request;
}

std::size_t moments_in(const std::map<std::string, std::string>& content) {
  return static_cast<std::size_t>(std::ranges::count_if(content, [](const auto& entry) {
    return entry.first.ends_with(".momentum_buffer") && entry.second.starts_with("bfloat16");
  }));
}

}  // namespace

TEST_CASE("bfloat16 rank files under SGD read as PyTorch has them") {
  for (const std::string& name : kCases) {
    CAPTURE(name);
    const Case test(name);
    const Manifest manifest = test.read();
    const auto content = testing::content_of(manifest, *test.sample.directory);
    CHECK(content == test.expected());
    CHECK(moments_in(content) == (name.starts_with("plain") ? 0 : 8));
    CHECK(content.at("model.head.weight").starts_with("bfloat16 [2,3]"));
    CHECK(manifest.state.find("optim.param_groups.0.momentum"));
    CHECK(std::ranges::count(manifest.notes, "CK072", testing::note_code<Note>) == 0);
    CHECK(std::ranges::count(manifest.notes, "CK075", testing::note_code<Note>) == 0);
  }
}

TEST_CASE("bfloat16 rank files under SGD go to any number of ranks and back") {
  for (const std::string& name : kCases) {
    const Case test(name);
    const Manifest source = test.read();
    const auto expected = testing::content_of(source, *test.sample.directory);
    const auto values = testing::values_of(source, *test.sample.directory);
    for (const std::int64_t world_size : {1, 2, 3, 5, 16}) {
      CAPTURE(name, world_size);
      const WrittenCheckpoint there(torch_rank_files_driver(), source, *test.sample.directory,
                                    ranks(world_size));
      const Manifest middle = testing::read_all(torch_rank_files_driver(), there.place());
      CHECK(testing::content_of(middle, *there.directory) == expected);
      CHECK(testing::values_of(middle, *there.directory) == values);
      const WrittenCheckpoint back(torch_rank_files_driver(), middle, *there.directory,
                                   ranks(*source.world_size));
      const Manifest again = testing::read_all(torch_rank_files_driver(), back.place());
      CHECK(testing::content_of(again, *back.directory) == expected);
      CHECK(testing::values_of(again, *back.directory) == values);
    }
  }
}

TEST_CASE("an optimizer without state survives formats that are made of state") {
  for (const std::string& name : kCases) {
    const Case test(name);
    Manifest source = test.read();
    assign_kinds(source, find_roles(source.state));
    const auto expected = testing::content_of(source, *test.sample.directory);
    for (const FormatDriver* driver : {&fairscale_fsdp_driver(), &deepspeed_zero_driver()}) {
      CAPTURE(name, driver->id());
      const WrittenCheckpoint there(*driver, source, *test.sample.directory, ranks(3));
      const Manifest middle = testing::read_all(*driver, there.place());
      CHECK(testing::content_of(middle, *there.directory) == expected);
    }
  }
}

}  // namespace tessera::torch_rank_files_bf16_sgd_test
