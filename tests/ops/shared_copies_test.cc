// Copies of one tensor in buffers that many tensors share: no record's CRC-32 compares them, so
// that verify and --verify read them.
#include <fmt/format.h>
#include <tessera/ops/verify.h>
#include <tessera/storage/checksum.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>

#include "tests/support/convert_case.h"
#include "tests/support/megatron_case.h"
#include "tests/support/note_text.h"
#include "tests/support/sample_case.h"

namespace shared_copies_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr const char* kRealRanks = "../tests/format/data/megatron_ranks/grouped_tp2_ep2";

/// Real rank files whose parameters are views of one buffer a rank, in /c.
void load_ranks(MemoryFileSystem& fs) {
  const SampleCase sample(kRealRanks, "iter_0000007");
  for (const FileInfo& folder : sample.directory->list()) {
    if (folder.type != FileType::kDirectory) continue;
    for (const FileInfo& info : sample.directory->list(folder.name)) {
      Bytes bytes(info.size_bytes);
      sample.directory->open(folder.name + "/" + info.name)->read_at(0, bytes);
      fs.write_file("/c/" + folder.name + "/" + info.name, bytes);
    }
  }
}

/// A tensor of /c with several whole copies, each part of its record, and the copy's file.
struct SharedCopy {
  std::string tensor, file;
};

/// Turns a bit of the second copy of the first tensor that `wanted` takes, and makes the record's
/// CRC-32 that of its new bytes.
SharedCopy change_copy(MemoryFileSystem& fs, const std::string& wanted) {
  OpenedCheckpoint opened = open_checkpoint(fs, "/c");
  opened.locate_all({});
  const Manifest& manifest = opened.manifest;
  for (const StoredTensor& tensor : manifest.tensors) {
    if (tensor.name.find(wanted) == std::string::npos || tensor.chunk_count < 2) continue;
    const Source& source = manifest.source(tensor, 1);
    if (manifest.chunk(tensor, 0) != manifest.chunk(tensor, 1) || source.record == 0) continue;
    const Record& record = manifest.records[source.record - 1];
    if (record.length == source.length) continue;
    const std::string file = manifest.files[source.file].path;
    Bytes bytes = fs.read_file("/c/" + file);
    bytes.at(source.offset + 1) ^= std::byte{1};
    const std::uint32_t now =
        crc32(0, ByteView(bytes).subspan(record.offset, static_cast<std::size_t>(record.length)));
    for (std::size_t at = 0; at + 4 <= bytes.size(); ++at)
      if (std::memcmp(bytes.data() + at, &record.crc32, 4) == 0)
        std::memcpy(bytes.data() + at, &now, 4);
    fs.write_file("/c/" + file, bytes);
    return {tensor.name, file};
  }
  FAIL("no tensor has copies in shared buffers");
  return {};
}

VerifyReport verify(MemoryFileSystem& fs, VerifyLevel level) {
  VerifyOptions options;
  options.level = level;
  return verify_checkpoint(fs, "/c", options);
}

std::string list(const VerifyReport& report) {
  std::string text;
  for (const Note& n : report.findings)
    text += fmt::format("{} {} [{}] {}: {}\n", note_code(n), note_severity(n), n.file, n.tensor,
                        n.message);
  return text;
}

void check_found(MemoryFileSystem& fs, const SharedCopy& changed) {
  CHECK(verify(fs, VerifyLevel::kQuick).ok);
  for (const VerifyLevel level : {VerifyLevel::kFull, VerifyLevel::kDeep}) {
    const VerifyReport report = verify(fs, level);
    INFO(list(report));
    CHECK_FALSE(report.ok);
    CHECK(std::ranges::count(report.findings, "error", note_severity<Note>) == 1);
    CHECK(note_code(report.findings[0]) == "CK046");
    CHECK(report.findings[0].tensor == changed.tensor);
    CHECK(report.findings[0].file == changed.file);
  }
}

}  // namespace

TEST_CASE("copies of parameters in a rank's buffer are compared by verify as it is") {
  MemoryFileSystem fs;
  load_ranks(fs);
  const VerifyReport sound = verify(fs, VerifyLevel::kFull);
  INFO(list(sound));
  CHECK(sound.ok);
  CHECK(
      std::ranges::none_of(sound.findings, [](const Note& n) { return note_code(n) == "CK098"; }));
  check_found(fs, change_copy(fs, "layernorm"));
}

TEST_CASE("copies in the distributed optimizer's buckets are compared by verify as it is") {
  MemoryFileSystem fs;
  ToyOptions options;
  options.tp = 2;
  options.optimizer = ToyOptions::Optimizer::kDistributed;
  write_toy(fs, "/c", options);
  CHECK(verify(fs, VerifyLevel::kFull).ok);
  check_found(fs, change_copy(fs, "linear_proj.bias.exp_avg"));
}

TEST_CASE("a reshard with proof publishes nothing where copies of its source differ") {
  MemoryFileSystem fs;
  load_ranks(fs);
  ConvertOptions options = convert_options("/c", "/out", std::nullopt);
  options.target.mesh = Mesh::parse("tp=1,ep=2");
  options.verify = true;
  const ConvertReport proved = convert(fs, options);
  INFO((proved.verify_findings.empty() ? "" : proved.verify_findings[0]));
  CHECK(proved.verified);
  const SharedCopy changed = change_copy(fs, "layernorm");
  options.destination = "/other";
  const ConvertReport report = convert(fs, options);
  CHECK_FALSE(report.verified);
  CHECK_FALSE(report.published);
  CHECK_FALSE(fs.stat("/other"));
  // What was written and what is read may be different copies: that may be a finding, too.
  CHECK(std::ranges::any_of(report.verify_findings, [&](const std::string& finding) {
    return finding.find("CK046") != std::string::npos &&
           finding.find(changed.tensor) != std::string::npos &&
           finding.find(changed.file) != std::string::npos;
  }));
  options.verify = false;
  CHECK(convert(fs, options).published);
}

}  // namespace shared_copies_test
