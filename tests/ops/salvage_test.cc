// --salvage: whatever was done to the files, each tensor that one sound copy of every chunk makes
// up comes over as it was, and all others are named.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <set>

#include "tests/support/convert_case.h"
#include "tests/support/dcp_builder.h"
#include "tests/support/sample_case.h"
#include "tests/support/sanitized.h"

namespace salvage_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

/// Which tensors damage to a range of a file can reach (through items and records under one
/// checksum) and which it must reach (their data).
struct Reach {
  std::set<std::string> may;
  std::set<std::string> must;
};

class StoredPlaces {
 public:
  StoredPlaces(FileSystem& fs, const std::string& path)
      : items_(open_checkpoint(fs, path)), data_(open_checkpoint(fs, path)) {
    data_.locate_all({});
  }

  Reach reach(const std::string& file, std::uint64_t begin, std::uint64_t end) const {
    Reach reach;
    const auto overlaps = [&](std::uint64_t offset, std::uint64_t length) {
      return offset < end && begin < offset + length;
    };
    each_source(items_, file, [&](const std::string& name, const Source& source) {
      if (overlaps(source.offset, source.length)) reach.may.insert(name);
    });
    each_source(data_, file, [&](const std::string& name, const Source& source) {
      if (overlaps(source.offset, source.length)) reach.must.insert(name);
      if (source.record == 0) return;
      const Record& record = data_.manifest.records[source.record - 1];
      if (overlaps(record.offset, record.length)) reach.must.insert(name);
    });
    reach.may.insert(reach.must.begin(), reach.must.end());
    return reach;
  }

 private:
  template <class Visit>
  static void each_source(const OpenedCheckpoint& opened, const std::string& file, Visit visit) {
    const Manifest& manifest = opened.manifest;
    for (const StateEntry& entry : manifest.state.entries) {
      for_each_tensor(entry.value, [&](std::uint32_t index) {
        const StoredTensor& tensor = manifest.tensors[index];
        for (std::uint32_t c = 0; c < tensor.chunk_count; ++c) {
          const Source& source = manifest.source(tensor, c);
          if (source.length != 0 && manifest.files[source.file].path == file)
            visit(entry.name, source);
        }
      });
    }
  }

  OpenedCheckpoint items_;
  OpenedCheckpoint data_;
};

ConvertReport salvage_to(MemoryFileSystem& fs, const std::string& source, const std::string& to) {
  // To torch-dcp, which holds whatever these sources do.
  ConvertOptions options = convert_options(source, to, 2, "torch-dcp");
  options.salvage = true;
  return convert(fs, options);
}

/// Every tensor and value is there as it was, or named as lost; tensors are lost within `reach`.
void check_salvaged(MemoryFileSystem& fs, const OpenedContent& before, const ConvertReport& report,
                    const std::string& to, const Reach& reach) {
  const OpenedContent after = content_at(fs, to);
  std::set<std::string> lost;
  for (const LostTensor& tensor : report.lost) {
    CHECK_FALSE(tensor.reason.empty());
    CHECK(lost.insert(tensor.name).second);
    const bool is_value = before.values.contains(tensor.name);
    CHECK((is_value || reach.may.contains(tensor.name)));
    CHECK_FALSE(after.tensors.contains(tensor.name));
    CHECK_FALSE(after.values.contains(tensor.name));
  }
  for (const std::string& name : reach.must) CHECK(lost.contains(name));
  for (const auto& [name, content] : before.tensors) {
    if (lost.contains(name)) continue;
    REQUIRE(after.tensors.contains(name));
    CHECK(after.tensors.at(name) == content);
  }
  for (const auto& [name, content] : before.values) {
    if (lost.contains(name)) continue;
    REQUIRE(after.values.contains(name));
    CHECK(after.values.at(name) == content);
  }
}

void turn_byte(MemoryFileSystem& fs, const std::string& path, std::size_t at, int bit) {
  Bytes bytes = fs.read_file(path);
  bytes[at] ^= std::byte{1} << bit;
  fs.write_file(path, bytes);
}

