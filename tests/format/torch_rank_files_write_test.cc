// Rank files of our own for any number of ranks: the same names, values and bytes come back.
#include <tessera/base/error.h>
#include <tessera/format/registry.h>
#include <tessera/format/torch_dcp.h>
#include <tessera/format/torch_rank_files.h>
#include <tessera/format/torch_save.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "lib/format/torch_rank_files/flat_record.h"
#include "tests/support/archive_gather.h"
#include "tests/support/note_text.h"
#include "tests/support/written_checkpoint.h"

namespace tessera::torch_rank_files_write_test {
namespace {

using testing::SampleCase;
using testing::WrittenCheckpoint;

TargetRequest ranks(std::int64_t world_size) {
  TargetRequest request;
  request.world_size = world_size;
  return request;
}

ReadOptions options_for(const std::string& sample) {
  ReadOptions options;
  if (sample.find("local") != sample.npos)
    options.own.set(kFlatLayoutFlag, test::read_whole(TESSERA_SOURCE_DIR "/sample_checkpoints/" +
                                                      sample + "/expected.json"));
  return options;
}

std::vector<std::string> samples() {
  std::vector<std::string> names = testing::sample_names("torchsave");
  std::erase_if(names, [](const std::string& name) { return name.find("rankfiles") == name.npos; });
  return names;
}

struct Content {
  std::map<std::string, std::string> tensors, values;
  bool operator==(const Content&) const = default;
};
Content content(const Manifest& manifest, const Directory& directory) {
  return {testing::content_of(manifest, directory), testing::values_of(manifest, directory)};
}

Manifest read_back(const WrittenCheckpoint& written) {
  return testing::read_all(torch_rank_files_driver(), written.place());
}

}  // namespace

TEST_CASE("rank files reshard to any number of ranks and back", "[wide]") {
  for (const std::string& name : samples()) {
    const SampleCase sample(name);
    const Manifest source =
        testing::read_all(torch_rank_files_driver(), sample.place(), options_for(name));
    const Content expected = content(source, *sample.directory);
    for (const std::int64_t world_size : {1, 2, 3, 4, 7, 8, 16}) {
      CAPTURE(name, world_size);
      const WrittenCheckpoint there(torch_rank_files_driver(), source, *sample.directory,
                                    ranks(world_size));
      CHECK(detect_format(there.place()).driver == &torch_rank_files_driver());
      const Manifest middle = read_back(there);
      CHECK(middle.world_size == world_size);
      CHECK(content(middle, *there.directory) == expected);
      CHECK(middle.provenance.at("writer.rank_files.flavour") ==
            source.provenance.at("writer.rank_files.flavour"));
      const WrittenCheckpoint back(torch_rank_files_driver(), middle, *there.directory,
                                   ranks(*source.world_size));
      CHECK(content(read_back(back), *back.directory) == expected);
    }
  }
}

TEST_CASE("every W to every W' through rank files") {
  const SampleCase sample("dcp/fsdp2_w4");
  const Manifest source = testing::read_all(torch_dcp_driver(), sample.place());
  const Content expected = content(source, *sample.directory);
  for (const std::int64_t from : {1, 2, 3, 4, 7, 8, 16}) {
    const WrittenCheckpoint first(torch_rank_files_driver(), source, *sample.directory,
                                  ranks(from));
    const Manifest middle = read_back(first);
    REQUIRE(content(middle, *first.directory) == expected);
    for (const std::int64_t to : {1, 3, 16}) {
      CAPTURE(from, to);
      const WrittenCheckpoint second(torch_rank_files_driver(), middle, *first.directory,
                                     ranks(to));
      CHECK(content(read_back(second), *second.directory) == expected);
    }
  }
}

TEST_CASE("padding is made anew for the number of ranks") {
  const std::string name = "torchsave/fsdp1_local_rankfiles_w3";
  const SampleCase sample(name);
  const Manifest source =
      testing::read_all(torch_rank_files_driver(), sample.place(), options_for(name));
  const WrittenCheckpoint five(torch_rank_files_driver(), source, *sample.directory, ranks(5));
  const Bytes& last = five.files.at("rank4.pt");
  const test::ByteFile file(last);
  TorchArchive archive = open_torch_archive(ByteWindow::whole(file));
  locate_storages(ByteWindow::whole(file), archive);
  // 101 elements on 5 ranks: 21 each, the last holds 17 of them and 4 zeros of state.
  const Value* state = archive.root.find("optim")->find("state");
  const Value& first = state->as_dict()[0].second;
  CHECK(state->as_dict()[0].first.as_int() == 0);
  const std::uint32_t moment = first.find("exp_avg")->tensor_index();
  CHECK(archive.tensors[moment].shape == Shape{21});
  const Bytes bytes = test::gather(ByteWindow::whole(file), archive, moment);
  for (std::size_t i = 17 * 4; i < bytes.size(); ++i) CHECK(bytes[i] == std::byte{0});
  // Something else than zero there is no error, but worth a word.
  Bytes spoilt = last;
  const ArchiveTensor& tensor = archive.tensors[moment];
  spoilt[archive.storages[tensor.storage].offset + 18 * 4] = std::byte{1};
  MemoryFileSystem fs;
  for (const auto& [path, bytes] : five.files)
    fs.write_file("/" + path, path == "rank4.pt" ? spoilt : bytes);
  const auto directory = fs.open_directory("/");
  ReadOptions tolerant;
  tolerant.tolerate_damage = true;
  const auto notes = torch_rank_files_driver().manifest({directory.get(), "", ""}, tolerant).notes;
  REQUIRE(notes.size() == 1);
  CHECK(testing::note_code(notes[0]) == "CK065");
  CHECK(notes[0].file == "rank4.pt");
  const auto record = rank_files::parse_flat_record(five.files.at("flat_layout.json"));
  CHECK(record.units.size() == 3);
}

TEST_CASE("names of the source's files are kept with the new ranks in them") {
  const SampleCase sample("torchsave/dtensor_rankfiles_w2");
  Manifest source = testing::read_all(torch_rank_files_driver(), sample.place());
  source.provenance["writer.rank_files.parts"] =
      "model=model_world_size_{W}_rank_{R}.pt\noptim=optim_world_size_{W}_rank_{R}.pt\n";
  const WrittenCheckpoint written(torch_rank_files_driver(), source, *sample.directory, ranks(3));
  REQUIRE(written.files.size() == 6);
  CHECK(written.files.contains("optim_world_size_3_rank_2.pt"));
  const Manifest back = read_back(written);
  CHECK(content(back, *written.directory) == content(source, *sample.directory));
}

TEST_CASE("what differs from rank to rank goes back to its rank") {
  const SampleCase sample("torchsave/dtensor_rankfiles_w2");
  Manifest source = testing::read_all(torch_rank_files_driver(), sample.place());
  const auto key = [](const char* text) { return PathItem{PathItem::Kind::kKey, 0, text}; };
  source.state.entries.push_back(
      {"rng.seed.rank_0", {key("rng"), key("seed"), key("rank_0")}, Value::integer(7)});
  source.state.entries.push_back(
      {"rng.seed.rank_1", {key("rng"), key("seed"), key("rank_1")}, Value::integer(9)});
  const WrittenCheckpoint written(torch_rank_files_driver(), source, *sample.directory, ranks(2));
  const test::ByteFile file(written.files.at("rank1.pt"));
  const TorchArchive archive = open_torch_archive(ByteWindow::whole(file));
  CHECK(archive.root.find("rng")->find("seed")->as_int() == 9);
  const Manifest back = read_back(written);
  CHECK(content(back, *written.directory) == content(source, *sample.directory));
  // At another world size they have no rank of their own: every file lists them all.
  const WrittenCheckpoint three(torch_rank_files_driver(), source, *sample.directory, ranks(3));
  CHECK(content(read_back(three), *three.directory) == content(source, *sample.directory));
}

TEST_CASE("a state that is no dict at its top is refused: no reader would find rank files") {
  const SampleCase bare("torchsave/bare_tensor_zip");
  const Manifest tensor =
      testing::read_all(torch_save_driver(), {bare.directory.get(), "file.pt", "file.pt"});
  CHECK_THROWS_WITH(torch_rank_files_driver().output_plan(tensor, ranks(2)),
                    Catch::Contains("no dict at its top"));
  const SampleCase sample("torchsave/dtensor_rankfiles_w2");
  Manifest list = testing::read_all(torch_rank_files_driver(), sample.place());
  list.state.entries.push_back({"0", {{PathItem::Kind::kIndex, 0, ""}}, Value::integer(7)});
  CHECK_THROWS_WITH(torch_rank_files_driver().output_plan(list, ranks(2)),
                    Catch::Contains("no dict at its top"));
}

TEST_CASE("a mesh of two dims is written as DTensors on it") {
  const SampleCase sample("dcp/fsdp2_w4");
  const Manifest source = testing::read_all(torch_dcp_driver(), sample.place());
  TargetRequest request;
  request.mesh = Mesh::parse("replicate=2,shard=3");
  const WrittenCheckpoint written(torch_rank_files_driver(), source, *sample.directory, request);
  CHECK(written.files.size() == 6);
  const Manifest back = read_back(written);
  CHECK(content(back, *written.directory) == content(source, *sample.directory));
  CHECK(back.find("model.embed.weight")->chunk_count == 6);
}

}  // namespace tessera::torch_rank_files_write_test
