// Real checkpoints, resharded and converted: the content stays, and the shards are PyTorch's own.
#include <tessera/base/error.h>
#include <tessera/ops/open.h>
#include <tessera/ops/seal.h>
#include <tessera/storage/checksum.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/support/convert_case.h"
#include "tests/support/note_text.h"
#include "tests/support/sample_case.h"
#include "tests/support/sanitized.h"

namespace convert_samples_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

void reshard(MemoryFileSystem& fs, const std::string& from, const std::string& to, std::int64_t w) {
  INFO("reshard " << from << " to " << w);
  ConvertReport report = convert(fs, convert_options(from, to, w));
  REQUIRE(report.published);
}

}  // namespace

TEST_CASE("resharding W=4 gives the shards that PyTorch itself saves at 1, 2 and 3") {
  MemoryFileSystem fs;
  std::string source = load_sample(fs, "dcp/fsdp2_w4");
  for (std::int64_t w : {1, 2, 3}) {
    MemoryFileSystem other;
    std::string golden = load_sample(other, "dcp/fsdp2_w" + std::to_string(w));
    OpenedContent want = content_at(other, golden);
    std::string out = "/out" + std::to_string(w);
    reshard(fs, source, out, w);
    OpenedContent got = content_at(fs, out);
    CHECK(got.tensors == want.tensors);
    CHECK(got.values == want.values);
    CHECK(got.chunks == want.chunks);
  }
}

TEST_CASE("there and back is content-equal: 4 -> 3 -> 4, 4 -> 7 -> 4, 4 -> 16, 4 -> 1 -> 4") {
  MemoryFileSystem fs;
  std::string source = load_sample(fs, "dcp/fsdp2_w4");
  OpenedContent want = content_at(fs, source);
  for (std::int64_t w : {3, 7, 16, 1}) {
    std::string there = "/there" + std::to_string(w);
    std::string back = "/back" + std::to_string(w);
    reshard(fs, source, there, w);
    reshard(fs, there, back, 4);
    CHECK(content_at(fs, there).tensors == want.tensors);
    OpenedContent got = content_at(fs, back);
    CHECK(got.tensors == want.tensors);
    CHECK(got.values == want.values);
    CHECK(got.chunks == want.chunks);
  }
}

TEST_CASE("every dcp sample reshards to 3 with its content unchanged") {
  for (const std::string& group : {"dcp", "dcp-old", "olmo-core"}) {
    for (const std::string& name : sample_names(group)) {
      if (name.find("fsdp1_local") != std::string::npos) continue;  // flat buffers without names
      if (kSanitized && name.find("torch-2.") != std::string::npos) continue;  // as the newer ones
      INFO(name);
      MemoryFileSystem fs;
      std::string source = load_sample(fs, name);
      OpenedContent want = content_at(fs, source);
      reshard(fs, source, "/out", 3);
      CHECK(content_at(fs, "/out").tensors == want.tensors);
    }
  }
}

TEST_CASE("the three formats turn into each other with tensors and values") {
  for (const std::string& name : {"dcp/fsdp2_w3", "torchsave/adamw_zip", "dcp/hsdp_2x2"}) {
    INFO(name);
    MemoryFileSystem fs;
    std::string source = load_sample(fs, name);
    OpenedContent want = content_at(fs, source);
    struct Hop {
      std::string path, format;
    };
    std::string from = source;
    for (const Hop& hop : {Hop{"/a.safetensors", ""}, Hop{"/b", "torch-dcp"}, Hop{"/c.pt", ""},
                           Hop{"/d", "safetensors"}, Hop{"/e", "torch-dcp"}}) {
      INFO(hop.path);
      ConvertOptions options = convert_options(from, hop.path, std::nullopt, hop.format);
      options.verify = true;
      ConvertReport report = convert(fs, options);
      CHECK(report.verify_findings == std::vector<std::string>{});
      REQUIRE(report.published);
      OpenedContent got = content_at(fs, hop.path);
      CHECK(got.tensors == want.tensors);
      CHECK(got.values == want.values);
      from = hop.path;
    }
  }
}

TEST_CASE("a flattened optimizer is grouped for formats that keep lists of members") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "dcp/fsdp2_w2_flat_optim");
  const OpenedContent want = content_at(fs, source);
  for (const std::string& format : {"deepspeed-zero", "deepspeed-universal", "fairscale-fsdp"}) {
    INFO(format);
    const auto ranks = format == "deepspeed-universal" ? std::nullopt : std::optional(3);
    ConvertOptions options = convert_options(source, "/" + format, ranks, format);
    options.verify = true;
    const ConvertReport report = convert(fs, options);
    REQUIRE(report.published);
    CHECK(report.verify_findings.empty());
    CHECK(std::ranges::count(report.notes, "REKEY", note_code<Note>) == 1);
    const OpenedContent got = content_at(fs, "/" + format);
    CHECK(got.tensors == want.tensors);
    CHECK(got.values.contains("optim.param_groups.1.params"));
    CHECK(!got.values.contains("optim.param_groups.embed.weight.lr"));
  }
}

