// A file of another save in the place of one that we wrote: of the same size, its own checksums all
// right. The seal tells it, whatever is read of it, by whatever reads it.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/format/registry.h>
#include <tessera/live/save.h>
#include <tessera/ops/diff.h>
#include <tessera/ops/hash.h>
#include <tessera/ops/optim.h>
#include <tessera/ops/show.h>
#include <tessera/ops/stat.h>
#include <tessera/ops/verify.h>

#include <catch2/catch.hpp>
#include <functional>

#include "tests/support/convert_case.h"
#include "tests/support/note_text.h"
#include "tests/support/sanitized.h"

namespace other_save_test {

using namespace tessera;
using namespace tessera::testing;
using Catch::Matchers::Contains;

namespace {

/// Saves that differ in every byte of tensors, and in a number.
void save_step(MemoryFileSystem& fs, int step) {
  std::vector<float> weight(64, static_cast<float>(step));
  LiveState state;
  state.add("w", {DType::kFloat32, {64}, {}, weight.data()});
  state.add_value("epoch", Value::integer(step));
  SaveOptions options;
  options.file_system = &fs;
  save(fmt::format("/live/{}", step), state, *single_rank(), options);
}

/// Two saves, each as a sealed result in this format: /1 and /2.
bool write_both(MemoryFileSystem& fs, const std::string& format) {
  for (const int step : {1, 2}) {
    save_step(fs, step);
    ConvertOptions options = convert_options(fmt::format("/live/{}", step),
                                             fmt::format("/{}", step), std::nullopt, format);
    if (status_of(fs, options).code == Code::kUnsupported) return false;  // needs a model's names
  }
  return true;
}

std::string refusal(const std::function<void()>& work) {
  try {
    work();
    return "";
  } catch (const Error& error) {
    CHECK(error.code() == Code::kCorrupt);
    return error.status().to_string();
  }
}

OpenedCheckpoint opened(FileSystem& fs, const std::string& path) {
  return open_checkpoint(fs, path);
}

}  // namespace

TEST_CASE("an archive of another save is refused by whatever reads tensors or values") {
  int formats = 0, swapped = 0;
  for (const FormatDriver* driver : all_formats()) {
    const std::string format(driver->id());
    MemoryFileSystem fs;
    if (!driver->capabilities().writes || format == "hdf5" || !write_both(fs, format)) continue;
    ++formats;
    for (const auto& [name, bytes] : bytes_below(fs, "/1")) {
      const std::string path = "/1/" + name;
      if (!bytes.starts_with("PK")) continue;
      const Bytes own = fs.read_file(path), other = fs.read_file("/2/" + name);
      if (own.size() != other.size() || own == other) continue;
      INFO(format << ", " << name);
      CHECK(refusal([&] {
              OpenedCheckpoint sound = opened(fs, "/1");
              hash_checkpoint(sound);
            }) == "");
      fs.write_file(path, other);
      ++swapped;
      const std::vector<std::function<void()>> verbs = {
          [&] {
            OpenedCheckpoint found = opened(fs, "/1");
            hash_checkpoint(found);
          },
          [&] { convert(fs, convert_options("/1", "/out", 1, "torch-dcp")); },
          [&] {
            OpenedCheckpoint found = opened(fs, "/1");
            stat_checkpoint(found);
          },
          [&] {
            OpenedCheckpoint a = opened(fs, "/1"), b = opened(fs, "/1");
            diff_checkpoints(a, b, {});
          }};
      for (std::size_t verb = 0; verb < verbs.size(); ++verb) {
        INFO("verb " << verb);
        CHECK_THAT(refusal(verbs[verb]), Contains("changed after they were written"));
      }
      CHECK_FALSE(fs.stat("/out"));
      ConvertOptions salvaging = convert_options("/1", "/out", 1, "torch-dcp");
      salvaging.salvage = true;
      CHECK_THAT(refusal([&] { convert(fs, salvaging); }), Contains("belongs to another save"));
      CHECK_FALSE(fs.stat("/out"));
      CHECK_FALSE(verify_checkpoint(fs, "/1", {}).ok);
      fs.write_file(path, own);
    }
  }
  CHECK(formats >= 5);
  CHECK(swapped >= 5);
}

TEST_CASE("an archive of another save that ends alike is refused") {
  MemoryFileSystem fs;
  std::vector<float> frozen(std::size_t{1} << 20);
  for (const int step : {1, 2}) {
    std::vector<float> weight(64, static_cast<float>(step));
    LiveState state;
    state.add("a", {DType::kFloat32, {64}, {}, weight.data()});
    state.add("z", {DType::kFloat32, {1 << 20}, {}, frozen.data()});
    SaveOptions options;
    options.file_system = &fs;
    save(fmt::format("/{}", step), state, *single_rank(), options);
  }
  const std::string path = "/1/__0_0.distcp";
  const Bytes own = fs.read_file(path), other = fs.read_file("/2/__0_0.distcp");
  REQUIRE(own.size() == other.size());
  const auto end = [](const Bytes& bytes) { return ByteView(bytes).last(kMiB + 5); };
  REQUIRE(std::ranges::equal(end(own), end(other)));
  fs.write_file(path, other);
  CHECK_THAT(refusal([&] {
               OpenedCheckpoint found = opened(fs, "/1");
               hash_checkpoint(found);
             }),
             Contains("changed after they were written"));
  ConvertOptions salvaging = convert_options("/1", "/out", 1, "torch-dcp");
  salvaging.salvage = true;
  CHECK_THAT(refusal([&] { convert(fs, salvaging); }), Contains("belongs to another save"));
}

TEST_CASE("damage of a value beside sealed tensors costs that value alone") {
  MemoryFileSystem fs;
  save_step(fs, 5);
  const std::string path = "/live/5/__0_0.distcp";
  Bytes bytes = fs.read_file(path);
  const std::size_t at = as_text(bytes).find(std::string_view("\x80\x02K\x05.", 5));
  REQUIRE(at != std::string_view::npos);
  bytes[at + 3] ^= std::byte{0x0c};  // not one bit, which would be told by its place
  fs.write_file(path, bytes);
  ConvertOptions salvaging = convert_options("/live/5", "/out", 1, "torch-dcp");
  CHECK(refusal([&] { convert(fs, salvaging); }) != "");
  salvaging.salvage = true;
  CHECK(convert(fs, salvaging).published);
  const OpenedContent saved = content_at(fs, "/out");
  CHECK(saved.tensors.contains("w"));
  CHECK_FALSE(saved.values.contains("epoch"));
}

TEST_CASE("values of another save are not shown, nor taken for the optimizer's") {
  MemoryFileSystem fs;
  REQUIRE(write_both(fs, "torch-dcp"));
  fs.write_file("/1/__0_0.distcp", fs.read_file("/2/__0_0.distcp"));
  for (const char* name : {"epoch", "w"}) {
    OpenedCheckpoint found = opened(fs, "/1");
    CHECK_THAT(refusal([&] { show(found, name, {}); }),
               Contains("changed after they were written"));
  }
  OpenedCheckpoint found = opened(fs, "/1");
  CHECK_THAT(refusal([&] { inspect_optimizer(found, nullptr, {}); }),
             Contains("changed after they were written"));
  ConvertOptions values = convert_options("/1", "/out", 1, "torch-dcp");
  values.selection.include = {"epoch"};
  CHECK_THAT(refusal([&] { convert(fs, values); }), Contains("changed after they were written"));
}

TEST_CASE("a file that was sealed alone is held to its seal where its folder is opened") {
  MemoryFileSystem fs;
  save_step(fs, 1);
  fs.make_directories("/one");
  REQUIRE(convert(fs, convert_options("/live/1", "/one/a.safetensors", std::nullopt, "safetensors"))
              .published);
  REQUIRE(fs.stat("/one/a.safetensors.tessera.json"));
  const auto hash = [&](const char* path) {
    return refusal([&] {
      OpenedCheckpoint found = opened(fs, path);
      hash_checkpoint(found);
    });
  };
  CHECK(hash("/one") == "");
  CHECK(verify_checkpoint(fs, "/one", {}).sealed);
  Bytes bytes = fs.read_file("/one/a.safetensors");
  bytes[bytes.size() - 5] ^= std::byte{4};
  fs.write_file("/one/a.safetensors", bytes);
  for (const char* path : {"/one", "/one/a.safetensors"}) {
    INFO(path);
    CHECK_THAT(hash(path), Contains("changed after they were written"));
    CHECK_FALSE(verify_checkpoint(fs, path, {}).ok);
  }
  CHECK_THAT(refusal([&] { convert(fs, convert_options("/one", "/out", 1, "torch-dcp")); }),
             Contains("changed after they were written"));
  CHECK_FALSE(fs.stat("/out"));
}

TEST_CASE("verify and salvage hold the parts of a checkpoint to the seals that those have") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "dcp/fsdp2_w2");
  fs.make_directories("/parts");
  for (const auto& [only, part] : {std::pair(Part::kModel, "/parts/pytorch_model_fsdp_0"),
                                   std::pair(Part::kOptim, "/parts/optimizer_0")}) {
    ConvertOptions options = convert_options(source, part, 2);
    options.selection.only = only;
    REQUIRE(convert(fs, options).published);
  }
  REQUIRE(open_checkpoint(fs, "/parts").manifest.files.size() > 2);
  CHECK(verify_checkpoint(fs, "/parts", {}).ok);
  CHECK(verify_checkpoint(fs, "/parts", {}).sealed);
  const std::string metadata = "/parts/optimizer_0/.metadata";
  const Bytes sound = fs.read_file(metadata);
  for (std::size_t at = sound.size() / 2; at < sound.size(); at += 97) {
    Bytes bytes = sound;
    bytes[at] ^= std::byte{2};
    fs.write_file(metadata, bytes);
    INFO("byte " << at);
    bool told = false;
    try {
      const VerifyReport report = verify_checkpoint(fs, "/parts", {});
      for (const Note& note : report.findings)
        told = told || (note.severity == Severity::kError && note.file == "optimizer_0/.metadata");
    } catch (const Error& error) {
      told = true;
    }
    CHECK(told);
  }
  fs.write_file(metadata, sound);
  CHECK(verify_checkpoint(fs, "/parts", {}).ok);
}

