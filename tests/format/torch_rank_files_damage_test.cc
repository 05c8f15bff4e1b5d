// Folders of rank files that are damaged, mixed up or lying inside intact zips.
#include <tessera/base/error.h>
#include <tessera/format/registry.h>
#include <tessera/format/torch_rank_files.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "lib/format/torch_rank_files/rank_folder.h"
#include "tests/support/archive_gather.h"
#include "tests/support/edited_archive.h"
#include "tests/support/growth.h"
#include "tests/support/note_text.h"
#include "tests/support/rank_archive.h"
#include "tests/support/written_checkpoint.h"

namespace tessera::torch_rank_files_damage_test {
namespace {

using testing::EditedArchive;
using testing::number;
using testing::processor_seconds;
using testing::SampleCase;
using testing::text;

const std::string kLocal = "torchsave/fsdp1_local_rankfiles_w3";
const std::string kLocalOrig = "torchsave/fsdp1_local_orig_rankfiles_w2";

std::string rank_name(int rank) { return "rank" + std::to_string(rank) + ".pt"; }

struct Folder {
  MemoryFileSystem fs;
  std::unique_ptr<Directory> directory;
  ReadOptions options;

  explicit Folder(const std::string& name) {
    const SampleCase sample(name);
    for (const FileInfo& info : sample.directory->list()) {
      Bytes bytes(info.size_bytes);
      sample.directory->open(info.name)->read_at(0, bytes);
      fs.write_file("/c/" + info.name, bytes);
    }
    directory = fs.open_directory("/c");
    if (name == kLocal || name == kLocalOrig)
      options.own.set(kFlatLayoutFlag, test::read_whole(TESSERA_SOURCE_DIR "/sample_checkpoints/" +
                                                        name + "/expected.json"));
  }
  void edit(const std::string& file, const std::function<void(EditedArchive&)>& change) {
    EditedArchive archive(*directory, file);
    change(archive);
    fs.write_file("/c/" + file, archive.render());
  }
  Place place() const { return {directory.get(), "", "ranks"}; }
  Status failure() const {
    try {
      torch_rank_files_driver().manifest(place(), options);
    } catch (const Error& error) {
      return error.status();
    }
    return {};
  }
  Manifest tolerated() {
    options.tolerate_damage = true;
    return torch_rank_files_driver().manifest(place(), options);
  }
};

const Note* find_note(const Manifest& manifest, std::string_view code) {
  const auto found = std::ranges::find(manifest.notes, code, testing::note_code<Note>);
  return found == manifest.notes.end() ? nullptr : &*found;
}

}  // namespace

TEST_CASE("padding between parameters that FSDP cannot have written is worth a word") {
  Folder folder(kLocalOrig);
  CHECK(!find_note(folder.tolerated(), "CK065"));
  // FSDP fills it with 42; a parameter's elements stand there where the layout is another model's.
  const auto file = folder.directory->open(rank_name(1));
  Bytes bytes(file->size_bytes());
  file->read_at(0, bytes);
  const std::string forty_two("\0\0\x28\x42", 4);
  const std::size_t at = as_text(bytes).find(forty_two);
  REQUIRE(at != std::string::npos);
  bytes[at] = std::byte{1};
  folder.fs.write_file("/c/" + rank_name(1), bytes);
  const Manifest manifest = folder.tolerated();
  REQUIRE(find_note(manifest, "CK065"));
  CHECK(find_note(manifest, "CK065")->severity == Severity::kWarning);
  CHECK(find_note(manifest, "CK065")->file == rank_name(1));
  CHECK_THAT(find_note(manifest, "CK065")->message, Catch::Contains("1 elements of padding"));
}

TEST_CASE("a flat parameter that one rank has no part of is an error, not a crash") {
  for (const int rank : {0, 1, 2}) {
    CAPTURE(rank);
    Folder folder(kLocal);
    folder.edit(rank_name(rank), [](EditedArchive& a) {
      a.set({text("model"), text("_flat_param")}, Value());
    });
    CHECK(folder.failure().code == Code::kCorrupt);
  }
  Folder folder(kLocal);
  folder.edit(rank_name(2), [](EditedArchive& a) {
    a.set({text("model"), text("_flat_param")}, number(4));
  });
  CHECK(folder.failure().context.file == "rank2.pt");
}

TEST_CASE("local files under each other's names are refused: their optimizer has no other mark") {
  Folder folder(kLocal);
  const Bytes first = folder.fs.read_file("/c/rank0.pt"),
              second = folder.fs.read_file("/c/rank1.pt");
  folder.fs.write_file("/c/rank0.pt", second);
  folder.fs.write_file("/c/rank1.pt", first);
  const Status status = folder.failure();
  CHECK(status.code == Code::kCorrupt);
  CHECK_THAT(status.message, Catch::Contains("named as rank 0's, but rank 1 saved it"));
  CHECK(status.context.file == "rank0.pt");
  const Manifest manifest = folder.tolerated();
  std::vector<std::string> named;
  for (const Note& note : manifest.notes)
    if (testing::note_code(note) == "CK067") named.push_back(note.file);
  CHECK(named == std::vector<std::string>{"rank0.pt", "rank1.pt"});
}

TEST_CASE("a file saved under another rank's name is worth a warning everywhere") {
  Folder folder("torchsave/dtensor_rankfiles_w2");
  CHECK(!find_note(folder.tolerated(), "CK067"));
  folder.fs.write_file("/c/rank2.pt", folder.fs.read_file("/c/rank1.pt"));
  const Manifest manifest = folder.tolerated();
  REQUIRE(find_note(manifest, "CK067"));
  CHECK_THAT(find_note(manifest, "CK067")->message, Catch::Contains("rank2.pt was saved as rank1"));
}

TEST_CASE("state that one rank lost is a hole, also where ids count parameters") {
  const EditedArchive::Keys leaf = {text("optim"), text("state"), number(0), text("exp_avg")};
  Folder folder(kLocalOrig);
  folder.edit("rank1.pt", [&](EditedArchive& a) { a.erase(leaf); });
  const Manifest manifest = folder.tolerated();
  CHECK(!find_note(manifest, "CK072"));
  CHECK(!find_note(manifest, "CK075"));
  std::int64_t held = -1;
  for (const StoredTensor& tensor : manifest.tensors) {
    if (tensor.name != "optim.state.embed.weight.exp_avg") continue;
    held = 0;
    for (std::uint32_t c = 0; c < tensor.chunk_count; ++c)
      held += manifest.chunk(tensor, c).numel();
  }
  CHECK(held == 53);
}

TEST_CASE("a rank whose optimizer has no state, though it holds parameters, is reported") {
  for (const int rank : {0, 1}) {
    CAPTURE(rank);
    Folder folder(kLocalOrig);
    folder.edit(rank_name(rank), [](EditedArchive& a) {
      a.set({text("optim"), text("state")}, Value::dict({}));
    });
    const Status status = folder.failure();
    CHECK(status.code == Code::kCorrupt);
    CHECK(status.context.file == rank_name(rank));
    REQUIRE(find_note(folder.tolerated(), "CK024"));
  }
}

TEST_CASE("names that speak of far more ranks than there are files cost nothing") {
  const SampleCase sample("torchsave/dtensor_rankfiles_w2");
  Bytes bytes(static_cast<std::size_t>(sample.directory->open("rank0.pt")->size_bytes()));
  sample.directory->open("rank0.pt")->read_at(0, bytes);
  for (const std::string name : {"rank_1000000.pt", "rank0_world_size_1000000.pt"}) {
    CAPTURE(name);
    MemoryFileSystem fs;
    fs.write_file("/c/" + name, bytes);
    const auto directory = fs.open_directory("/c");
    CHECK_THROWS_WITH(rank_files::find_rank_files(*directory),
                      Catch::Contains("1 rank file in all is here"));
  }
  // A few files of a large run still name what is missing, each name at once.
  MemoryFileSystem fs;
  fs.write_file("/c/rank_4000.pt", bytes);
  const auto directory = fs.open_directory("/c");
  const auto found = rank_files::find_rank_files(*directory);
  REQUIRE(found);
  CHECK(found->world_size == 4001);
  CHECK(processor_seconds([&] {
          for (std::int64_t rank = 0; rank < 4000; ++rank)
            REQUIRE(found->parts[0].name_of(rank) == "rank_" + std::to_string(rank) + ".pt");
        }) < 2);
}

TEST_CASE("a link in a rank's place is said to be one") {
  Folder folder("torchsave/dtensor_rankfiles_w2");
  folder.fs.write_file("/elsewhere/rank1.pt", folder.fs.read_file("/c/rank1.pt"));
  folder.fs.remove_file("/c/rank1.pt");
  folder.fs.add_symlink("/c/rank1.pt", "/elsewhere/rank1.pt");
  CHECK_THAT(folder.failure().message,
             Catch::Contains("rank1.pt: it is a symbolic link") && Catch::Contains("cp -rL"));
}

TEST_CASE("a key of the user's own does not hide what the files are") {
  Folder folder("torchsave/dtensor_rankfiles_w2");
  for (const int rank : {0, 1})
    folder.edit(rank_name(rank), [](EditedArchive& a) {
      a.set({text("meta")}, testing::dict({{"epoch", number(3)}}));
    });
  CHECK(detect_format(folder.place()).driver == &torch_rank_files_driver());
}

TEST_CASE("a damaged first file does not hide what the folder is") {
  for (const std::size_t at : {std::size_t{0}, std::size_t{6}}) {  // its magic, its flags
    CAPTURE(at);
    Folder folder("torchsave/fsdp1_sharded_rankfiles_w2");
    Bytes bytes = folder.fs.read_file("/c/rank0.pt");
    bytes[at] ^= std::byte{1};
    bytes[as_text(bytes).rfind("PK\x01\x02") + 8] ^= std::byte{1};
    folder.fs.write_file("/c/rank0.pt", bytes);
    CHECK(detect_format(folder.place()).driver == &torch_rank_files_driver());
    CHECK(folder.failure().context.file == "rank0.pt");
  }
}

TEST_CASE("plain tensors of several ranks are one only where they are equal") {
  // Legacy files have no checksums, and a generator's state is 5,056 bytes. Large ones are told
  // apart by blocks.
  const std::string data = TESSERA_SOURCE_DIR "/tests/format/data/legacy_rank_files/";
  MemoryFileSystem fs;
  for (const int rank : {0, 1})
    fs.write_file("/c/" + rank_name(rank), as_bytes(test::read_whole(data + rank_name(rank))));
  const auto directory = fs.open_directory("/c");
  const Manifest manifest = torch_rank_files_driver().manifest({directory.get(), "", "c"}, {});
  CHECK(manifest.state.find("model.w"));
  CHECK(manifest.state.find("rng.rank_0"));
  CHECK(manifest.state.find("rng.rank_1"));
  CHECK(manifest.state.find("view.rank_1"));
  CHECK(manifest.state.find("same"));
}

namespace {

/// As `torch.serialization.set_crc32_options(False)` leaves a file: 0 for every CRC-32.
Bytes without_checksums(Bytes zip) {
  constexpr std::pair<std::string_view, std::size_t> kPlaces[] = {
      {"PK\3\4", 14}, {"PK\1\2", 16}, {"PK\7\10", 4}};
  const std::string_view text = as_text(zip);
  for (const auto& [signature, crc] : kPlaces)
    for (std::size_t at = text.find(signature); at != text.npos; at = text.find(signature, at + 1))
      std::fill_n(zip.begin() + static_cast<std::ptrdiff_t>(at + crc), 4, std::byte{0});
  return zip;
}

}  // namespace

TEST_CASE("copies that differ where listing does not look are refused when they are read") {
  constexpr std::int64_t kNumel = 40000;
  for (const bool differ : {false, true}) {
    CAPTURE(differ);
    MemoryFileSystem fs;
    for (const int rank : {0, 1}) {
      testing::RankArchive archive;
      std::vector<float> table(kNumel, 1.0F);
      if (differ && rank == 1) table[9500] = 2;  // between two of the blocks that are compared
      const Value root = testing::dict({{"table", archive.tensor(Shape{kNumel}, table)}});
      fs.write_file("/c/" + rank_name(rank), without_checksums(archive.render(root)));
    }
    const auto directory = fs.open_directory("/c");
    const Place place{directory.get(), "", "c"};
    const Manifest listed = torch_rank_files_driver().manifest(place, {});
    REQUIRE(listed.find("table"));
    CHECK(listed.find("table")->chunk_count == 2);
    try {
      testing::read_all(torch_rank_files_driver(), place);
      CHECK_FALSE(differ);
    } catch (const Error& error) {
      CHECK(differ);
      CHECK(error.code() == Code::kUnsupported);
      CHECK_THAT(error.what(), Catch::Contains("\"table\"") && Catch::Contains("rank0.pt") &&
                                   Catch::Contains("rank1.pt"));
    }
  }
}

}  // namespace tessera::torch_rank_files_damage_test
