// Reading HDF5: every sample against its oracle, links, damage, and datasets that are refused.
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/format/hdf5_fixture.h"
#include "tests/support/note_text.h"

namespace tessera::hdf5_read_test {
namespace {

using namespace testing;

std::map<std::string, std::string> wanted_values(const Value& expected,
                                                 const std::map<std::string, std::string>& got) {
  std::map<std::string, std::string> out = expected_values(expected);
  for (const auto& [name, value] : got)
    if (name.ends_with("@dtype")) out.emplace(name, value);
  return out;
}

/// The files of a folder of samples, in memory, to be damaged.
void copy_sample(MemoryFileSystem& fs, const std::string& name, const std::string& to) {
  const std::filesystem::path from =
      std::filesystem::path(TESSERA_SOURCE_DIR) / "sample_checkpoints" / name / "checkpoint";
  for (const auto& entry : std::filesystem::directory_iterator(from)) {
    std::ifstream stream(entry.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(stream), {}};
    fs.write_file(to + "/" + entry.path().filename().string(), as_bytes(bytes));
  }
}

ReadOptions tolerant() {
  ReadOptions options;
  options.tolerate_damage = true;
  return options;
}

Bytes file_bytes(const Directory& directory, const std::string& name) {
  const auto file = directory.open(name);
  Bytes out(file->size_bytes());
  file->read_at(0, out);
  return out;
}

bool has_note(const Manifest& manifest, std::string_view code, std::string_view severity) {
  for (const Note& note : manifest.notes)
    if (testing::note_code(note) == code && testing::note_severity(note) == severity) return true;
  return false;
}

}  // namespace

TEST_CASE("hdf5 samples read exactly") {
  if (!has_hdf5()) return;
  const std::vector<std::string> names = sample_names("hdf5");
  REQUIRE(names.size() >= 9);
  for (const std::string& name : names) {
    CAPTURE(name);
    const SampleCase sample(name);
    CHECK(hdf5_driver().probe(sample.place()).answer == ProbeResult::Answer::kYes);
    const Manifest manifest = read_all(hdf5_driver(), sample.place());
    CHECK(content_of(manifest, *sample.directory) == expected_content(sample.expected));
    const auto values = values_of(manifest, *sample.directory);
    CHECK(values == wanted_values(sample.expected, values));
  }
}

TEST_CASE("an object with two names is listed under the first, and the other is told") {
  if (!has_hdf5()) return;
  const SampleCase sample("hdf5/dtypes_layouts");
  const Manifest manifest = read_all(hdf5_driver(), sample.place());
  CHECK(manifest.find("alias"));
  CHECK_FALSE(manifest.find("t_f4"));
  CHECK_FALSE(manifest.find("soft"));
  CHECK(has_note(manifest, "CK081", "info"));
}

TEST_CASE("sources are what the layout says: extents, compact bytes, fill values, filters") {
  if (!has_hdf5()) return;
  const SampleCase layouts("hdf5/dtypes_layouts");
  const Manifest manifest = read_all(hdf5_driver(), layouts.place());
  const auto kind = [&](const char* name) { return manifest.source(*manifest.find(name), 0).kind; };
  CHECK(kind("compact") == Source::Kind::kInline);
  CHECK(kind("unwritten") == Source::Kind::kFill);
  CHECK(kind("t_f8") == Source::Kind::kExtent);
  CHECK(manifest.source(*manifest.find("t_be_f4"), 0).flags == Source::kByteSwap);
  const SampleCase chunked("hdf5/chunked_gzip_shuffle");
  const Manifest coded = read_all(hdf5_driver(), chunked.place());
  const Source& source = coded.source(*coded.find("model.layers.0.weight"), 0);
  REQUIRE(source.kind == Source::Kind::kCoded);
  CHECK(coded.codecs[source.side].front() == "hdf5.fletcher32");
}

TEST_CASE("an external link is listed, reported and not followed") {
  if (!has_hdf5()) return;
  const SampleCase hostile("hostile", "");
  const Place place = hostile_place(hostile, "h5_external_link.h5");
  Manifest manifest = hdf5_driver().manifest(place, {});
  CHECK(has_note(manifest, "CK080", "warning"));
  CHECK(has_note(hdf5_driver().manifest(place, tolerant()), "CK080", "error"));
  for (std::uint32_t i = 0; i < manifest.tensors.size(); ++i) {
    const bool fine = manifest.tensors[i].name == "ok";
    const Status status =
        status_of([&] { hdf5_driver().locate(place, manifest, std::span(&i, 1), {}); });
    CHECK(status.code == (fine ? Code::kOk : Code::kCorrupt));
    if (!fine) CHECK(status.message.find("external link") != std::string::npos);
  }
}

TEST_CASE("a dataset of a type that no tensor has is no damage") {
  if (!has_hdf5()) return;
  const auto fs = make_posix_file_system();
  const auto data = fs->open_directory(TESSERA_SOURCE_DIR "/tests/format/data");
  const Place place{data.get(), "hdf5_compound.h5", "hdf5_compound.h5"};
  Manifest manifest = hdf5_driver().manifest(place, tolerant());
  CHECK(has_note(manifest, "CK084", "warning"));
  for (const Note& note : manifest.notes) CHECK(note.severity != Severity::kError);
  for (std::uint32_t i = 0; i < manifest.tensors.size(); ++i) {
    const bool fine = manifest.tensors[i].name == "w";
    const Status status =
        status_of([&] { hdf5_driver().locate(place, manifest, std::span(&i, 1), {}); });
    CHECK(status.code == (fine ? Code::kOk : Code::kUnsupported));
  }
}

TEST_CASE("a float whose mantissa has its first bit written out is no float32") {
  if (!has_hdf5()) return;
  MemoryFileSystem fs;
  copy_sample(fs, "hdf5/user_block", "copy");
  const auto folder = fs.open_directory("copy");
  const std::string name = folder->list("").front().name;
  const Place place{folder.get(), name, name};
  const auto refusal = [&] {
    Manifest manifest = hdf5_driver().manifest(place, {});
    REQUIRE(!manifest.tensors.empty());
    const std::uint32_t first = 0;
    return status_of([&] { hdf5_driver().locate(place, manifest, std::span(&first, 1), {}); });
  };
  CHECK(refusal().code == Code::kOk);
  // A float's class and bits, and 4 bytes: its mantissa's first bit is implied (2), or is not (0).
  std::string bytes(as_text(file_bytes(*folder, name)));
  const std::size_t at = bytes.find(std::string("\x11\x20\x1f\0\4\0\0\0", 8));
  REQUIRE(at != std::string::npos);
  bytes[at + 1] = '\0';
  fs.write_file("copy/" + name, as_bytes(bytes));
  CHECK(refusal().code == Code::kUnsupported);
}

TEST_CASE("a file of a newer HDF5 library is refused with what rewrites it") {
  if (!has_hdf5()) return;
  const auto fs = make_posix_file_system();
  const auto data = fs->open_directory(TESSERA_SOURCE_DIR "/tests/format/data");
  const Place place{data.get(), "hdf5_latest.h5", "hdf5_latest.h5"};
  const Status status = status_of([&] { hdf5_driver().manifest(place, {}); });
  if (status.ok()) return;  // a libhdf5 as new as the one that wrote it
  CHECK(status.code == Code::kUnsupported);
  CHECK_THAT(status.message, Catch::Contains("bad version number"));
  CHECK_THAT(status.hint, Catch::Contains("h5repack") && Catch::Contains("libver=\"v110\""));
}

TEST_CASE("a dataset in an external file is refused") {
  if (!has_hdf5()) return;
  const SampleCase hostile("hostile", "");
  const Status status =
      status_of([&] { read_all(hdf5_driver(), hostile_place(hostile, "h5_external_storage.h5")); });
  CHECK(status.code == Code::kCorrupt);
  CHECK(status.message.find("external file") != std::string::npos);
}

TEST_CASE("a virtual dataset over files outside of the folder is refused") {
  if (!has_hdf5()) return;
  const SampleCase hostile("hostile", "");
  const Status status = status_of(
      [&] { hdf5_driver().manifest(hostile_place(hostile, "h5_virtual_outside.h5"), {}); });
  CHECK(status.code == Code::kCorrupt);
}

TEST_CASE("a missing source of a virtual dataset is named, never read as fill values") {
  if (!has_hdf5()) return;
  MemoryFileSystem fs;
  copy_sample(fs, "hdf5/virtual_over_ranks", "/c");
  fs.remove_file("/c/rank1.h5");
  const auto directory = fs.open_directory("/c");
  const Place place{directory.get(), "checkpoint.h5", "c"};
  const Status status = status_of([&] { hdf5_driver().manifest(place, {}); });
  CHECK(status.code == Code::kCorrupt);
  CHECK(status.message.find("rank1.h5") != std::string::npos);
  CHECK(status.context.tensor == "flat");
  const Manifest damaged = hdf5_driver().manifest(place, tolerant());
  CHECK(has_note(damaged, "CK083", "error"));
}

TEST_CASE("bytes after the end that an HDF5 file states are found, in the files it reads too") {
  if (!has_hdf5()) return;
  for (const std::string& name : sample_names("hdf5")) {
    CAPTURE(name);
    MemoryFileSystem fs;
    copy_sample(fs, name, "/c");
    const auto directory = fs.open_directory("/c");
    const auto read = [&] {
      return hdf5_driver().manifest({directory.get(), "checkpoint.h5", "c"}, tolerant());
    };
    for (const Note& note : read().notes) CHECK(testing::note_code(note) != "CK023");
    for (const StoredFile& file : read().files) {
      CAPTURE(file.path);
      const Bytes whole = file_bytes(*directory, file.path);
      Bytes longer = whole;
      longer.push_back(std::byte{0});
      fs.write_file("/c/" + file.path, longer);
      CHECK(has_note(read(), "CK023", "error"));
      fs.write_file("/c/" + file.path, whole);
    }
  }
}

TEST_CASE("every truncation of an HDF5 file is refused or reads the same") {
  if (!has_hdf5()) return;
  const SampleCase sample("hdf5/contiguous");
  const Bytes whole = file_bytes(*sample.directory, "checkpoint.h5");
  const auto expected = expected_content(sample.expected);
  for (std::size_t length = 0; length < whole.size(); length += 997) {
    CAPTURE(length);
    MemoryFileSystem fs;
    fs.write_file("/c/x.h5", ByteView(whole).first(length));
    const auto directory = fs.open_directory("/c");
    const Place place{directory.get(), "x.h5", "c"};
    const Status status = status_of([&] {
      const Manifest manifest = read_all(hdf5_driver(), place);
      CHECK(content_of(manifest, *directory) == expected);
    });
    CHECK((status.code == Code::kOk || status.code == Code::kCorrupt));
  }
}

TEST_CASE("flipped bytes of HDF5 metadata end in an answer or a refusal") {
  if (!has_hdf5()) return;
  const SampleCase sample("hdf5/dtypes_layouts");
  const Bytes whole = file_bytes(*sample.directory, "checkpoint.h5");
  for (std::size_t i = 0; i < 60; ++i) {
    Bytes flipped = whole;
    const std::size_t at = (i * 2654435761u) % whole.size();
    CAPTURE(at);
    flipped[at] ^= static_cast<std::byte>(1 + i * 41 % 255);
    MemoryFileSystem fs;
    fs.write_file("/c/x.h5", flipped);
    const auto directory = fs.open_directory("/c");
    const Status status = status_of([&] {
      const Manifest manifest = read_all(hdf5_driver(), {directory.get(), "x.h5", "c"});
      content_of(manifest, *directory);
    });
    CHECK((status.code == Code::kOk || status.code == Code::kCorrupt ||
           status.code == Code::kUnsupported || status.code == Code::kResourceExhausted));
  }
}

TEST_CASE("the file of a folder is the only one, or the one that names the others") {
  const auto probe = [](MemoryFileSystem& fs) {
    const auto directory = fs.open_directory("/c");
    return hdf5_driver().probe({directory.get(), "", "c"});
  };
  MemoryFileSystem parts;
  copy_sample(parts, "hdf5/virtual_over_ranks", "/c");
  CHECK(probe(parts).reason == "has the HDF5 file checkpoint.h5");
  MemoryFileSystem run;
  copy_sample(run, "hdf5/contiguous", "/c");
  run.rename("/c/checkpoint.h5", "/c/epoch1.h5");
  CHECK(probe(run).answer == ProbeResult::Answer::kYes);
  copy_sample(run, "hdf5/contiguous", "/c");
  CHECK(probe(run).answer == ProbeResult::Answer::kNo);  // two checkpoints
}

TEST_CASE("an HDF5 file is known by its signature, wherever a user block lets it stand") {
  const SampleCase user_block("hdf5/user_block");
  CHECK(hdf5_driver().probe({user_block.directory.get(), "checkpoint.h5", ""}).answer ==
        ProbeResult::Answer::kYes);
  MemoryFileSystem fs;
  fs.write_file("/c/a.h5", as_bytes("nothing of the kind"));
  fs.write_file("/c/b.bin", as_bytes("nothing of the kind"));
  const auto directory = fs.open_directory("/c");
  CHECK(hdf5_driver().probe({directory.get(), "a.h5", ""}).answer == ProbeResult::Answer::kMaybe);
  CHECK(hdf5_driver().probe({directory.get(), "b.bin", ""}).answer == ProbeResult::Answer::kNo);
}

}  // namespace tessera::hdf5_read_test
