// --delta-from: a checkpoint as weight deltas against another one. Over its base the result is the
// source, whatever the formats; each blob is what zstd and xor say, and its checksum that of the
// tensor; one element changed in 100 costs at most 3 % of the size.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tessera/base/error.h>
#include <tessera/encoding/codec.h>
#include <tessera/encoding/json.h>
#include <tessera/format/safetensors.h>

#include <catch2/catch.hpp>
#include <random>

#include "lib/storage/content_sums.h"
#include "tests/support/convert_case.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/sample_case.h"
#include "tests/support/sanitized.h"

namespace delta_from_test {

using namespace tessera;
using namespace tessera::testing;
using Catch::Matchers::Contains;

namespace {

struct MadeTensor {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  std::string bytes;
};

void write_tensors(MemoryFileSystem& fs, const std::string& path,
                   const std::vector<MadeTensor>& tensors) {
  std::string header = "{", data;
  for (const MadeTensor& tensor : tensors) {
    header +=
        fmt::format(R"({}"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                    header.size() == 1 ? "" : ",", tensor.name, tensor.dtype,
                    fmt::join(tensor.shape, ","), data.size(), data.size() + tensor.bytes.size());
    data += tensor.bytes;
  }
  fs.write_file(path, as_bytes(safetensors_of(header + "}", data)));
}

std::size_t width(const std::string& dtype) {
  return dtype.ends_with("64") ? 8 : dtype.ends_with("32") ? 4 : dtype.ends_with("16") ? 2 : 1;
}

std::string random_bytes(std::mt19937_64& random, std::size_t count) {
  std::string out(count, '\0');
  for (char& byte : out) byte = static_cast<char>(random());
  return out;
}

MadeTensor random_tensor(std::mt19937_64& random, std::string name, std::string dtype,
                         std::int64_t numel) {
  std::string bytes = random_bytes(random, static_cast<std::size_t>(numel) * width(dtype));
  return {std::move(name), std::move(dtype), {numel}, std::move(bytes)};
}

/// Other bytes for one element in `one_in`.
void change(std::mt19937_64& random, MadeTensor& tensor, std::uint64_t one_in) {
  const std::size_t size = width(tensor.dtype);
  for (std::size_t at = 0; at + size <= tensor.bytes.size(); at += size)
    if (random() % one_in == 0) tensor.bytes.replace(at, size, random_bytes(random, size));
}

std::map<std::string, std::string> tensors_at(FileSystem& fs, const std::string& path,
                                              const std::string* base = nullptr) {
  OpenOptions options;
  if (base != nullptr) options.read.own.set(kBaseFlag, *base);
  OpenedCheckpoint opened = open_checkpoint(fs, path, options);
  opened.locate_all({});
  return content_of(opened.manifest, *opened.directory);
}
Status refusal(FileSystem& fs, const std::string& path, const std::string& base) {
  try {
    tensors_at(fs, path, &base);
  } catch (const Error& error) {
    return error.status();
  }
  return {};
}
std::map<std::string, std::string> values_at(FileSystem& fs, const std::string& path,
                                             const std::string* base = nullptr) {
  OpenOptions options;
  if (base != nullptr) options.read.own.set(kBaseFlag, *base);
  OpenedCheckpoint opened = open_checkpoint(fs, path, options);
  opened.locate_all({});
  return values_of(opened.manifest, *opened.directory);
}

ConvertOptions delta_options(const std::string& from, const std::string& to,
                             const std::string& base) {
  ConvertOptions options = convert_options(from, to, std::nullopt);
  options.delta_from = base;
  options.verify = true;
  return options;
}
ConvertReport make_delta(FileSystem& fs, const ConvertOptions& options) {
  const ConvertReport report = convert(fs, options);
  CHECK(report.verify_findings == std::vector<std::string>{});
  REQUIRE(report.published);
  CHECK(report.verified);
  return report;
}

std::uint64_t bytes_of(const MemoryFileSystem& fs, const std::string& folder) {
  std::uint64_t bytes = 0;
  for (const auto& [path, content] : bytes_below(fs, folder)) bytes += content.size();
  return bytes;
}
Value index_of(const MemoryFileSystem& fs, const std::string& folder) {
  return parse_json(fs.read_file(folder + "/model.safetensors.index.json"));
}

}  // namespace

TEST_CASE("deltas of random checkpoints over their base are the source, and small") {
  std::mt19937_64 random(32);
  for (const std::string dtype :
       {"BF16", "F32", "F16", "F8_E4M3", "F8_E5M2", "I8", "U8", "F64", "I64", "C64"}) {
    CAPTURE(dtype);
    if (kSanitized && dtype.size() == 3) continue;  // the others have each width, too
    std::vector<MadeTensor> tensors = {random_tensor(random, "w.large", dtype, 600000),
                                       random_tensor(random, "w.other", dtype, 300001),
                                       random_tensor(random, "still", dtype, 1000),
                                       random_tensor(random, "empty", dtype, 0)};
    MemoryFileSystem fs;
    write_tensors(fs, "/base/model.safetensors", tensors);
    change(random, tensors[0], 100);
    change(random, tensors[1], 100);
    write_tensors(fs, "/new/model.safetensors", tensors);
    make_delta(fs, delta_options("/new", "/delta", "/base"));
    const std::string base = "/base";
    CHECK(tensors_at(fs, "/delta", &base) == tensors_at(fs, "/new"));
    CHECK(bytes_of(fs, "/delta") * 100 <= bytes_of(fs, "/new") * 3);
  }
}

TEST_CASE("each blob is one frame of zstd of the xor, with the checksum of the tensor") {
  std::mt19937_64 random(7);
  std::vector<MadeTensor> tensors = {random_tensor(random, "a", "F32", 3000),
                                     random_tensor(random, "b", "U8", 241)};
  const std::vector<MadeTensor> before = tensors;
  MemoryFileSystem fs;
  write_tensors(fs, "/base/model.safetensors", tensors);
  for (MadeTensor& tensor : tensors) change(random, tensor, 7);
  write_tensors(fs, "/new/model.safetensors", tensors);
  make_delta(fs, delta_options("/new", "/weight_v000007", "/base"));

  const Value index = index_of(fs, "/weight_v000007");
  const Value& metadata = *index.find("metadata");
  CHECK(metadata.find("version")->as_string() == "000007");
  CHECK(metadata.find("base_version")->as_string() == "000000");
  CHECK(metadata.find("delta_encoding")->as_string() == "xor");
  CHECK(metadata.find("compression_format")->as_string() == "zstd");
  CHECK(metadata.find("checksum_format")->as_string() == "xxh3-128");
  const std::string file = index.find("weight_map")->find("a")->as_string();
  const Bytes bytes = fs.read_file("/weight_v000007/" + file);
  const std::uint64_t header = load_le<std::uint64_t>(bytes.data());
  const Value json = parse_json(ByteView(bytes).subspan(8, header));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    CAPTURE(tensors[i].name);
    const Value& entry = *json.find(tensors[i].name);
    const auto offset = [&](std::size_t end) {
      return static_cast<std::size_t>(entry.find("data_offsets")->as_list()[end].as_int());
    };
    CHECK(entry.find("dtype")->as_string() == "U8");
    const ByteView blob = ByteView(bytes).subspan(8 + header + offset(0), offset(1) - offset(0));
    // Single frame with the content's size: what readers that take a frame at once need.
    CHECK(
        (static_cast<unsigned>(blob[4]) >> 6 > 0 || (static_cast<unsigned>(blob[4]) & 0x20) != 0));
    const Bytes delta = decode("stream.zstd", blob, tensors[i].bytes.size());
    std::string made = before[i].bytes;
    REQUIRE(delta.size() == made.size());
    for (std::size_t at = 0; at < made.size(); ++at) made[at] ^= static_cast<char>(delta[at]);
    CHECK(made == tensors[i].bytes);
    CHECK(json.find("__metadata__")->find(tensors[i].name)->as_string() ==
          xxh3_128_hex(as_bytes(made)));
  }
}

