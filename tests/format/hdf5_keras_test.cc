// What Keras writes around HDF5: `.keras` archives and sharded weights.
//
// tests/format/data/keras: one model, saved by Keras 3.15.1 (torch backend) as plain.weights.h5, as
// model.keras, and by save_weights("model.weights.json", max_shard_size=2e-7). The plain file,
// which h5py reads, is the oracle of the other two.
#include <tessera/ops/open.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "lib/format/hdf5/keras_files.h"
#include "tests/format/hdf5_fixture.h"
#include "tests/support/note_text.h"

namespace tessera::hdf5_keras_test {
namespace {

using namespace testing;

const std::string kData = TESSERA_SOURCE_DIR "/tests/format/data/keras/";

Bytes file_of(const std::string& name) {
  std::ifstream stream(kData + name, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  REQUIRE_FALSE(text.empty());
  const ByteView bytes = as_bytes(text);
  return {bytes.begin(), bytes.end()};
}

/// A folder in memory.
struct Folder {
  MemoryFileSystem fs;
  std::unique_ptr<Directory> directory;
  Folder& put(const std::string& name, ByteView bytes) {
    fs.write_file("/c/" + name, bytes);
    return *this;
  }
  Folder& put_shards() {
    for (const auto& entry : std::filesystem::directory_iterator(kData + "sharded")) {
      const std::string name = entry.path().filename();
      put(name, file_of("sharded/" + name));
    }
    return *this;
  }
  Place place(const std::string& file = "") {
    directory = fs.open_directory("/c");
    return {directory.get(), file, "c"};
  }
};

struct Content {
  std::map<std::string, std::string> tensors, values;
  bool operator==(const Content&) const = default;
};

Content content(Folder& folder, const std::string& file = "") {
  const Place place = folder.place(file);
  const Manifest manifest = read_all(hdf5_driver(), place);
  return {content_of(manifest, *place.directory), values_of(manifest, *place.directory)};
}

Content plain() {
  Folder folder;
  folder.put("plain.weights.h5", file_of("plain.weights.h5"));
  return content(folder);
}

Status failure(Folder& folder, const std::string& file = "") {
  return status_of([&] { content(folder, file); });
}

std::string text_of(ByteView bytes) { return std::string(as_text(bytes)); }

void overwrite(Bytes& bytes, std::size_t at, std::string_view text) {
  std::ranges::copy(as_bytes(text), bytes.begin() + static_cast<std::ptrdiff_t>(at));
}

}  // namespace

TEST_CASE("a Keras archive reads as the HDF5 file inside it, with its texts") {
  if (!has_hdf5()) return;
  const Content wanted = plain();
  CHECK(wanted.tensors.size() == 22);
  Folder folder;
  folder.put("model.keras", file_of("model.keras"));
  CHECK(hdf5_driver().probe(folder.place()).reason == "has the Keras archive model.keras");
  CHECK(hdf5_driver().probe(folder.place("model.keras")).answer == ProbeResult::Answer::kYes);
  Content got = content(folder);
  CHECK(got.tensors == wanted.tensors);
  CHECK_THAT(got.values.at("config.json"), Catch::Contains("Sequential"));
  CHECK_THAT(got.values.at("metadata.json"), Catch::Contains("3.15.1"));
  got.values.erase("config.json");
  got.values.erase("metadata.json");
  CHECK(got.values == wanted.values);
  CHECK(content(folder, "model.keras").tensors == wanted.tensors);
}

TEST_CASE("sharded Keras weights are one tree") {
  if (!has_hdf5()) return;
  Folder folder;
  folder.put_shards();
  CHECK(hdf5_driver().probe(folder.place()).reason ==
        "has the index of Keras weights model.weights.json");
  CHECK(content(folder) == plain());
  CHECK(content(folder, "model.weights.json") == plain());
  CHECK(hdf5_driver().manifest(folder.place(), {}).dialect == "Keras weights in 6 shards");
}

TEST_CASE("an index of older Keras releases names one shard a group") {
  const h5::KerasIndex index = h5::parse_keras_index(
      as_bytes(R"({"metadata":{"total_size":1.0},"weight_map":{"/a/vars":"m_00001.weights.h5",)"
               R"("/vars":["m_00000.weights.h5","m_00001.weights.h5"]}})"));
  CHECK(index.shards == std::vector<std::string>{"m_00000.weights.h5", "m_00001.weights.h5"});
  CHECK(index.groups.at("a/vars") == std::vector<std::string>{"m_00001.weights.h5"});
}

TEST_CASE("a missing shard of Keras weights is named with what it held") {
  if (!has_hdf5()) return;
  Folder folder;
  folder.put_shards();
  folder.fs.remove_file("/c/model_00001.weights.h5");
  const Status status = failure(folder);
  CHECK(status.code == Code::kCorrupt);
  CHECK(status.context.file == "model_00001.weights.h5");
  CHECK_THAT(status.message, Catch::Contains("it is missing") && Catch::Contains("3 groups") &&
                                 Catch::Contains("layers.batch_normalization.vars"));
  ReadOptions tolerant;
  tolerant.tolerate_damage = true;
  const Manifest manifest = hdf5_driver().manifest(folder.place(), tolerant);
  CHECK(std::ranges::count(manifest.notes, "CK010", testing::note_code<Note>) == 1);
  CHECK(manifest.tensors.size() == 15);
}

TEST_CASE("what the index of Keras weights places in a shard must be there") {
  if (!has_hdf5()) return;
  Folder folder;
  folder.put_shards();
  std::string index = text_of(file_of("sharded/model.weights.json"));
  index.replace(index.find("dense_1"), 7, "dense_9");
  folder.put("model.weights.json", as_bytes(index));
  const Status status = failure(folder);
  CHECK(status.code == Code::kCorrupt);
  CHECK(status.context.tensor == "layers.dense_9.vars");
  folder.put_shards().put("model_00005.weights.h5", file_of("sharded/model_00004.weights.h5"));
  CHECK_THAT(failure(folder).message, Catch::Contains("two shards hold \"optimizer.vars."));
}

TEST_CASE("an index of Keras weights cannot lead out of its folder") {
  for (const char* name : {"../x.weights.h5", "/etc/passwd", "a/b.h5", "..", "", "a\\\\b"}) {
    const std::string json = R"({"weight_map":{"/vars":")" + std::string(name) + "\"}}";
    CAPTURE(json);
    CHECK(status_of([&] { h5::parse_keras_index(as_bytes(json)); }).code == Code::kCorrupt);
  }
  for (const char* json : {"[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{"a":1}})",
                           R"({"weight_map":{"a":[1]}})", "{"}) {
    CAPTURE(json);
    CHECK(status_of([&] { h5::parse_keras_index(as_bytes(json)); }).code == Code::kCorrupt);
  }
}

TEST_CASE("an index that leads out of its folder is named, not taken for some other file") {
  Folder folder;
  folder.put_shards().put("model.weights.json",
                          as_bytes(R"({"weight_map":{"/vars":"../x.weights.h5"}})"));
  for (const std::string path : {"/c", "/c/model.weights.json"}) {
    CAPTURE(path);
    const Status status = status_of([&] { open_checkpoint(folder.fs, path); });
    CHECK(status.code == Code::kCorrupt);
    CHECK_THAT(status.message, Catch::Contains("\"../x.weights.h5\" is no name of a file"));
    CHECK(status.context.file == "model.weights.json");
  }
}

TEST_CASE("a Keras archive without its one file of weights says what it holds instead") {
  if (!has_hdf5()) return;
  const Bytes whole = file_of("model.keras");
  const std::string text = text_of(whole);
  const auto renamed = [&](std::string_view name) {
    Bytes bytes = whole;
    for (std::size_t at = 0; (at = text.find("model.weights.h5", at)) != text.npos; ++at)
      overwrite(bytes, at, name);
    return bytes;
  };
  Folder folder;
  folder.put("model.keras", renamed("shard000.part.h5"));
  for (const std::string path : {"/c", "/c/model.keras"}) {
    CAPTURE(path);
    const Status shards = status_of([&] { open_checkpoint(folder.fs, path); });
    CHECK(shards.code == Code::kUnsupported);
    CHECK_THAT(shards.message, Catch::Contains("holds no model.weights.h5, but 1 other file of "
                                               "weights: shard000.part.h5"));
    CHECK_THAT(shards.hint, Catch::Contains("unzip model.keras '*.h5'"));
  }
  folder.put("model.keras", renamed("notes-of-the.txt"));
  const Status none = status_of([&] { open_checkpoint(folder.fs, "/c/model.keras"); });
  CHECK(none.code == Code::kUnsupported);
  CHECK_THAT(none.message, Catch::Contains("nor any other weights"));
}

TEST_CASE("a Keras archive that holds its weights twice is refused") {
  if (!has_hdf5()) return;
  // The entry of config.json gets the name of the weights, which is as long with a prefix.
  Bytes bytes = file_of("model.keras");
  const std::string text = text_of(bytes);
  const std::size_t end = text.rfind("PK\x05\x06");
  const std::size_t entry = text.rfind("model.weights.h5") - 46;
  const std::string twin = text.substr(entry, 46 + 16);
  const std::size_t directory = twin.size();
  Bytes longer(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(end));
  const ByteView more = as_bytes(twin);
  longer.insert(longer.end(), more.begin(), more.end());
  longer.insert(longer.end(), bytes.begin() + static_cast<std::ptrdiff_t>(end), bytes.end());
  const std::size_t tail = end + directory;
  const auto add = [&](std::size_t at, std::size_t n) {
    const auto value = std::to_integer<std::size_t>(longer[at]) +
                       (std::to_integer<std::size_t>(longer[at + 1]) << 8) + n;
    longer[at] = static_cast<std::byte>(value & 255);
    longer[at + 1] = static_cast<std::byte>(value >> 8 & 255);
  };
  add(tail + 8, 1);  // entries on this disk, in all, and the bytes of the directory
  add(tail + 10, 1);
  add(tail + 12, directory);
  Folder folder;
  folder.put("model.keras", longer);
  const Status status = status_of([&] { open_checkpoint(folder.fs, "/c/model.keras"); });
  CHECK(status.code == Code::kCorrupt);
  CHECK_THAT(status.message, Catch::Contains("model.weights.h5"));
}

TEST_CASE("compressed weights in a Keras archive are unsupported, with the way out") {
  if (!has_hdf5()) return;
  Bytes bytes = file_of("model.keras");
  const std::string text = text_of(bytes);
  // The method of model.weights.h5, in its local header and in the directory.
  const std::size_t local = text.find("model.weights.h5") - 30;
  const std::size_t entry = text.rfind("model.weights.h5") - 46;
  REQUIRE(text.substr(local, 2) == "PK");
  REQUIRE(text.substr(entry, 2) == "PK");
  bytes[local + 8] = bytes[entry + 10] = std::byte{8};
  Folder folder;
  folder.put("model.keras", bytes);
  const Status status = failure(folder);
  CHECK(status.code == Code::kUnsupported);
  CHECK_THAT(status.message, Catch::Contains("model.weights.h5 is compressed"));
  CHECK_THAT(status.hint, Catch::Contains("unzip model.keras model.weights.h5"));
}

TEST_CASE("a damaged Keras archive is refused, and nothing outside of its entry is read") {
  if (!has_hdf5()) return;
  const Bytes whole = file_of("model.keras");
  const std::string text = text_of(whole);
  Folder folder;
  Bytes other_name = whole;
  overwrite(other_name, text.find("model.weights.h5"), "model.weights.h6");  // local header alone
  folder.put("model.keras", other_name);
  CHECK(failure(folder).code == Code::kCorrupt);
  Bytes signature = whole;
  overwrite(signature, text.find("\x89HDF"), "XXXX");
  folder.put("model.keras", signature);
  CHECK(failure(folder).code == Code::kCorrupt);
  const auto wanted = plain().tensors;
  for (std::size_t length = 0; length < whole.size(); length += 1499) {
    CAPTURE(length);
    folder.put("model.keras", ByteView(whole).first(length));
    CHECK(failure(folder, "model.keras").code == Code::kCorrupt);
  }
}

}  // namespace tessera::hdf5_keras_test
