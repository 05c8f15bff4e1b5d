// Weight deltas of reinforcement learning: read over their base, each tensor held against its
// checksums; a chain with a version missing, another base and a changed blob are refused. The cases
// in data/weight_deltas are in slime's published form, by a writer of their own, and sglang's reader
// of them gave the same tensors.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/format/safetensors.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "lib/storage/content_sums.h"
#include "tests/support/convert_case.h"
#include "tests/support/sample_case.h"

namespace weight_delta_test {

using namespace tessera;
using namespace tessera::testing;
using Catch::Matchers::Contains;

namespace {

const std::string kCases = "../tests/ops/data/weight_deltas/";

OpenOptions with_base(const std::string& base) {
  OpenOptions options;
  options.read.own.set(kBaseFlag, base);
  return options;
}

std::map<std::string, std::string> tensors_at(FileSystem& fs, const std::string& path,
                                              const OpenOptions& options) {
  OpenedCheckpoint opened = open_checkpoint(fs, path, options);
  opened.locate_all({});
  return content_of(opened.manifest, *opened.directory);
}

Status refusal(FileSystem& fs, const std::string& path, const OpenOptions& options) {
  try {
    tensors_at(fs, path, options);
  } catch (const Error& error) {
    return error.status();
  }
  return {};
}

/// What the case says of one version.
std::map<std::string, std::string> expected_version(const SampleCase& sample,
                                                    const std::string& version) {
  return expected_content(
      Value::dict({{Value::string("tensors"), *sample.expected.find("versions")->find(version)}}));
}

void turn_byte(MemoryFileSystem& fs, const std::string& path, std::size_t from_end) {
  Bytes bytes = fs.read_file(path);
  bytes[bytes.size() - from_end] ^= std::byte{1};
  fs.write_file(path, bytes);
}

}  // namespace

TEST_CASE("weight deltas over their base are the weights of their version") {
  for (const std::string name :
       {"slime_xor_xxh3", "slime_overwrite_adler32", "slime_full_in_chain"}) {
    CAPTURE(name);
    const SampleCase sample(kCases + name);
    MemoryFileSystem fs;
    load_sample(fs, kCases + name);
    for (const std::string version : {"1", "2", "3"}) {
      CAPTURE(version);
      const std::string path = "/source/weight_v00000" + version;
      CHECK(tensors_at(fs, path, with_base("")) == expected_version(sample, version));
      CHECK(tensors_at(fs, path, with_base("/source/base")) == expected_version(sample, version));
    }
    ConvertOptions options = convert_options("/source/weight_v000003", "/out", 2, "torch-dcp");
    options.own.set(kBaseFlag, "");
    options.verify = true;
    REQUIRE(status_of(fs, options).to_string() == Status{}.to_string());
    CHECK(content_at(fs, "/out").tensors == expected_version(sample, "3"));
  }
}

TEST_CASE("that --base is not used is said where nothing begins from it, and nowhere else") {
  const auto said = [](const std::vector<Note>& notes) {
    std::string out;
    for (const Note& note : notes)
      if (note.message.find("--base") != std::string::npos) out += note.message;
    return out;
  };
  MemoryFileSystem fs;
  load_sample(fs, kCases + "slime_full_in_chain");
  const auto of = [&](const std::string& path) {
    return said(open_checkpoint(fs, path, with_base("/source/base")).notes);
  };
  CHECK(of("/source/weight_v000001").empty());
  CHECK_THAT(of("/source/base"), Contains("has whole weights"));
  CHECK_THAT(of("/source/weight_v000002"), Contains("has whole weights"));
  CHECK_THAT(of("/source/weight_v000003"), Contains("begins from /source/weight_v000002"));
  // The source is whole, and what the result is made against is not.
  ConvertOptions options = convert_options("/source/weight_v000002", "/delta_v000007", {}, "");
  options.delta_from = "/source/weight_v000001";
  options.own.set(kBaseFlag, "/source/base");
  CHECK(said(convert(fs, options).notes).empty());
  options.destination = "/delta_v000008";
  options.delta_from = "/source/base";
  CHECK_THAT(said(convert(fs, options).notes), Contains("has whole weights"));
}

TEST_CASE("a delta by itself is named as one, and is no weights") {
  MemoryFileSystem fs;
  load_sample(fs, kCases + "slime_xor_xxh3");
  const Status alone = refusal(fs, "/source/weight_v000001", {});
  CHECK(alone.code == Code::kUnsupported);
  CHECK_THAT(alone.message, Contains("a delta of version 000001 against version 000000"));
  CHECK_THAT(alone.hint, Contains("--base=PATH"));
  const Status file = refusal(fs, "/source/weight_v000001/model-00000-of-00001.safetensors", {});
  CHECK(file.code == Code::kUnsupported);
  CHECK_THAT(file.message, Contains("delta"));
  // Version 2 of this one is whole: nothing but the chain is needed.
  MemoryFileSystem full;
  load_sample(full, kCases + "slime_full_in_chain");
  CHECK(refusal(full, "/source/weight_v000003", {}).to_string() == Status{}.to_string());
}

TEST_CASE("a broken chain of deltas, another base and changed blobs are refused") {
  MemoryFileSystem pruned;
  load_sample(pruned, kCases + "slime_pruned_chain");
  const Status missing = refusal(pruned, "/source/weight_v000003", with_base(""));
  CHECK(missing.code == Code::kCorrupt);
  CHECK_THAT(missing.message, Contains("against version 000002") && Contains("chain is broken"));

  for (const std::string name : {"slime_xor_xxh3", "slime_overwrite_adler32"}) {
    CAPTURE(name);
    MemoryFileSystem fs;
    load_sample(fs, kCases + name);
    turn_byte(fs, "/source/base/model-00002-of-00002.safetensors", 1500);
    const Status base = refusal(fs, "/source/weight_v000001", with_base(""));
    CHECK(base.code == Code::kCorrupt);
    CHECK_THAT(base.message, Contains("was written"));
    CHECK_FALSE(base.context.tensor.empty());

    MemoryFileSystem blob;
    load_sample(blob, kCases + name);
    const std::string shard = name == "slime_xor_xxh3" ? "00000-of-00001" : "00000-of-00002";
    turn_byte(blob, "/source/weight_v000001/model-" + shard + ".safetensors", 5);
    CHECK(refusal(blob, "/source/weight_v000001", with_base("")).code == Code::kCorrupt);
  }
}

TEST_CASE("a version in an index names nothing but a folder beside it") {
  for (const auto& [version, stem] :
       {std::pair("/../../elsewhere", "weight_v"), std::pair("..", ""), std::pair(".", "")}) {
    CAPTURE(version, stem);
    MemoryFileSystem fs;
    load_sample(fs, kCases + "slime_xor_xxh3");
    const std::string folder = fmt::format("/source/{}000003", stem);
    for (const std::string place : {folder, std::string("/elsewhere")})
      for (const std::string file :
           {"model.safetensors.index.json", "model-00000-of-00001.safetensors"})
        fs.write_file(place + "/" + file, fs.read_file("/source/weight_v000003/" + file));
    fs.write_file("/source/weight_v/x", {});
    const std::string index = folder + "/model.safetensors.index.json";
    std::string text(as_text(fs.read_file(index)));
    const std::string before = "\"base_version\": \"000002\"";
    REQUIRE(text.find(before) != text.npos);
    text.replace(text.find(before), before.size(),
                 fmt::format("\"base_version\": \"{}\"", version));
    fs.write_file(index, as_bytes(text));
    const Status refused = refusal(fs, folder, {});
    CHECK(refused.code == Code::kUnsupported);
    CHECK_THAT(refused.message, Contains("which is not beside it"));
  }
}

TEST_CASE("the blobs of deltas are applied within their tensor, or not at all") {
  // zstd frames of raw blocks: magic, single segment of one byte's size, one last raw block.
  const auto frame = [](std::string text) {
    std::string out("\x28\xb5\x2f\xfd\x20", 5);
    out.push_back(static_cast<char>(text.size()));
    const std::size_t header = 1 | text.size() << 3;
    for (int i = 0; i < 3; ++i) out.push_back(static_cast<char>(header >> (8 * i)));
    return out + text;
  };
  const auto applied = [&](const std::string& encoding, const std::string& delta,
                           std::string tensor, std::string sum = "") {
    DeltaIndex index{"1", "0", encoding, "zstd", "adler32", false, nullptr};
    Bytes bytes(as_bytes(tensor).begin(), as_bytes(tensor).end());
    try {
      const std::string blob = frame(delta);
      apply_delta(index, as_bytes(blob), sum, bytes);
    } catch (const Error& error) {
      return error.status().message;
    }
    return std::string(as_text(bytes));
  };
  const std::string one("\x01\0\0\0\x02\0\0\0Z", 9);
  CHECK(applied("overwrite", one, "abcd", adler32_hex(as_bytes(std::string("abZd")))) == "abZd");
  CHECK_THAT(applied("overwrite", one, "ab"), Contains("changes byte 2 of 2"));
  CHECK_THAT(applied("overwrite", one.substr(0, 8), "abcd"), Contains("changes, it says, 1"));
  CHECK_THAT(applied("overwrite", "ab", "abcd"), Contains("without the count"));
  CHECK_THAT(applied("xor", "abc", "abcd"), Contains("a delta of 3 bytes for a tensor of 4"));
  CHECK_THAT(applied("xor", "abcd", "abcd", "00000000"), Contains("was written"));
  CHECK_THAT(applied("plus", "abcd", "abcd"), Contains("encoding \"plus\""));
}

TEST_CASE("checksums of others are those of their own packages") {
  std::string text;
  for (std::int64_t i = 0; i < 20000; ++i)
    text.push_back(static_cast<char>((i * i * 31 + i * 7) >> 3));
  struct Row {
    std::size_t length;
    const char* adler32;
    const char* xxh3;
    const char* blake3;
  };
  // By Python's zlib, xxhash 3 and blake3 1.
  const Row rows[] = {
      {0, "00000001", "99aa06d3014798d86001c324468d497f",
       "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"},
      {1, "00010001", "a6cd5e9392000f6ac44bdff4074eecdb",
       "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213"},
      {3, "001c0016", "b576409d57d660530a36ef2b09d55333",
       "a963e8209203316f8c1f41e84fddcf84a2381feec431e912100aae450550d4c8"},
      {4, "0057003b", "87c9ddb780a3bdb24cc61f57584c0bac",
       "f6e51fd3022a3ef2054e00b8b4230d7227bcaad4e080f1bb69ce40ce8543f5a5"},
      {8, "055a0235", "33e318e82eb03e820157436daba23935",
       "22644a44afa154601033aa66c6bfe88b8413c1345dd62c004129dd1b7a5e9a9c"},
      {9, "088e0334", "7596ea99f6836f7969a7bad05d08bf0b",
       "7d5983d03a415dad195e028b3413f46b02b8de34a4b44cec189440d5dc95972d"},
      {16, "2b880629", "3a35268fc622a6380997caf6a57450cc",
       "1cd9ffa45fc80e4eb8575809758fb2161dc962f8f5679d81beb9bfcf54b7fcdd"},
      {17, "329f0717", "7061d42bffdfdd16d3ece30aefa61876",
       "877ccd56d3f489bc78cf2ace0ce2246da9958770bb565441beb25d4a86bf4ac4"},
      {32, "db600f51", "54cec7d595a47aaef974cca6727f0a8a",
       "4a42eeadd0dd9c7578bccdabf8e5023ec6ff2ecc8c4bc29e11af41b48ba118e5"},
      {33, "eb4d0fed", "89161c4171b723e207ab07d2d1b1317f",
       "2b208d7a0f5ae1abe0470365f76ddc9514d52bd6549b1010a4c2aeff1003c0da"},
      {64, "e22d1fa1", "38679d57b29ad651b6d6632f9ade9b39",
       "360315a1994694a9a1a15af6609b12520b9312490790f67bb2f95dc9ece7b661"},
      {65, "02151fd9", "d9c92df6d0158da572c68afb9df60908",
       "b90a53ee14b9d9265d6a22cb9da7960913758cbbb000abbc983cbea555542829"},
      {128, "6fe13e41", "e4ccfb3088809415c8b13a152ca8763f",
       "c7f999012228dff8d3b990f4adf7f7f9855ba4533ee38289f9337b21b3a6ff9c"},
      {129, "ae923eb1", "13512e0a08e9d7677ed0180003b3781d",
       "619218b92d9904e9ef43e197eff2a41ac73b124ac189d3182df324ad0cc5f3df"},
      {160, "05c84b91", "356580172c396375048d8593936e40ae",
       "bd9d15f5ad572b753c352ee5c6ffe6c1e0ab00077f92ecc32410af615c1f2f8a"},
      {161, "51654b9d", "01ce2c416f8179eda89521967ecbc632",
       "a1c81c940a327593425c6fdf448a19c37697aa024b0965a61b07a75528eb79c1"},
      {240, "b4e37159", "f224db02a5444558979461df2554835c",
       "9e394ed3a0894889af9cc0789f560748e34e6ebf85c2a9d2a669441c8dbad7d3"},
      {241, "26fd720b", "f9fe8d01231f16debe6a3f68ce100b49",
       "aaacdf2ea81273f0a97236350e74e864ea794c5df3e058eb12b4268787784354"},
      {1024, "bcd3061f", "740a510eed78c7cb51082e32a4f8560c",
       "d72baf421b6fc829ac8584a2be9f99f7335e3982c703e8c674028cd286644f05"},
      {1025, "c372069f", "66ce483047c1da275af0dcee43305c9d",
       "db5e46744bdec75dee9a87deefcc7bc5c7bc537c9dbf617dd4519675bc0babf0"},
      {2049, "51e3fc2e", "d06d41cc0e5fcc8a2afc744eeaa48304",
       "3be2791a37683326f8f499e423299169e7fd2efe1673eefb98fd9aafa665d3e7"},
      {5000, "3655c07c", "1b5cdeb1f6239497137ecd5ff5b1a032",
       "de2886216867374065dd4f5fe476b832c6ec30638a42d375489dc460ec8b7c10"},
      {20000, "2dcfe98b", "60d951f52aeb3e9eef3b7a0cb8f94b80",
       "1c92e0dcca93bdfcf26cdda41b7b2e3217b661e17b20cb86310815ef4da70a99"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.length);
    const ByteView bytes = as_bytes(std::string_view(text).substr(0, row.length));
    CHECK(adler32_hex(bytes) == row.adler32);
    CHECK(xxh3_128_hex(bytes) == row.xxh3);
    CHECK(blake3_hex(bytes) == row.blake3);
    for (const std::size_t piece : {1, 64, 241, 70000}) {
      Xxh3Sum sum;
      for (std::size_t at = 0; at < bytes.size(); at += piece)
        sum.add(bytes.subspan(at, std::min(piece, bytes.size() - at)));
      CHECK(sum.hex() == row.xxh3);
    }
  }
  CHECK_FALSE(content_sum("md5", {}));
}

}  // namespace weight_delta_test
