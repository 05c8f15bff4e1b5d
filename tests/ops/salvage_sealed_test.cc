// --salvage of what we wrote ourselves: bytes that can all be read, and differ from the seal's
// sums.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/format/registry.h>
#include <tessera/ops/seal.h>
#include <tessera/ops/verify.h>
#include <tessera/storage/checksum.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "lib/ops/open/seal_damage.h"
#include "tests/support/convert_case.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/verify_case.h"

namespace salvage_sealed_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr const char* kTensor = "model.layers.0.up.weight";

struct Written {
  MemoryFileSystem fs;
  std::string file;
  OpenedContent content;
  std::map<std::string, Source> sources;  // of each tensor's first chunk

  /// The sample as one safetensors file of some KiB.
  explicit Written(bool with_sums) : file("/c/model.safetensors") {
    ConvertOptions options =
        convert_options(load_sample(fs, "torchsave/adamw_zip"), "/c", std::nullopt, "safetensors");
    options.verify = with_sums;
    convert(fs, options);
    content = content_at(fs, "/c");
    const OpenedCheckpoint opened = open_checkpoint(fs, "/c");
    for (const StoredTensor& tensor : opened.manifest.tensors)
      sources.emplace(tensor.name, opened.manifest.source(tensor, 0));
  }

  void damage(std::uint64_t offset, std::size_t bytes, std::byte with) {
    Bytes all = fs.read_file(file);
    for (std::size_t i = 0; i < bytes; ++i) all[offset + i] ^= with;
    fs.write_file(file, all);
  }

  ConvertReport salvaged() {
    ConvertOptions options = convert_options("/c", "/saved", std::nullopt, "torch-dcp");
    options.salvage = true;
    return convert(fs, options);
  }

  Status refusal(bool with_salvage) {
    ConvertOptions options = convert_options("/c", "/refused", std::nullopt, "torch-dcp");
    options.salvage = with_salvage;
    try {
      convert(fs, options);
    } catch (const Error& error) {
      CHECK_FALSE(fs.stat("/refused"));
      return error.status();
    }
    return {};
  }

  /// Everything but `lost` came over as it was.
  void check_saved(const ConvertReport& report, const std::vector<std::string>& lost) {
    std::vector<std::string> names;
    for (const LostTensor& tensor : report.lost) names.push_back(tensor.name);
    CHECK(names == lost);
    std::map<std::string, std::string> expected = content.tensors;
    for (const std::string& name : lost) CHECK(expected.erase(name) == 1);
    CHECK(content_at(fs, "/saved").tensors == expected);
  }
};

}  // namespace

TEST_CASE("a turned bit of one tensor is refused, and with salvage costs that tensor alone") {
  for (const bool with_sums : {false, true}) {
    Written written(with_sums);
    REQUIRE(written.sources.size() > 10);
    const Source& source = written.sources.at(kTensor);
    written.damage(source.offset + 5, 1, std::byte{0x10});
    const Status refused = written.refusal(false);
    CHECK(refused.code == Code::kCorrupt);
    CHECK_THAT(refused.hint, Catch::Contains("--salvage"));
    const ConvertReport report = written.salvaged();
    written.check_saved(report, {kTensor});
    CHECK_THAT(report.lost.at(0).reason,
               Catch::Contains(fmt::format("byte {} ", source.offset + 5)) &&
                   Catch::Contains("model.safetensors"));
  }
}

TEST_CASE("more damage costs what the sums of tensors do not prove") {
  Written proved(true);
  proved.damage(proved.sources.at(kTensor).offset, 16, std::byte{0xff});
  proved.check_saved(proved.salvaged(), {kTensor});

  // One sum for header and tensors alike: nothing says what changed.
  Written unproved(false);
  unproved.damage(unproved.sources.at(kTensor).offset, 16, std::byte{0xff});
  const Status refused = unproved.refusal(true);
  CHECK(refused.code == Code::kCorrupt);
  CHECK_THAT(refused.hint, Catch::Contains("--verify"));
}