TEST_CASE("tensors of another shape or type, new ones and those that are gone") {
  std::mt19937_64 random(3);
  std::vector<MadeTensor> base = {
      random_tensor(random, "same", "F32", 100), random_tensor(random, "changed", "F32", 100),
      random_tensor(random, "gone", "F32", 10), random_tensor(random, "reshaped", "F32", 12),
      random_tensor(random, "retyped", "F32", 8)};
  MemoryFileSystem fs;
  write_tensors(fs, "/base/model.safetensors", base);
  std::vector<MadeTensor> now = {base[0], base[1], base[3],
                                 random_tensor(random, "retyped", "BF16", 8),
                                 random_tensor(random, "added", "I64", 5)};
  now[1].bytes[17] ^= 1;
  now[2].shape = {3, 4};
  write_tensors(fs, "/new/model.safetensors", now);
  const ConvertReport report = make_delta(fs, delta_options("/new", "/v1", "/base"));
  const std::string text = [&] {
    std::string all;
    for (const Note& note : report.notes) all += note.message + "\n";
    return all;
  }();
  CHECK_THAT(text,
             Contains("1 tensor as deltas, 1 tensor unchanged and left to the base, 3 tensors "
                      "whole, 1 tensor of the base not in SRC"));
  CHECK_THAT(text, Contains("only Tessera reads such a delta"));
  const std::string of_base = "/base";
  CHECK(tensors_at(fs, "/v1", &of_base) == tensors_at(fs, "/new"));
  // One of its files alone is no weights.
  CHECK(refusal(fs, "/v1/model-00001-of-00001.safetensors", "").code == Code::kUnsupported);

  // A delta on it, where what was whole changes, and the first comes back.
  now[4].bytes[0] ^= 1;
  now.push_back(base[2]);
  write_tensors(fs, "/next/model.safetensors", now);
  ConvertOptions next = delta_options("/next", "/v2", "/v1");
  next.own.set(kBaseFlag, "/base");
  make_delta(fs, next);
  next.source = "/v2";
  next.destination = "/both";
  next.delta_from = "/base";
  next.own.set(kBaseFlag, "/v1");
  CHECK(status_of(fs, next).code != Code::kOk);  // /v1 is found, and has no base
  // In a folder of versions the chain is found by names, and joined: whole, and as one delta.
  make_delta(fs, delta_options("/new", "/run/weight_v000001", "/base"));
  next = delta_options("/next", "/run/weight_v000002", "/run/weight_v000001");
  next.own.set(kBaseFlag, "/base");
  make_delta(fs, next);
  CHECK(tensors_at(fs, "/run/weight_v000002", &of_base) == tensors_at(fs, "/next"));
  next = delta_options("/run/weight_v000002", "/joined", "/base");
  next.own.set(kBaseFlag, "/base");
  make_delta(fs, next);
  CHECK(tensors_at(fs, "/joined", &of_base) == tensors_at(fs, "/next"));
  CHECK(index_of(fs, "/joined").find("metadata")->find("version")->as_string() == "000002");
  next = convert_options("/run/weight_v000002", "/whole", std::nullopt);
  next.own.set(kBaseFlag, "/base");
  next.verify = true;
  REQUIRE(status_of(fs, next).to_string() == Status{}.to_string());
  CHECK(tensors_at(fs, "/whole") == tensors_at(fs, "/next"));
}

