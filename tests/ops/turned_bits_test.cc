// A turned bit is refused, or lies where nothing is read from: never does it reach a hash or a
// result. In a tensor's stored bytes, for formats whose archives keep checksums; anywhere in what
// we wrote ourselves, for the seal beside it has the sums of all metadata.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/format/registry.h>
#include <tessera/ops/hash.h>
#include <tessera/ops/verify.h>
#include <tessera/storage/checksum.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <set>

#include "lib/ops/open/sealed_directory.h"
#include "tests/support/convert_case.h"
#include "tests/support/note_text.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/sample_case.h"
#include "tests/support/sanitized.h"

namespace turned_bits_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

struct StoredByte {
  std::string file;
  std::uint64_t offset;
};

/// `count` bytes of tensors that lie under a checksum.
std::vector<StoredByte> some_places(const OpenedCheckpoint& opened, std::mt19937_64& random,
                                    std::size_t count) {
  std::vector<const Source*> sources;
  const Manifest& manifest = opened.manifest;
  for (std::size_t c = 0; c < manifest.chunks.size(); ++c) {
    const Source& source = manifest.chunks.source(c);
    const bool under_sum = source.kind == Source::Kind::kExtent && source.record != 0 &&
                           source.side == 0 && source.length > 0;
    if (under_sum) sources.push_back(&source);
  }
  std::vector<StoredByte> places;
  while (!sources.empty() && places.size() < count) {
    const Source& source = *sources[random() % sources.size()];
    places.push_back({manifest.files[source.file].path, source.offset + random() % source.length});
  }
  return places;
}

std::string hash_of(FileSystem& fs, const std::string& path) {
  OpenedCheckpoint opened = open_checkpoint(fs, path);
  opened.locate_all({});
  return hash_checkpoint(opened).root;
}

}  // namespace

TEST_CASE("a turned bit never reaches a hash") {
  int refused = 0;
  for (const std::string name :
       {"dcp/fsdp2_w2", "megatron/legacy_tp2", "megatron/torch_dist_tp2_dp2", "deepspeed/zero1_w2",
        "deepspeed/zero2_w2", "deepspeed/zero3_w2", "fairscale/nested_flat_w2",
        "fairscale/nested_flat_w3", "torchsave/fsdp1_local_orig_rankfiles_w2",
        "torchsave/tied_views_zip", "olmo-core/model_and_optim_w2"}) {
    MemoryFileSystem fs;
    const std::string source = load_sample(fs, name);
    OpenedCheckpoint opened = open_checkpoint(fs, source);
    opened.locate_all({});
    const std::string sound = hash_of(fs, source);
    std::mt19937_64 random(23);
    for (const StoredByte& place : some_places(opened, random, kSanitized ? 3 : 12)) {
      INFO(name << ", byte " << place.offset << " of " << place.file);
      const std::string path =
          opened.path.ends_with(place.file) ? opened.path : opened.path + "/" + place.file;
      const Bytes before = fs.read_file(path);
      Bytes after = before;
      after[place.offset] ^= std::byte{1} << random() % 8;
      fs.write_file(path, after);
      try {
        const std::string found = hash_of(fs, source);
        CHECK(found == sound);
      } catch (const Error& error) {
        CHECK(error.code() == Code::kCorrupt);
        CHECK_FALSE(error.status().context.file.empty());
        ++refused;
      }
      fs.write_file(path, before);
    }
  }
  CHECK(refused > (kSanitized ? 15 : 80));
}

TEST_CASE("salvage does not bring over what shares a damaged checksum") {
  for (const std::string name :
       {"megatron/legacy_tp2", "deepspeed/zero3_w2", "fairscale/nested_flat_w2"}) {
    MemoryFileSystem fs;
    const std::string source = load_sample(fs, name);
    OpenedCheckpoint opened = open_checkpoint(fs, source);
    opened.locate_all({});
    const OpenedContent sound = content_at(fs, source);
    std::mt19937_64 random(29);
    for (const StoredByte& place : some_places(opened, random, 4)) {
      INFO(name << ", byte " << place.offset << " of " << place.file);
      const std::string path = opened.path + "/" + place.file;
      const Bytes before = fs.read_file(path);
      Bytes after = before;
      after[place.offset] ^= std::byte{8};
      fs.write_file(path, after);
      ConvertOptions options = convert_options(source, "/out", 1, "torch-dcp");
      options.salvage = true;
      options.force = true;
      convert(fs, options);
      for (const auto& [tensor, content] : content_at(fs, "/out").tensors) {
        INFO(tensor);
        CHECK(sound.tensors.at(tensor) == content);
      }
      fs.write_file(path, before);
    }
  }
}

