// One tensor or one value: slices as NumPy cuts them, .npy files, paths into values.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/ops/show.h>
#include <tessera/storage/memory_file_system.h>

#include <catch2/catch.hpp>
#include <cstring>

#include "tests/support/inspect_case.h"
#include "tests/support/safetensors_file.h"

namespace show_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

/// /x.safetensors with one float32 tensor "w" of shape [4,5,6], element i = i.
void write_counting(MemoryFileSystem& fs) {
  const std::string header = R"({"w":{"dtype":"F32","shape":[4,5,6],"data_offsets":[0,480]}})";
  std::string data;
  for (int i = 0; i < 120; ++i) {
    const auto value = static_cast<float>(i);
    data.append(reinterpret_cast<const char*>(&value), 4);
  }
  fs.write_file("/x.safetensors", as_bytes(safetensors_of(header, data)));
}

ShowReport show_slice(const std::optional<std::string>& slice, bool npy = false) {
  MemoryFileSystem fs;
  write_counting(fs);
  OpenedCheckpoint opened = open_checkpoint(fs, "/x.safetensors");
  ShowOptions options;
  if (slice) options.slice = parse_slice(*slice);
  options.npy = npy;
  return show(opened, "w", options);
}

std::vector<int> numbers(const ShowReport& report) {
  std::vector<int> values;
  for (const std::string& text : report.values) values.push_back(static_cast<int>(std::stod(text)));
  return values;
}

/// Element (i,j,k) of the counting tensor for every combination.
std::vector<int> product(const std::vector<int>& is, const std::vector<int>& js,
                         const std::vector<int>& ks) {
  std::vector<int> values;
  for (int i : is)
    for (int j : js)
      for (int k : ks) values.push_back(i * 30 + j * 6 + k);
  return values;
}

ShowReport show_sample(const std::string& sample, const std::string& name) {
  OpenedCheckpoint opened = open_sample(sample);
  return show(opened, name, {});
}

}  // namespace

TEST_CASE("slices are cut as NumPy cuts them") {
  using Dims = std::vector<std::int64_t>;
  CHECK(numbers(show_slice("1:3,:2,::1")) == product({1, 2}, {0, 1}, {0, 1, 2, 3, 4, 5}));
  CHECK(show_slice("1:3,:2").slice_shape == Dims{2, 2, 6});
  CHECK(numbers(show_slice("-1,-2:,4:99")) == product({3}, {3, 4}, {4, 5}));
  CHECK(show_slice("-1,-2:,4:99").slice_shape == Dims{2, 2});
  CHECK(numbers(show_slice("2,3,4")) == std::vector<int>{82});
  CHECK(show_slice("2,3,4").slice_shape.empty());
  CHECK(show_slice("2,3,4").slice_origin == Dims{2, 3, 4});
  CHECK(numbers(show_slice("3:1")).empty());
  CHECK(show_slice("3:1").slice_shape == Dims{0, 5, 6});
  CHECK(numbers(show_slice("-99:1,0,:")) == product({0}, {0}, {0, 1, 2, 3, 4, 5}));
}

TEST_CASE("what no slice is, is refused") {
  for (const char* text : {"a", "1:2:3", "1:b", "", "1,,2", "1.5", "::0", "1:2:3:4"}) {
    INFO(text);
    CHECK_THROWS_AS(parse_slice(text), Error);
  }
  CHECK_THROWS_AS(show_slice("0,0,0,0"), Error);
  CHECK_THROWS_AS(show_slice("4"), Error);
  CHECK_THROWS_AS(show_slice("-5"), Error);
  CHECK_THROWS_AS(parse_slice("99999999999999999999"), Error);
}

