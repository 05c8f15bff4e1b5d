// The table of formats, and detection by content.
#include <tessera/format/registry.h>
#include <tessera/storage/memory_file_system.h>

#include <catch2/catch.hpp>
#include <set>
#include <string>

#include "tests/support/sample_case.h"

namespace tessera {
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

TEST_CASE("stages and other hidden files do not make a folder a checkpoint") {
  MemoryFileSystem fs;
  fs.write_file("/c/.model.safetensors",
                as_bytes(std::string_view("\x08\0\0\0\0\0\0\0{}      ", 16)));
  CHECK(detected(fs, "").empty());
}

TEST_CASE("every sample of these formats has exactly one candidate") {
  for (const std::string group : {"safetensors", "torchsave"})
    for (const std::string& name : testing::sample_names(group)) {
      CAPTURE(name);
      const testing::SampleCase sample(name);
      const auto files = sample.directory->list();
      const std::string file = files.size() == 1 && group == "torchsave" ? files[0].name : "";
      if (name.find("rankfiles") != name.npos) continue;
      const Detection detection = detect_format({sample.directory.get(), file, name});
      REQUIRE(detection.driver);
      CHECK(detection.candidates.size() == 1);
      CHECK(detection.driver->id() == (group == "safetensors" ? "safetensors" : "torch-save"));
    }
}

}  // namespace tessera