namespace {

/// As our own writer leaves it: a folder with its seal.
void write_sealed(MemoryFileSystem& fs, const std::string& source, const std::string& format) {
  ConvertOptions options = convert_options(source, "/out", std::nullopt, format);
  if (find_format(format)->capabilities().many_ranks) {
    if (format.starts_with("megatron"))
      options.target.mesh = Mesh({{"dp", 2}});
    else
      options.target.world_size = 2;
  }
  REQUIRE(convert(fs, options).published);
}

struct Outcome {
  std::string root, values;  // "" where it was refused
  Status status;
};

Outcome outcome_of(FileSystem& fs, const std::string& path) {
  try {
    OpenedCheckpoint opened = open_checkpoint(fs, path);
    opened.locate_all({});
    const HashReport report = hash_checkpoint(opened);
    return {report.root, report.values_root, {}};
  } catch (const Error& error) {
    return {"", "", error.status()};
  }
}

}  // namespace

TEST_CASE("a turned bit of sealed metadata is refused by every verb but verify, which lists it") {
  std::size_t refused = 0;
  for (const FormatDriver* driver : all_formats()) {
    const std::string format(driver->id());
    if (!driver->capabilities().writes || format == "megatron-torch") continue;  // archives alone
    MemoryFileSystem fs;
    write_sealed(fs, load_sample(fs, "dcp/fsdp2_w2"), format);
    const Outcome sound = outcome_of(fs, "/out");
    if (format == "hdf5" && sound.status.code == Code::kUnsupported) continue;  // no tessera-hdf5
    REQUIRE(sound.status.to_string() == Status{}.to_string());
    std::mt19937_64 random(31);
    for (const auto& [name, text] : bytes_below(fs, "/out")) {
      const std::string path = "/out/" + name;
      if (name.ends_with('/') || text.empty() || text.starts_with("PK") ||
          name.ends_with(".distcp"))  // archives and items have sums of their own
        continue;
      const Bytes before = fs.read_file(path);
      for (int i = 0; i < 12; ++i) {
        Bytes after = before;
        const std::size_t at = random() % after.size();
        after[at] ^= std::byte{1} << random() % 8;
        fs.write_file(path, after);
        INFO(format << ", byte " << at << " of " << name);
        const Outcome found = outcome_of(fs, "/out");
        fs.write_file(path, before);
        // What no reader opens may change: notes for people, a version.
        if (found.status.ok()) {
          CHECK(found.root == sound.root);
          CHECK(found.values == sound.values);
          continue;
        }
        CHECK(found.status.code == Code::kCorrupt);
        CHECK_FALSE(found.status.context.file.empty());
        ++refused;
      }
    }
  }
  CHECK(refused > 50);
}

namespace {

/// Offsets in a torch.save file of all that is no tensor: data.pkl with its header, the directory.
std::vector<std::size_t> structure_of(const Bytes& bytes) {
  const std::string_view all = as_text(bytes);
  const std::size_t name = all.find("data.pkl"), directory = all.find("PK\x01\x02");
  REQUIRE(name != all.npos);
  REQUIRE(directory != all.npos);
  std::vector<std::size_t> offsets;
  for (std::size_t at = 0; at < all.find("PK\x03\x04", name); ++at) offsets.push_back(at);
  for (std::size_t at = directory; at < all.size(); ++at) offsets.push_back(at);
  return offsets;
}

}  // namespace