TEST_CASE("assets are held to the seal of the folder that they are copied from") {
  MemoryFileSystem fs;
  save_step(fs, 1);
  fs.write_file("/in/config.json", as_bytes("{\"hidden_size\": 64}"));
  ConvertOptions first = convert_options("/live/1", "/sealed", 1, "safetensors");
  first.copy_assets = true;
  first.assets_directory = "/in";
  REQUIRE(convert(fs, first).published);
  ConvertOptions again = convert_options("/live/1", "/out", 1, "safetensors");
  again.copy_assets = true;
  again.assets_directory = "/sealed";
  fs.write_file("/sealed/config.json", as_bytes("{\"hidden_size\": 65}"));
  CHECK_THAT(refusal([&] { convert(fs, again); }), Contains("config.json"));
  CHECK_FALSE(fs.stat("/out"));

  // An archive has checksums of its own, which a copy does not look at.
  fs.write_file("/zip/tokenizer.model", as_bytes("PK\x03\x04 and more"));
  first.destination = "/archive";
  first.assets_directory = "/zip";
  REQUIRE(convert(fs, first).published);
  fs.write_file("/archive/tokenizer.model", as_bytes("PK\x03\x04 and mole"));
  again.assets_directory = "/archive";
  CHECK_THAT(refusal([&] { convert(fs, again); }), Contains("tokenizer.model"));
}