TEST_CASE("without a slice the corners are shown") {
  MemoryFileSystem fs;
  write_counting(fs);
  OpenedCheckpoint opened = open_checkpoint(fs, "/x.safetensors");
  ShowOptions options;
  options.edge_items = 2;
  const ShowReport report = show(opened, "w", options);
  CHECK(report.elided);
  CHECK(numbers(report) == product({0, 1, 2, 3}, {0, 1, 3, 4}, {0, 1, 4, 5}));
  CHECK(report.shown[2] == std::vector<std::int64_t>{0, 1, 4, 5});
  options.edge_items = 3;
  CHECK_FALSE(show(opened, "w", options).elided);
}

TEST_CASE("a .npy holds the slice, as NumPy writes it") {
  const ShowReport report = show_slice("1,:2,3:5", true);
  const std::string text(as_text(report.npy));
  CHECK(text.substr(0, 8) == std::string("\x93NUMPY\x01\x00", 8));
  CHECK(text.find("'descr': '<f4'") != std::string::npos);
  CHECK(text.find("'shape': (2, 2)") != std::string::npos);
  CHECK(text.find("'fortran_order': False") != std::string::npos);
  REQUIRE(text.size() % 64 == 16);  // header padded to 64, then 4 floats
  float values[4];
  std::memcpy(values, text.data() + text.size() - 16, 16);
  CHECK(std::vector<float>(values, values + 4) == std::vector<float>{33, 34, 39, 40});
  const std::string one(as_text(show_slice("1,:2,3", true).npy));
  CHECK(one.find("'shape': (2,)") != std::string::npos);
  CHECK(std::string(as_text(show_slice("1,2,3", true).npy)).find("'shape': ()") !=
        std::string::npos);
}

TEST_CASE("a tensor shows its chunk table") {
  const ShowReport report = show_sample("dcp/fsdp2_w4", "model.embed.weight");
  CHECK(report.what == ShowReport::What::kTensor);
  CHECK(report.tensor.shape == std::vector<std::int64_t>{11, 6});
  CHECK(report.tensor.sharding == "dim 0 x 4");
  REQUIRE(report.tensor.table.size() == 4);
  std::int64_t rows = 0;
  for (const ChunkRow& chunk : report.tensor.table) rows += chunk.lengths[0];
  CHECK(rows == 11);
}

TEST_CASE("values are found by name, by path, and by inner node") {
  CHECK(show_sample("torchsave/adamw_zip", "epoch").value == Value::integer(2));
  const ShowReport betas = show_sample("torchsave/adamw_zip", "optim.param_groups.0.betas.1");
  CHECK(betas.what == ShowReport::What::kValue);
  CHECK(betas.value == Value::real(0.95));
  const ShowReport group = show_sample("torchsave/adamw_zip", "optim.param_groups.0");
  REQUIRE(group.value.find("lr"));
  CHECK(*group.value.find("lr") == Value::real(0.01));
  for (const char* name : {"model.layers", "model.layers."})
    CHECK(show_sample("torchsave/adamw_zip", name).children == std::vector<std::string>{"0", "1"});
}

TEST_CASE("an unknown name is refused with the nearest") {
  try {
    show_sample("torchsave/adamw_zip", "model.head.biass");
    FAIL("found");
  } catch (const Error& error) {
    CHECK(error.code() == Code::kInvalidArgument);
    CHECK(error.status().hint.find("model.head.bias") != std::string::npos);
  }
}

TEST_CASE("every sample tensor shows, scalars and empty ones too") {
  for (const char* sample : {"torchsave/dtypes_zip", "torchsave/quantized_zip", "dcp/objects_w2",
                             "safetensors/all_dtypes", "torchsave/sparse_zip"}) {
    OpenedCheckpoint opened = open_sample(sample);
    for (std::uint32_t i : leaf_tensors(opened.manifest)) {
      const std::string name = opened.manifest.tensors[i].name;
      INFO(sample << " " << name);
      ShowOptions options;
      options.npy = opened.manifest.tensors[i].spec.dtype == DType::kFloat32;
      const ShowReport report = show(opened, name, options);
      std::size_t expected = 1;
      for (const auto& dim : report.shown) expected *= dim.size();
      CHECK(report.values.size() == expected);
    }
  }
}

}  // namespace show_test