TEST_CASE("a turned bit of FairScale's gathered optimizer never makes it a model alone") {
  MemoryFileSystem fs;
  write_sealed(fs, load_sample(fs, "dcp/fsdp2_w2"), "fairscale-fsdp");
  fs.remove_file("/out/tessera.manifest.json");
  const std::string path = "/out/optim.pt";
  REQUIRE(fs.stat(path));
  const Outcome sound = outcome_of(fs, "/out");
  REQUIRE(sound.status.to_string() == Status{}.to_string());
  const Bytes before = fs.read_file(path);
  const std::vector<std::size_t> offsets = structure_of(before);
  std::mt19937_64 random(37);
  std::size_t refused = 0;
  for (int i = 0; i < 80; ++i) {
    Bytes after = before;
    const std::size_t at = i < 4 ? static_cast<std::size_t>(i) : offsets[random() % offsets.size()];
    after[at] ^= std::byte{1} << random() % 8;
    fs.write_file(path, after);
    INFO("byte " << at);
    const Outcome found = outcome_of(fs, "/out");
    if (found.status.ok()) {  // dates, padding and the like
      CHECK(found.root == sound.root);
      CHECK(found.values == sound.values);
      continue;
    }
    INFO(found.status.to_string());
    const bool refusal =
        found.status.code == Code::kCorrupt || found.status.code == Code::kUnsupported;
    CHECK(refusal);
    CHECK(found.status.context.file == "optim.pt");
    ++refused;
  }
  CHECK(refused > 20);
}

TEST_CASE("a turned bit of .metadata is named by open and by quick and full verify") {
  MemoryFileSystem fs;
  write_sealed(fs, load_sample(fs, "dcp/fsdp2_w2"), "torch-dcp");
  Bytes bytes = fs.read_file("/out/.metadata");
  const std::size_t at = as_text(bytes).find("exp_avg") + 2;
  bytes[at] ^= std::byte{1};  // the name of a tensor: it parses all the same
  fs.write_file("/out/.metadata", bytes);
  const Outcome found = outcome_of(fs, "/out");
  CHECK(found.status.code == Code::kCorrupt);
  CHECK(found.status.context.file == ".metadata");
  CHECK_THAT(found.status.message, Catch::Contains("changed after they were written"));
  CHECK_THAT(found.status.hint, Catch::Contains("ckpt-inspect verify"));
  CHECK_THROWS_AS(convert(fs, convert_options("/out", "/again", 1)), Error);
  CHECK_FALSE(fs.stat("/again"));
  for (const VerifyLevel level : {VerifyLevel::kQuick, VerifyLevel::kFull}) {
    VerifyOptions options;
    options.level = level;
    const VerifyReport report = verify_checkpoint(fs, "/out", options);
    CHECK_FALSE(report.ok);
    const auto listed = std::ranges::count_if(report.findings, [](const Note& note) {
      return note_code(note) == "CK043" && note.file == ".metadata";
    });
    CHECK(listed == 1);
  }
  // Where another program wrote a checkpoint of these sizes there, the hint's way out is one.
  fs.remove_file("/out/tessera.manifest.json");
  CHECK(outcome_of(fs, "/out").status.code != Code::kInternal);
  open_checkpoint(fs, "/out");
}

TEST_CASE("metadata of many MiB is held against its seal once, whole") {
  MemoryFileSystem fs;
  const std::string text = "{\"metadata\": \"" + std::string(3 << 20, 'x') + "\"}";
  write_sealed(fs, load_sample(fs, "dcp/fsdp2_w2"), "safetensors");
  const auto directory = fs.open_directory("/out");
  fs.write_file("/out/notes.json", as_bytes(text));
  Seal seal = *read_seal(*directory, "");
  SealedFile sealed{"notes.json", text.size(), {}};
  for (std::size_t i = 0; i < text.size(); i += kMiB)
    sealed.crc32_per_mib.push_back(
        crc32(0, as_bytes(text).subspan(i, std::min<std::size_t>(kMiB, text.size() - i))));
  seal.files.push_back(sealed);
  std::vector<Note> told;
  const SealedDirectory::OnDifference tell = [&](const Note& note) { told.push_back(note); };
  const SealedDirectory proved(*directory, seal.files, tell);
  const auto read = [&](std::uint64_t offset, std::uint64_t size) {
    Bytes out(size);
    proved.open("notes.json", IoMode::kBuffered)->read_at(offset, out);
    return std::string(as_text(out));
  };
  CHECK(read(0, text.size()) == text);
  CHECK(read(5, 7) == text.substr(5, 7));
  CHECK(read(kMiB - 3, 6) == text.substr(kMiB - 3, 6));
  CHECK(read(text.size() - 2, 2) == text.substr(text.size() - 2));
  CHECK(read(text.size(), 0).empty());
  CHECK(told.empty());
  std::string other = text;
  other[kMiB + 9] = 'y';
  fs.write_file("/out/notes.json", as_bytes(other));
  read(0, kMiB);
  CHECK(told.empty());
  read(kMiB - 1, 2);  // touches the MiB that changed, not the place
  REQUIRE(told.size() == 1);
  CHECK_THAT(told[0].message, Catch::Contains("bytes 1048576 to 2097152"));
}