/// Two ranks that both hold all of "a" (rows 0-1) and each a row of "b", each with its own
/// metadata.
void write_two_copies(MemoryFileSystem& fs) {
  for (int rank = 0; rank < 2; ++rank) {
    const std::string file = fmt::format("__{}_0.distcp", rank);
    const Bytes a = tensor_item({2, 2}, 5.0F);
    const Bytes b = tensor_item({1, 2}, static_cast<float>(rank));
    BuiltMetadata metadata;
    metadata.tensors = {{"a", "float32", {2, 2}, {{{0, 0}, {2, 2}}}},
                        {"b", "float32", {2, 2}, {{{rank, 0}, {1, 2}}}}};
    const auto a_size = static_cast<std::int64_t>(a.size());
    metadata.items = {
        {"a", Numbers{0, 0}, file, 0, a_size, {}},
        {"b", Numbers{rank, 0}, file, a_size, static_cast<std::int64_t>(b.size()), {}}};
    Bytes both = a;
    both.insert(both.end(), b.begin(), b.end());
    fs.write_file("/source/" + file, both);
    fs.write_file(fmt::format("/source/__{}.metadata", rank), build_metadata(metadata));
  }
}

}  // namespace

TEST_CASE("salvage brings whole tensors over and names the lost ones") {
  MemoryFileSystem fs;
  std::string source = load_sample(fs, "dcp/fsdp2_w4");
  OpenedContent before = content_at(fs, source);
  fs.remove_file("/source/__3_0.distcp");
  ConvertOptions options = convert_options(source, "/out", 2);
  CHECK_THROWS_AS(convert(fs, options), Error);
  options.salvage = true;
  ConvertReport report = convert(fs, options);
  CHECK_FALSE(report.lost.empty());
  OpenedContent after = content_at(fs, "/out");
  CHECK(after.tensors.size() + after.values.size() + report.lost.size() ==
        before.tensors.size() + before.values.size());
  for (const auto& [name, content] : after.tensors) CHECK(before.tensors[name] == content);
  for (const LostTensor& lost : report.lost) {
    CHECK_FALSE(after.tensors.contains(lost.name));
    CHECK_FALSE(lost.reason.empty());
  }
}

TEST_CASE("one turned bit costs the tensor whose data it is in and no other") {
  int lost = 0;
  int unharmed = 0;
  for (const std::string& name :
       {"dcp/fsdp2_w4", "dcp/fsdp2_w2_zstd", "safetensors/hf_sharded", "torchsave/adamw_zip"}) {
    MemoryFileSystem sound;
    const std::string source = load_sample(sound, name);
    const OpenedContent before = content_at(sound, source);
    const StoredPlaces layout(sound, source);
    const Manifest manifest = open_checkpoint(sound, source).manifest;
    const bool sums = !name.starts_with("safetensors");
    std::mt19937_64 random(7);
    for (int round = 0; round < (kSanitized ? 6 : 25); ++round) {
      MemoryFileSystem fs;
      load_sample(fs, name);
      const StoredFile& file = manifest.files[random() % manifest.files.size()];
      if (file.path.starts_with('.') || file.size_bytes < 200) continue;
      const std::size_t at = random() % file.size_bytes;
      INFO(name << ", bit of byte " << at << " of " << file.path);
      Reach reach = layout.reach(file.path, at, at + 1);
      if (!name.starts_with("dcp") && reach.must.empty()) continue;  // headers decide on everything
      if (name.ends_with("zstd")) reach.must.clear();  // some bits of a frame mean nothing
      const std::string path = source == "/source" ? "/source/" + file.path : source;
      turn_byte(fs, path, at, static_cast<int>(random() % 8));
      const ConvertReport report = salvage_to(fs, source, "/out");
      if (sums) check_salvaged(fs, before, report, "/out", reach);
      if (!sums) CHECK(report.lost.empty());  // nothing says what the bytes were
      lost += !report.lost.empty();
      unharmed += report.lost.empty();
    }
  }
  CHECK(lost > (kSanitized ? 3 : 10));
  CHECK(unharmed > (kSanitized ? 0 : 3));
}