TEST_CASE("one and four threads, small and large limits write the same bytes") {
  MemoryFileSystem fs;
  std::string source = load_sample(fs, "dcp/fsdp2_tp_2x2");
  for (const std::string& format : {"torch-dcp", "torch-save", "safetensors"}) {
    INFO(format);
    std::optional<std::int64_t> w;
    if (format == "torch-dcp") w = 5;
    ConvertOptions options = convert_options(source, "/x/out", w, format);
    fs.make_directories("/x");
    convert(fs, options);
    auto one = bytes_below(fs, "/x/out");
    for (int threads : {1, 4}) {
      for (std::uint64_t limit : {std::uint64_t{1} << 20, std::uint64_t{64} << 20}) {
        options.threads = threads;
        options.memory_limit_bytes = limit;
        options.force = true;
        convert(fs, options);
        CHECK(bytes_below(fs, "/x/out") == one);
      }
    }
    fs.remove_tree("/x/out");
  }
}

TEST_CASE("a dry run tells the exact files and writes nothing") {
  MemoryFileSystem fs;
  std::string source = load_sample(fs, "dcp/fsdp2_w4");
  ConvertOptions options = convert_options(source, "/out", 3);
  options.dry_run = true;
  auto before = fs.contents("/");
  ConvertReport plan = convert(fs, options);
  CHECK(fs.contents("/") == before);
  CHECK_FALSE(plan.published);
  options.dry_run = false;
  ConvertReport done = convert(fs, options);
  CHECK(plan.output_bytes == done.output_bytes);
  std::uint64_t bytes = 0;
  for (const ConvertedFile& file : plan.files) {
    CHECK(fs.read_file("/out/" + file.path).size() == file.size_bytes);
    bytes += file.size_bytes;
  }
  CHECK(bytes == plan.output_bytes);
  CHECK(fs.read_file("/out/tessera.manifest.json").size() <= plan.seal_bytes);
  CHECK(done.bytes_written == plan.output_bytes);
}

TEST_CASE("the seal's sums are those of the files, and a changed size makes it absent") {
  MemoryFileSystem fs;
  std::string source = load_sample(fs, "dcp/fsdp2_w2");
  ConvertOptions options = convert_options(source, "/out", 3);
  options.verify = true;
  convert(fs, options);
  std::unique_ptr<Directory> directory = fs.open_directory("/out");
  std::optional<Seal> seal = read_seal(*directory, "");
  REQUIRE(seal);
  CHECK(seal->format == "torch-dcp");
  CHECK(seal->root.size() == 64);
  CHECK(seal->tensors.size() == 54);
  for (const SealedFile& file : seal->files) {
    Bytes bytes = fs.read_file("/out/" + file.path);
    CHECK(bytes.size() == file.size_bytes);
    REQUIRE(file.crc32_per_mib.size() == 1);
    CHECK(file.crc32_per_mib[0] == crc32(0, bytes));
  }
  Bytes longer = fs.read_file("/out/" + seal->files[0].path);
  longer.push_back(std::byte{0});
  fs.write_file("/out/" + seal->files[0].path, longer);
  std::string why;
  CHECK_FALSE(read_seal(*directory, "", &why));
  CHECK(why.find(seal->files[0].path) != std::string::npos);
}

TEST_CASE(
    "damage to the seal of a folder that holds one torch-save file is seen where the file is "
    "opened") {
  MemoryFileSystem fs;
  ConvertOptions options =
      convert_options(load_sample(fs, "dcp/fsdp2_w2"), "/out", std::nullopt, "torch-save");
  REQUIRE(convert(fs, options).published);
  std::unique_ptr<Directory> directory = fs.open_directory("/out");
  std::vector<FileInfo> files = directory->list();
  REQUIRE(files.size() == 2);
  std::erase_if(files, [](const FileInfo& info) { return info.name == "tessera.manifest.json"; });
  REQUIRE(files.size() == 1);
  const std::string file = files[0].name;
  REQUIRE(read_seal(*directory, file));

  Bytes seal = fs.read_file("/out/tessera.manifest.json");
  seal[seal.size() / 2] ^= std::byte{1};
  fs.write_file("/out/tessera.manifest.json", seal);
  std::string why;
  CHECK_FALSE(read_seal(*directory, file, &why));
  CHECK(why.find("tessera.manifest.json") != std::string::npos);

  // Beside another file it may be the seal of both, and says nothing of either.
  fs.write_file("/out/other", seal);
  why.clear();
  CHECK_FALSE(read_seal(*directory, file, &why));
  CHECK(why.empty());
}

TEST_CASE("integer ids of an optimizer are integers again behind a DCP that kept them as text") {
  MemoryFileSystem fs;
  std::string source = load_sample(fs, "torchsave/adamw_zip");
  REQUIRE(convert(fs, convert_options(source, "/dcp", 2, "torch-dcp")).published);
  REQUIRE(convert(fs, convert_options("/dcp", "/back.pt", std::nullopt, "torch-save")).published);
  auto keys = [&](const std::string& path) {
    Manifest manifest = open_checkpoint(fs, path, {}).manifest;
    std::map<std::string, Path> paths;
    for (StateEntry& entry : manifest.state.entries) paths[entry.name] = std::move(entry.path);
    return paths;
  };
  std::map<std::string, Path> want = keys(source);
  REQUIRE(want.at("optim.state.0.exp_avg")[2] == PathItem{PathItem::Kind::kIntKey, 0, ""});
  CHECK(keys("/dcp") == want);
  CHECK(keys("/back.pt") == want);
}

}  // namespace convert_samples_test