TEST_CASE(
    "of several changed bytes in one MiB verify says which tensors they are of, or that nothing "
    "does") {
  const std::string other = "model.layers.1.down.weight";
  for (const bool with_sums : {true, false}) {
    Written written(with_sums);
    for (const std::string& name : {std::string(kTensor), other})
      written.damage(written.sources.at(name).offset, 3, std::byte{0x5a});
    const VerifyReport report = verify(written.fs, "/c");
    const Note* note = find(report, "CK043", "model.safetensors");
    REQUIRE(note);
    if (with_sums)
      CHECK_THAT(note->message, Catch::Contains("\"" + std::string(kTensor) + "\"") &&
                                    Catch::Contains(other) && !Catch::Contains("more"));
    if (!with_sums)
      CHECK_THAT(note->message, Catch::Contains("nothing shows which of them changed"));
  }
}

TEST_CASE("metadata that changed is refused with salvage too") {
  for (const bool with_sums : {false, true}) {
    Written written(with_sums);
    const Bytes all = written.fs.read_file(written.file);
    const auto at = as_text(all).find("layers.0.up.weight");
    REQUIRE(at != std::string::npos);
    written.damage(at, 1, std::byte{0x01});
    CHECK(written.refusal(false).code == Code::kCorrupt);
    CHECK(written.refusal(true).code == Code::kCorrupt);
  }
}

TEST_CASE("a MiB of tensors alone costs those that lie in it") {
  MemoryFileSystem fs;
  constexpr std::int64_t kNumel = 100'000;  // 400 kB each: two or three in a MiB
  std::string header = "{";
  for (int i = 0; i < 12; ++i)
    header += fmt::format("{}\"t{}\":{{\"dtype\":\"F32\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                          i ? "," : "", i, kNumel, i * 4 * kNumel, (i + 1) * 4 * kNumel);
  header += "}";
  std::mt19937_64 random(31);
  std::string data;
  for (std::int64_t i = 0; i < 12 * 4 * kNumel; ++i) data += static_cast<char>(random() & 0x3f);
  fs.write_file("/in/model.safetensors", as_bytes(safetensors_of(header, data)));
  convert(fs, convert_options("/in", "/c", std::nullopt, "safetensors"));
  const OpenedContent before = content_at(fs, "/c");
  const OpenedCheckpoint opened = open_checkpoint(fs, "/c");
  Bytes written = fs.read_file("/c/model.safetensors");
  for (std::uint64_t at = 2 * kMiB + 100; at < 2 * kMiB + 200; ++at) written[at] ^= std::byte{0x3c};
  fs.write_file("/c/model.safetensors", written);
  std::vector<std::string> there;
  for (const StoredTensor& tensor : opened.manifest.tensors) {
    const Source& at = opened.manifest.source(tensor, 0);
    if (at.offset < 3 * kMiB && 2 * kMiB < at.offset + at.length) there.push_back(tensor.name);
  }
  REQUIRE(there.size() >= 2);
  ConvertOptions options = convert_options("/c", "/saved", std::nullopt, "torch-dcp");
  options.salvage = true;
  const ConvertReport report = convert(fs, options);
  std::vector<std::string> lost;
  for (const LostTensor& tensor : report.lost) lost.push_back(tensor.name);
  CHECK(lost == there);
  std::map<std::string, std::string> expected = before.tensors;
  for (const std::string& name : there) expected.erase(name);
  CHECK(content_at(fs, "/saved").tensors == expected);
}

TEST_CASE("the place of one turned bit follows from the sums, and is not claimed for two") {
  std::mt19937_64 random(7);
  for (const std::size_t size : {std::size_t{1}, std::size_t{5}, std::size_t{4096}, kMiB}) {
    Bytes block(size);
    for (std::byte& byte : block) byte = static_cast<std::byte>(random());
    const std::uint32_t wanted = crc32(0, block);
    for (int i = 0; i < 4; ++i) {
      const std::size_t at = i == 0 ? 0 : i == 1 ? size - 1 : random() % size;
      const std::byte bit = std::byte{1} << random() % 8;
      block[at] ^= bit;
      CAPTURE(size, at);
      CHECK(turned_byte(wanted, crc32(0, block), size) == at);
      const std::byte second = bit == std::byte{1} ? std::byte{2} : std::byte{1};
      block[at] ^= second;
      CHECK_FALSE(turned_byte(wanted, crc32(0, block), size));
      block[at] ^= bit ^ second;
    }
  }
}

}  // namespace salvage_sealed_test