TEST_CASE("salvage leaves out assets that are not what their seal says") {
  MemoryFileSystem fs;
  save_step(fs, 1);
  fs.write_file("/in/config.json", as_bytes("{\"hidden_size\": 64}"));
  fs.write_file("/in/tokenizer.json", as_bytes("{\"a\": 1}"));
  ConvertOptions first = convert_options("/live/1", "/sealed", 1, "safetensors");
  first.copy_assets = true;
  first.assets_directory = "/in";
  REQUIRE(convert(fs, first).published);
  fs.write_file("/sealed/tokenizer.json", as_bytes("{\"a\": 3}"));
  ConvertOptions salvage = convert_options("/sealed", "/out", 1, "safetensors");
  salvage.copy_assets = true;
  CHECK_THAT(refusal([&] { convert(fs, salvage); }), Contains("tokenizer.json"));
  salvage.salvage = true;
  const ConvertReport report = convert(fs, salvage);
  CHECK(report.published);
  REQUIRE(report.lost.size() == 1);
  CHECK(report.lost[0].name == "tokenizer.json");
  CHECK(fs.stat("/out/config.json"));
  CHECK_FALSE(fs.stat("/out/tokenizer.json"));
}

TEST_CASE("a sealed file that is copied with its seal is held to it under its new name") {
  MemoryFileSystem fs;
  save_step(fs, 1);
  fs.make_directories("/one");
  REQUIRE(convert(fs, convert_options("/live/1", "/one/a.safetensors", std::nullopt, "safetensors"))
              .published);
  Bytes bytes = fs.read_file("/one/a.safetensors");
  fs.write_file("/one/b.safetensors.tessera.json", fs.read_file("/one/a.safetensors.tessera.json"));
  const auto hash = [&] {
    return refusal([&] {
      OpenedCheckpoint found = opened(fs, "/one/b.safetensors");
      CHECK(found.seal);
      hash_checkpoint(found);
    });
  };
  fs.write_file("/one/b.safetensors", bytes);
  CHECK(hash() == "");
  CHECK(verify_checkpoint(fs, "/one/b.safetensors", {}).sealed);
  bytes[bytes.size() - 5] ^= std::byte{4};
  fs.write_file("/one/b.safetensors", bytes);
  CHECK_THAT(hash(), Contains("changed after they were written") && Contains("b.safetensors"));
}

TEST_CASE("a turned bit that looks like what nobody supports is damage where there is a seal") {
  MemoryFileSystem fs;
  REQUIRE(write_both(fs, "torch-save"));
  std::string path;
  for (const auto& [name, bytes] : bytes_below(fs, "/1"))
    if (bytes.starts_with("PK")) path = "/1/" + name;
  REQUIRE_FALSE(path.empty());
  const Bytes sound = fs.read_file(path);
  int unlike = 0;
  for (std::size_t at = 0; at < sound.size(); at += kSanitized ? 7 : 1) {
    Bytes bytes = sound;
    bytes[at] ^= std::byte{1};
    fs.write_file(path, bytes);
    try {
      OpenedCheckpoint found = opened(fs, "/1");
      hash_checkpoint(found);
    } catch (const Error& error) {
      INFO("byte " << at << ": " << error.what());
      CHECK(error.code() == Code::kCorrupt);
      ++unlike;
    }
  }
  CHECK(unlike > (kSanitized ? 10 : 100));
}

}  // namespace other_save_test
