// Local state dicts of a model with a tied weight, as PyTorch saved them: a rank's run of it stands
// under both names, and the flat layout speaks of one of them.
#include <tessera/format/torch_rank_files.h>

#include <catch2/catch.hpp>

#include "tests/support/archive_gather.h"
#include "tests/support/written_checkpoint.h"

namespace tessera::torch_rank_files_tied_test {
namespace {

using testing::SampleCase;
using testing::WrittenCheckpoint;

constexpr char kFolder[] = "tests/format/data/rank_files_tied/";

ReadOptions layout_of(const std::string& name) {
  ReadOptions options;
  options.own.set(kFlatLayoutFlag, test::read_whole(std::string(TESSERA_SOURCE_DIR "/") + kFolder +
                                                    name + "/expected.json"));
  return options;
}

std::map<std::string, std::string> expected_of(const SampleCase& sample) {
  ValueDict entries = sample.expected.as_dict();
  for (auto& [key, value] : entries)
    if (key.as_string() == "tensors") value = *sample.expected.find("unflattened");
  return testing::expected_content(Value::dict(std::move(entries)));
}

TargetRequest ranks(std::int64_t world_size) {
  TargetRequest request;
  request.world_size = world_size;
  return request;
}

}  // namespace

TEST_CASE("a tied weight of local rank files is one tensor under each of its names") {
  for (const std::string name : {"local_orig_w2", "local_orig_w3"}) {
    CAPTURE(name);
    const SampleCase sample("../" + (kFolder + name));
    const Manifest manifest =
        testing::read_all(torch_rank_files_driver(), sample.place(), layout_of(name));
    const auto content = testing::content_of(manifest, *sample.directory);
    CHECK(content == expected_of(sample));
    CHECK(content.at("model.head.weight") == content.at("model.embed.weight"));
  }
}

TEST_CASE("a tied weight of local rank files goes to any number of ranks and back") {
  for (const std::string name : {"local_orig_w2", "local_orig_w3"}) {
    const SampleCase sample("../" + (kFolder + name));
    const Manifest source =
        testing::read_all(torch_rank_files_driver(), sample.place(), layout_of(name));
    const auto expected = expected_of(sample);
    for (const std::int64_t world_size : {1, 2, 3, 5, 17}) {
      CAPTURE(name, world_size);
      const WrittenCheckpoint there(torch_rank_files_driver(), source, *sample.directory,
                                    ranks(world_size));
      const Manifest middle = testing::read_all(torch_rank_files_driver(), there.place());
      CHECK(testing::content_of(middle, *there.directory) == expected);
      // Both names are runs again, of one storage: whole tensors would be no local state dict.
      CHECK(middle.provenance.at("writer.rank_files.flavour") ==
            source.provenance.at("writer.rank_files.flavour"));
      const StoredTensor &embed = *middle.find("model.embed.weight"),
                         &head = *middle.find("model.head.weight");
      REQUIRE(embed.chunk_count == head.chunk_count);
      for (std::uint32_t c = 0; c < embed.chunk_count; ++c)
        CHECK(middle.source(embed, c).offset == middle.source(head, c).offset);
      const WrittenCheckpoint back(torch_rank_files_driver(), middle, *there.directory,
                                   ranks(*source.world_size));
      const Manifest again = testing::read_all(torch_rank_files_driver(), back.place());
      CHECK(testing::content_of(again, *back.directory) == expected);
    }
  }
}

}  // namespace tessera::torch_rank_files_tied_test
