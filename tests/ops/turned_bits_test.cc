// A turned bit in a tensor's stored bytes is refused, or lies in a copy that nobody reads: never
// does it reach a hash or a result. Formats whose archives keep checksums.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/ops/hash.h>

#include <catch2/catch.hpp>
#include <random>
#include <set>

#include "tests/support/convert_case.h"
#include "tests/support/sample_case.h"

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
    for (const StoredByte& place : some_places(opened, random, 12)) {
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
  CHECK(refused > 80);
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