namespace {

/// A tensor of 5 MiB in a safetensors file at /in.
void write_tensor(MemoryFileSystem& fs, int salt) {
  constexpr int kBytes = 5 << 20;
  std::string data;
  for (int i = 0; i < kBytes; ++i) data += static_cast<char>(i * 7 / 5 + salt);
  const std::string file = safetensors_of(
      R"({"w":{"dtype":"F32","shape":[1280,1024],"data_offsets":[0,5242880]}})", data);
  fs.write_file("/in/model.safetensors", as_bytes(file));
}

/// What reading every tensor of `path` throws, "" for nothing.
std::string hash_failure(FileSystem& fs, const std::string& path) {
  try {
    OpenedCheckpoint opened = open_checkpoint(fs, path);
    opened.locate_all({});
    hash_checkpoint(opened);
    return "";
  } catch (const Error& error) {
    CHECK(error.code() == Code::kCorrupt);
    return error.status().to_string();
  }
}

}  // namespace

TEST_CASE("a turned bit of a sealed tensor is refused by whatever reads it") {
  for (const char* format : {"safetensors", "hdf5"}) {
    MemoryFileSystem fs;
    write_tensor(fs, 0);
    write_sealed(fs, "/in", format);
    INFO(format);
    CHECK(hash_failure(fs, "/out") == "");
    OpenedCheckpoint whole = open_checkpoint(fs, "/out");
    whole.locate_all({});
    const Source& source = whole.manifest.source(whole.manifest.tensors[0], 0);
    REQUIRE(source.length == 5 << 20);
    const std::string file = "/out/" + whole.manifest.files[source.file].path;
    const std::uint64_t at = 3 << 20;  // of the tensor: not in the MiB of a header
    Bytes bytes = fs.read_file(file);
    bytes[source.offset + at] ^= std::byte{1};
    fs.write_file(file, bytes);
    CHECK_THAT(hash_failure(fs, "/out"), Catch::Contains("changed after they were written"));
    CHECK_THROWS_WITH(convert(fs, convert_options("/out", "/again", 1, "torch-dcp")),
                      Catch::Contains("changed after they were written"));
    CHECK_FALSE(fs.stat("/again"));
    // Parts: those in other MiB are whole.
    OpenedCheckpoint opened = open_checkpoint(fs, "/out");
    opened.locate_all({});
    const TensorReader reader(opened.manifest, *opened.directory, {});
    Bytes out(4096);
    reader.read(0, 0, 1024, out);
    CHECK_THROWS_WITH(reader.read(0, (at - 2048) / 4, (at + 2048) / 4, out),
                      Catch::Contains("changed after they were written"));
    // Again, from the same file: it is not forgotten.
    CHECK_THROWS_AS(reader.read(0, at / 4, at / 4 + 1024, out), Error);
  }
}

TEST_CASE("an archive of another save, of the same size, is refused where there is a seal") {
  MemoryFileSystem fs, other;
  write_tensor(fs, 0);
  write_tensor(other, 1);
  write_sealed(fs, "/in", "torch-dcp");
  write_sealed(other, "/in", "torch-dcp");
  const std::string file = "/out/__0_0.distcp";
  REQUIRE(fs.read_file(file).size() == other.read_file(file).size());
  CHECK(hash_failure(fs, "/out") == "");
  fs.write_file(file, other.read_file(file));
  CHECK_THAT(hash_failure(fs, "/out"), Catch::Contains("changed after they were written"));
  CHECK_THROWS_AS(convert(fs, convert_options("/out", "/again", 2)), Error);
  fs.remove_file("/out/tessera.manifest.json");
  CHECK(hash_failure(fs, "/out") == "");  // nothing else tells it
}

}  // namespace turned_bits_test