TEST_CASE("a file cut short costs what lay behind the cut") {
  for (const std::string& name : {"dcp/fsdp2_w4", "dcp/fsdp2_w2_many_files"}) {
    MemoryFileSystem sound;
    const std::string source = load_sample(sound, name);
    const OpenedContent before = content_at(sound, source);
    const StoredPlaces layout(sound, source);
    const Manifest manifest = open_checkpoint(sound, source).manifest;
    std::mt19937_64 random(11);
    for (int round = 0; round < (kSanitized ? 4 : 12); ++round) {
      const StoredFile& file = manifest.files[random() % manifest.files.size()];
      if (file.path.starts_with('.') || file.size_bytes == 0) continue;
      const std::size_t size = round == 0 ? 0 : random() % file.size_bytes;
      INFO(name << ", " << file.path << " cut to " << size << " of " << file.size_bytes);
      MemoryFileSystem fs;
      load_sample(fs, name);
      fs.write_file("/source/" + file.path,
                    ByteView(fs.read_file("/source/" + file.path)).first(size));
      ConvertOptions plain = convert_options(source, "/plain", 2);
      CHECK_THROWS_AS(convert(fs, plain), Error);
      const ConvertReport report = salvage_to(fs, source, "/out");
      check_salvaged(fs, before, report, "/out", layout.reach(file.path, size, file.size_bytes));
      CHECK_FALSE(report.lost.empty());
    }
  }
}

TEST_CASE("a damaged copy gives way to another one: turned bit, short file, absent file") {
  MemoryFileSystem sound;
  write_two_copies(sound);
  const OpenedContent before = content_at(sound, "/source");
  const std::size_t a_size = tensor_item({2, 2}, 5.0F).size();
  // The first byte of 5.0F and what follows: in the data of "a".
  const Bytes item = tensor_item({2, 2}, 5.0F);
  const float values[] = {5.0F, 6.0F, 7.0F, 8.0F};
  const ByteView wanted(reinterpret_cast<const std::byte*>(values), sizeof(values));
  const auto data = std::search(item.begin(), item.end(), wanted.begin(), wanted.end());
  REQUIRE(data != item.end());
  const auto in_a = static_cast<std::size_t>(data - item.begin()) + 3;
  for (int rank = 0; rank < 2; ++rank) {
    const std::string path = fmt::format("/source/__{}_0.distcp", rank);
    for (const std::string how : {"bit", "short", "absent"}) {
      INFO(path << ", " << how);
      MemoryFileSystem fs;
      write_two_copies(fs);
      if (how == "bit") turn_byte(fs, path, in_a, 4);
      if (how == "short") fs.write_file(path, ByteView(fs.read_file(path)).first(a_size / 2));
      if (how == "absent") fs.remove_file(path);
      const ConvertReport report = salvage_to(fs, "/source", "/out");
      const OpenedContent after = content_at(fs, "/out");
      REQUIRE(after.tensors.contains("a"));
      CHECK(after.tensors.at("a") == before.tensors.at("a"));
      const bool b_lost = how != "bit";  // its row of this rank is nowhere else
      CHECK(report.lost.size() == (b_lost ? 1 : 0));
      CHECK(after.tensors.contains("b") == !b_lost);
      if (b_lost) CHECK(report.lost[0].name == "b");
    }
  }
}

TEST_CASE("where every copy is damaged the tensor is lost, with the reason") {
  MemoryFileSystem fs;
  write_two_copies(fs);
  const std::size_t half = tensor_item({2, 2}, 5.0F).size() / 2;
  for (const char* path : {"/source/__0_0.distcp", "/source/__1_0.distcp"})
    turn_byte(fs, path, half, 0), turn_byte(fs, path, 20, 0);
  const ConvertReport report = salvage_to(fs, "/source", "/out");
  REQUIRE(report.lost.size() == 1);
  CHECK(report.lost[0].name == "a");
  CHECK(report.lost[0].reason.find("distcp") != std::string::npos);
  CHECK(content_at(fs, "/out").tensors.size() == 1);
}

}  // namespace salvage_test
