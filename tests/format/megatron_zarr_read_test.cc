// Folders of dist_checkpointing's zarr backend, layouts written by a script after the sources of
// cores up to 0.12.
#include <tessera/format/megatron_dist.h>
#include <tessera/format/registry.h>
#include <tessera/format/torch_dcp.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>

#include "tests/format/megatron_dist_fixture.h"

namespace tessera::megatron_zarr_read_test {
namespace {

using testing::DistFolder;

constexpr std::string_view kZarr = R"({"sharded_backend": "zarr", "sharded_backend_version": 1})";

void write_floats(MemoryFileSystem& fs, const std::string& path, const std::vector<float>& values) {
  Bytes bytes(values.size() * 4);
  std::memcpy(bytes.data(), values.data(), bytes.size());
  fs.write_file(path, bytes);
}

std::string zarray(const std::string& shape, const std::string& chunks,
                   const std::string& more = R"("compressor":null,"filters":null,"order":"C")",
                   const std::string& dtype = "<f4") {
  return R"({"zarr_format":2,"shape":)" + shape + R"(,"chunks":)" + chunks + R"(,"dtype":")" +
         dtype + R"(","fill_value":0,)" + more + "}";
}

}  // namespace

TEST_CASE("zarr arrays and objects read as they were written") {
  DistFolder folder;
  folder.config(kZarr);
  folder.common(testing::dict({{"iteration", Value::integer(7)}}));
  folder.fs.write_file("/c/w/.zarray", as_bytes(zarray("[3,4]", "[2,2]")));
  // Edges are as large as other chunks: what lies beyond the array is never read.
  write_floats(folder.fs, "/c/w/0.0", {0, 1, 4, 5});
  write_floats(folder.fs, "/c/w/0.1", {2, 3, 6, 7});
  write_floats(folder.fs, "/c/w/1.0", {8, 9, -1, -1});
  write_floats(folder.fs, "/c/w/1.1", {10, 11, -1, -1});
  folder.fs.write_file("/c/scalar/.zarray", as_bytes(zarray("[]", "[]")));
  write_floats(folder.fs, "/c/scalar/0", {42});
  folder.fs.write_file("/c/big/.zarray",
                       as_bytes(zarray("[1]", "[1]", R"("compressor":null,"order":"C")", ">f4")));
  folder.fs.write_file("/c/big/0", as_bytes(std::string_view("\x3f\x80\0\0", 4)));
  folder.fs.write_file("/c/rng_state/shard_0_1.pt",
                       testing::value_item(Value::list({Value::integer(5)})));
  CHECK(detect_format(folder.place()).driver == &megatron_dist_driver());
  const Manifest manifest = folder.read();
  CHECK(folder.floats(manifest, "w") == std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  CHECK(folder.floats(manifest, "scalar") == std::vector<float>{42});
  CHECK(folder.floats(manifest, "big") == std::vector<float>{1});
  const auto values = testing::values_of(manifest, *folder.directory);
  CHECK(values.at("iteration") == "7");
  CHECK(values.at("rng_state/shard_0_1") == "[5]");
}

TEST_CASE("bfloat16 of a zarr array under the name it was patched to") {
  for (const std::string name : {"bfloat16", "<V2", "|V2"}) {
    DistFolder folder;
    folder.config(kZarr);
    folder.common(testing::dict({}));
    folder.fs.write_file("/c/w/.zarray",
                         as_bytes(zarray("[1]", "[1]", R"("compressor":null,"order":"C")", name)));
    folder.fs.write_file("/c/w/0", as_bytes(std::string_view("\x80\x3f", 2)));
    const Manifest manifest = folder.read();
    CHECK(manifest.find("w")->spec.dtype == DType::kBFloat16);
  }
}

TEST_CASE("what a zarr array of Megatron never has is refused by name") {
  struct Bad {
    std::string json, why;
    Code code;
  };
  const std::vector<Bad> bad = {
      {zarray("[2]", "[2]", R"("compressor":{"id":"blosc"},"order":"C")"), "compressor",
       Code::kUnsupported},
      {zarray("[2]", "[2]", R"("compressor":null,"filters":[1],"order":"C")"), "filters",
       Code::kUnsupported},
      {zarray("[2]", "[2]", R"("compressor":null,"order":"F")"), "order", Code::kUnsupported},
      {zarray("[2]", "[2]", R"("order":"C")", "<U5"), "dtype", Code::kUnsupported},
      {zarray("[2]", "[0]"), "zero", Code::kCorrupt},
      {zarray("[2]", "[1,1]"), "ranks", Code::kCorrupt},
      {zarray("[-2]", "[1]"), "", Code::kCorrupt},
      {"{}", "dtype", Code::kCorrupt},
      {"[1]", "expected a dict, found a list of 1", Code::kCorrupt},
      {"{", "", Code::kCorrupt}};
  for (const Bad& one : bad) {
    CAPTURE(one.json);
    DistFolder folder;
    folder.config(kZarr);
    folder.common(testing::dict({}));
    folder.fs.write_file("/c/w/.zarray", as_bytes(one.json));
    write_floats(folder.fs, "/c/w/0", {1, 2});
    std::string message;
    CHECK(folder.failure(message) == one.code);
    CHECK_THAT(message, Catch::Contains(one.why) && Catch::Contains("w/.zarray"));
  }
}

TEST_CASE("chunk files that are missing short or outside are named") {
  std::string message;
  DistFolder lacking;
  lacking.config(kZarr);
  lacking.common(testing::dict({}));
  lacking.fs.write_file("/c/w/.zarray", as_bytes(zarray("[4]", "[2]")));
  write_floats(lacking.fs, "/c/w/0", {1, 2});
  CHECK(lacking.failure(message) == Code::kCorrupt);
  CHECK_THAT(message, Catch::Contains("w/1"));
  write_floats(lacking.fs, "/c/w/1", {1});
  CHECK(lacking.failure(message) == Code::kCorrupt);
  CHECK_THAT(message, Catch::Contains("it has 4 bytes"));
  write_floats(lacking.fs, "/c/w/1", {1, 2});
  write_floats(lacking.fs, "/c/w/2", {1, 2});
  CHECK(lacking.failure(message) == Code::kCorrupt);
  CHECK_THAT(message, Catch::Contains("leaves the array"));
}

TEST_CASE("other spellings of a chunk's name are no chunks") {
  DistFolder folder;
  folder.config(kZarr);
  folder.common(testing::dict({}));
  folder.fs.write_file("/c/w/.zarray", as_bytes(zarray("[4]", "[2]")));
  write_floats(folder.fs, "/c/w/0", {1, 2});
  write_floats(folder.fs, "/c/w/1", {3, 4});
  write_floats(folder.fs, "/c/w/00", {5, 6});
  write_floats(folder.fs, "/c/w/01", {7, 8});
  CHECK(folder.floats(folder.read(), "w") == std::vector<float>{1, 2, 3, 4});
  folder.fs.remove_file("/c/w/1");
  std::string message;
  CHECK(folder.failure(message) == Code::kCorrupt);
  CHECK_THAT(message, Catch::Contains("w/1"));
}

TEST_CASE("a declared grid of any size costs no more than its files") {
  DistFolder folder;
  folder.config(kZarr);
  folder.common(testing::dict({}));
  folder.fs.write_file("/c/w/.zarray", as_bytes(zarray("[1000000000,1000000000]", "[1,1]")));
  write_floats(folder.fs, "/c/w/0.0", {1});
  std::string message;
  CHECK(folder.failure(message) == Code::kCorrupt);
  CHECK_THAT(message, Catch::Contains("w/0.1"));
}

TEST_CASE("an array that lost its header is missed") {
  DistFolder folder;
  folder.config(kZarr);
  folder.common(testing::dict({}));
  write_floats(folder.fs, "/c/w/0.0", {1, 2});
  std::string message;
  CHECK(folder.failure(message) == Code::kCorrupt);
  CHECK_THAT(message, Catch::Contains("w/.zarray") && Catch::Contains("missing"));
}

}  // namespace tessera::megatron_zarr_read_test
