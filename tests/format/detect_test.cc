// The table of formats, and detection by content.
#include <tessera/base/error.h>
#include <tessera/format/registry.h>
#include <tessera/ops/open.h>
#include <tessera/storage/memory_file_system.h>

#include <catch2/catch.hpp>
#include <set>
#include <string>

#include "tests/support/convert_case.h"
#include "tests/support/rank_archive.h"
#include "tests/support/sample_case.h"

namespace tessera::detect_test {
namespace {

std::string detected(MemoryFileSystem& fs, const std::string& file) {
  const auto directory = fs.open_directory("/c");
  const Detection detection = detect_format({directory.get(), file, file});
  return detection.driver ? std::string(detection.driver->id()) : "";
}

}  // namespace

TEST_CASE("format ids are unique and found") {
  std::set<std::string_view> ids;
  for (const FormatDriver* driver : all_formats()) {
    CHECK(ids.insert(driver->id()).second);
    CHECK(find_format(driver->id()) == driver);
  }
  CHECK(ids.contains("torch-dcp"));
  CHECK(ids.contains("torch-save"));
  CHECK(ids.contains("safetensors"));
  CHECK(find_format("nope") == nullptr);
  CHECK(find_format("") == nullptr);
}

TEST_CASE("a safetensors file is known by its content, whatever its name") {
  MemoryFileSystem fs;
  fs.write_file("/c/weights.bin", as_bytes(std::string_view("\x08\0\0\0\0\0\0\0{}      ", 16)));
  CHECK(detected(fs, "weights.bin") == "safetensors");
}

TEST_CASE("a damaged file is claimed by its name alone") {
  MemoryFileSystem fs;
  fs.write_file("/c/a.safetensors", as_bytes("abc"));
  fs.write_file("/c/a.pt", {});
  CHECK(detected(fs, "a.safetensors") == "safetensors");
  CHECK(detected(fs, "a.pt") == "torch-save");
}

TEST_CASE("what is no checkpoint is claimed by none") {
  MemoryFileSystem fs;
  fs.write_file("/c/notes.txt", as_bytes("hello, this is text and no checkpoint {"));
  fs.write_file("/c/config.json", as_bytes("{\"a\": {}}"));
  fs.write_file("/c/empty", {});
  fs.make_directories("/c/sub");
  for (const std::string file : {"notes.txt", "config.json", "empty", "sub", "absent", ""}) {
    CAPTURE(file);
    CHECK(detected(fs, file).empty());
  }
}

TEST_CASE("a copy of weights for TensorFlow is no other checkpoint") {
  MemoryFileSystem fs;
  fs.write_file("/c/tf_model.h5", as_bytes("\x89HDF\r\n\x1a\n"));
  CHECK(detected(fs, "") == "hdf5");
  fs.write_file("/c/model.safetensors",
                as_bytes(std::string_view("\x08\0\0\0\0\0\0\0{}      ", 16)));
  CHECK(detected(fs, "") == "safetensors");
}

TEST_CASE("stages and other hidden files do not make a folder a checkpoint") {
  MemoryFileSystem fs;
  fs.write_file("/c/.model.safetensors",
                as_bytes(std::string_view("\x08\0\0\0\0\0\0\0{}      ", 16)));
  CHECK(detected(fs, "").empty());
}

namespace {

/// The format of a sample, by its folder and name alone.
std::string expected_format(const std::string& name) {
  const auto in = [&](std::string_view group) {
    return name.starts_with(std::string(group) + "/");
  };
  if (in("dcp") || in("dcp-old") || in("olmo-core")) return "torch-dcp";
  if (in("deepspeed")) return "deepspeed-zero";
  if (in("fairscale")) return "fairscale-fsdp";
  if (in("megatron"))
    return name.find("torch_dist") == name.npos ? "megatron-torch" : "megatron-dist";
  if (in("torchsave"))
    return name.find("rankfiles") == name.npos ? "torch-save" : "torch-rank-files";
  if (in("quantized")) return "safetensors";
  if (in("torchao"))
    return name.find("_fsdp2_") != name.npos   ? "torch-dcp"
           : name.find("_ranks_") != name.npos ? "torch-rank-files"
                                               : "torch-save";
  return name.substr(0, name.find('/'));  // hdf5, safetensors, olmo-local, ..
}

constexpr const char* kGroups[] = {
    "dcp",         "dcp-old", "olmo-core",     "deepspeed", "fairscale",  "megatron", "torchsave",
    "safetensors", "hdf5",    "torchsnapshot", "quantized", "hf-trainer", "torchao",  "olmo-local"};

}  // namespace

TEST_CASE("every sample is detected as what it is, by one format alone") {
  std::size_t seen = 0;
  for (const std::string group : kGroups)
    for (const std::string& name : testing::sample_names(group)) {
      CAPTURE(name);
      MemoryFileSystem fs;
      const std::string path = testing::load_sample(fs, name);
      std::string detected, reason;
      try {
        const OpenedCheckpoint opened = open_checkpoint(fs, path);
        detected = opened.driver->id();
        reason = opened.detected_by;
        const Detection detection = detect_format(opened.place());
        std::set<std::string> candidates;
        for (const auto& [id, why] : detection.candidates) candidates.insert(id);
        if (detected != "torch-save") candidates.erase("torch-save");  // what the files are made of
        if (detected == "hf-trainer") candidates.erase("safetensors");
        CHECK(candidates == std::set<std::string>{detected});
      } catch (const Error& error) {  // a build without libhdf5; a class that is never run
        CHECK(error.code() == Code::kUnsupported);
        CHECK((group == "hdf5" || name == "torchsave/torchscript"));
        continue;
      }
      CHECK(detected == expected_format(name));
      CHECK_FALSE(reason.empty());
      ++seen;
    }
  CHECK(seen > 80);
}

TEST_CASE("rank files are detected whatever keys of another framework came along in them") {
  MemoryFileSystem fs;
  for (const char* name : {"rank0.pt", "rank1.pt"}) {
    testing::RankArchive archive;
    const Value weight = archive.tensor({2}, {1, 2});
    fs.write_file(std::string("/c/") + name,
                  archive.render(Value::dict(
                      {{Value::string("module"), Value::dict({{Value::string("w"), weight}})},
                       {Value::string("ds_version"), Value::string("0.19.2")},
                       {Value::string("param_metadata"), Value::string("none")}})));
  }
  CHECK(detected(fs, "") == "torch-rank-files");
}

TEST_CASE("what is written is detected as what it was asked to be") {
  for (const FormatDriver* driver : all_formats()) {
    if (!driver->capabilities().writes) continue;
    CAPTURE(std::string(driver->id()));
    MemoryFileSystem fs;
    ConvertOptions options = testing::convert_options(
        testing::load_sample(fs, "dcp/fsdp2_w2"), "/out", std::nullopt, std::string(driver->id()));
    if (driver->id().starts_with("megatron"))
      options.target.mesh = Mesh({{"dp", 2}});
    else if (driver->capabilities().many_ranks)
      options.target.world_size = 3;
    convert(fs, options);
    try {
      CHECK(open_checkpoint(fs, "/out").driver == driver);
    } catch (const Error& error) {  // a build without libhdf5
      CHECK(driver->id() == "hdf5");
      CHECK(error.code() == Code::kUnsupported);
    }
  }
}

TEST_CASE("what could be two formats is refused with both, and --from decides") {
  struct Both {
    std::string first, second;
  };
  for (const Both& both :
       {Both{"dcp/fsdp2_w2", "safetensors/hf_sharded"},
        Both{"fairscale/nested_flat_w2", "dcp/fsdp2_w2"},
        Both{"torchsnapshot/model_optim_w1", "dcp/fsdp2_w2"},
        Both{"torchsave/fsdp1_sharded_rankfiles_w2", "safetensors/hf_sharded"}}) {
    CAPTURE(both.first, both.second);
    MemoryFileSystem fs;
    for (const std::string& name : {both.first, both.second}) {
      MemoryFileSystem one;
      testing::load_sample(one, name);
      for (const auto& [path, bytes] : one.contents("/source"))
        if (!path.ends_with('/')) fs.write_file("/both/" + path, as_bytes(bytes));
    }
    const std::string a = expected_format(both.first), b = expected_format(both.second);
    try {
      open_checkpoint(fs, "/both");
      FAIL_CHECK("opened");
    } catch (const Error& error) {
      CHECK(error.code() == Code::kUnsupported);
      CHECK_THAT(error.status().message, Catch::Contains("could be several formats") &&
                                             Catch::Contains(a) && Catch::Contains(b));
      CHECK_THAT(error.status().hint, Catch::Contains("--from"));
    }
    for (const std::string& id : {a, b}) {
      OpenOptions options;
      options.from = id;
      CHECK(open_checkpoint(fs, "/both", options).driver->id() == id);
    }
  }
}

}  // namespace tessera::detect_test