TEST_CASE("deltas keep the optimizer and its values, between any two formats") {
  MemoryFileSystem fs;
  const std::string sample = load_sample(fs, "dcp/fsdp2_w4");
  convert(fs, convert_options(sample, "/base.pt", std::nullopt, "torch-save"));
  const auto all = tensors_at(fs, sample);
  const auto values = values_at(fs, sample);
  const std::string base = "/base.pt";
  make_delta(fs, delta_options(sample, "/equal", base));
  CHECK(index_of(fs, "/equal").find("weight_map")->as_dict().empty());
  CHECK(tensors_at(fs, "/equal", &base) == all);
  CHECK(values_at(fs, "/equal", &base) == values);

  ConvertOptions cast = delta_options(sample, "/cast", base);
  cast.transform.dtype = DType::kBFloat16;
  make_delta(fs, cast);
  ConvertOptions whole = convert_options(sample, "/whole", std::nullopt, "safetensors");
  whole.transform.dtype = DType::kBFloat16;
  convert(fs, whole);
  CHECK(tensors_at(fs, "/cast", &base) == tensors_at(fs, "/whole"));
  CHECK(values_at(fs, "/cast", &base) == values);

  // Back to where it came from.
  ConvertOptions back = convert_options("/equal", "/back", 2, "torch-dcp");
  back.own.set(kBaseFlag, base);
  back.verify = true;
  REQUIRE(status_of(fs, back).to_string() == Status{}.to_string());
  CHECK(content_at(fs, "/back").tensors == all);
  CHECK(content_at(fs, "/back").values == values);
}

TEST_CASE("a delta is the same whatever memory and threads make it") {
  std::mt19937_64 random(11);
  std::vector<MadeTensor> tensors = {random_tensor(random, "large", "BF16", 9 << 20),
                                     random_tensor(random, "w", "F32", 300000)};
  MemoryFileSystem fs;
  write_tensors(fs, "/base/model.safetensors", tensors);
  for (MadeTensor& tensor : tensors) change(random, tensor, 2);
  write_tensors(fs, "/new/model.safetensors", tensors);
  std::optional<std::map<std::string, std::string>> first;
  for (const auto& [memory, threads] :
       {std::pair<std::uint64_t, int>{std::uint64_t{1} << 30, 1}, {std::uint64_t{1} << 20, 3}}) {
    ConvertOptions options = delta_options("/new", "/delta", "/base");
    options.memory_limit_bytes = memory;
    options.threads = threads;
    options.force = true;
    make_delta(fs, options);
    const auto bytes = bytes_below(fs, "/delta");
    if (!first) first = bytes;
    CHECK(bytes == *first);
  }
}

TEST_CASE("a base that changed, or of another model, is refused where the delta is read") {
  std::mt19937_64 random(5);
  std::vector<MadeTensor> base = {random_tensor(random, "changed", "F32", 100),
                                  random_tensor(random, "still", "F32", 100)};
  MemoryFileSystem fs;
  write_tensors(fs, "/base/model.safetensors", base);
  std::vector<MadeTensor> now = base;
  now[0].bytes[3] ^= 4;
  write_tensors(fs, "/new/model.safetensors", now);
  make_delta(fs, delta_options("/new", "/delta", "/base"));
  for (const std::size_t which : {0, 1}) {
    CAPTURE(which);
    std::vector<MadeTensor> other = base;
    other[which].bytes[200] ^= 1;
    write_tensors(fs, "/other/model.safetensors", other);
    const Status status = refusal(fs, "/delta", "/other");
    CHECK(status.code == Code::kCorrupt);
    CHECK(status.context.tensor == other[which].name);
    CHECK_THAT(status.message, Contains("was written"));
  }
  write_tensors(fs, "/model/model.safetensors", {random_tensor(random, "x", "F32", 3)});
  CHECK(refusal(fs, "/delta", "/model").code == Code::kCorrupt);
}

TEST_CASE("requests for deltas that cannot be are refused before any work") {
  std::mt19937_64 random(9);
  const std::vector<MadeTensor> tensors = {random_tensor(random, "w", "F32", 10)};
  MemoryFileSystem fs;
  write_tensors(fs, "/base/model.safetensors", tensors);
  write_tensors(fs, "/new/model.safetensors", tensors);
  const auto refused = [&](const auto& edit, Code code, const std::string& text) {
    ConvertOptions options = delta_options("/new", "/delta", "/base");
    edit(options);
    const Status status = status_of(fs, options);
    CAPTURE(text);
    CHECK(status.code == code);
    CHECK_THAT(status.message, Contains(text));
    CHECK_FALSE(fs.stat("/delta"));
  };
  refused([](auto& o) { o.to = "torch-dcp"; }, Code::kInvalidArgument, "not torch-dcp");
  refused([](auto& o) { o.destination = "/d.safetensors"; }, Code::kInvalidArgument, "folder");
  refused([](auto& o) { o.own.set(kAsIndexFlag, ""); }, Code::kInvalidArgument, "--as-index");
  refused([](auto& o) { o.delta_from = "/none"; }, Code::kNotFound, "/none");
  refused([](auto& o) { o.destination = "/weight_v000000"; }, Code::kInvalidArgument, "version");
  refused(
      [](auto& o) {
        o.destination = "/base";
        o.force = true;
      },
      Code::kInvalidArgument, "--delta-from");
  ConvertOptions dry = delta_options("/new", "/delta", "/base");
  dry.dry_run = true;
  const ConvertReport report = convert(fs, dry);
  CHECK_FALSE(fs.stat("/delta"));
  CHECK(report.source_bytes == 40);
}

}  // namespace delta_from_test
