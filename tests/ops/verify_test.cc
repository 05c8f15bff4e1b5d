// Every kind of damage is found, with its code, its file and its tensor, at the level that can see
// it.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/encoding/json.h>
#include <tessera/ops/convert.h>
#include <tessera/ops/hash.h>
#include <tessera/ops/verify.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <random>

#include "tests/support/convert_case.h"
#include "tests/support/dcp_builder.h"
#include "tests/support/sanitized.h"
#include "tests/support/verify_case.h"

namespace verify_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

/// A torch-dcp folder at /ck: one float32 tensor "a" of shape [6,4] in the given row ranges, each
/// with its own first value, two items per file.
struct Rows {
  std::int64_t begin, end;
  float first;
};
void write_rows(MemoryFileSystem& fs, const std::vector<Rows>& rows) {
  BuiltMetadata metadata;
  metadata.tensors = {{"a", "float32", {6, 4}, {}}};
  Bytes content;
  for (const Rows& r : rows) {
    const Bytes item = tensor_item({r.end - r.begin, 4}, r.first);
    metadata.tensors[0].chunks.push_back({{r.begin, 0}, {r.end - r.begin, 4}});
    metadata.items.push_back({"a",
                              Numbers{r.begin, 0},
                              "__0_0.distcp",
                              static_cast<std::int64_t>(content.size()),
                              static_cast<std::int64_t>(item.size()),
                              {}});
    content.insert(content.end(), item.begin(), item.end());
  }
  fs.write_file("/ck/__0_0.distcp", content);
  fs.write_file("/ck/.metadata", build_metadata(metadata));
}

}  // namespace

TEST_CASE("sound samples have no error at any level") {
  for (const std::string& name :
       {"dcp/fsdp2_w2", "dcp/fsdp2_w2_zstd", "dcp/fsdp2_w2_rank_local", "dcp/hsdp_2x2",
        "dcp/objects_2x2", "dcp-old/torch-1.13.1_shardedtensor_w2", "safetensors/hf_sharded",
        "safetensors/hf_dcp_sharded_w2", "torchsave/adamw_zip", "torchsave/adamw_legacy",
        "torchsave/quantized_zip", "torchsave/sparse_zip", "olmo-core/model_and_optim_w2"}) {
    for (const VerifyLevel level : kLevels) {
      const VerifyReport report = verify(disk(), case_path(name), level);
      INFO(name << "\n" << list(report));
      CHECK(report.ok);
      CHECK(report.tensors > 0);
      if (level == VerifyLevel::kQuick) CHECK(report.bytes_read == 0);
    }
  }
}

TEST_CASE("every tensor byte of torch-dcp is under a record's checksum") {
  for (const char* name : {"dcp/fsdp2_w2", "dcp/fsdp2_w2_rank_local"}) {
    const VerifyReport report = verify(disk(), case_path(name));
    CHECK(report.bytes_with_sums > 0);
    CHECK(report.bytes_with_sums == report.tensor_bytes_stored);
  }
}

TEST_CASE("a record that several tensors share is counted once") {
  for (const char* name :
       {"torchsave/fsdp1_mesh_rankfiles_w2", "fairscale/nested_flat_w3", "deepspeed/zero2_w4"}) {
    CAPTURE(name);
    const VerifyReport report = verify(disk(), case_path(name));
    CHECK(report.bytes_with_sums > 0);
    CHECK(report.bytes_with_sums == report.tensor_bytes_stored);
  }
}

TEST_CASE("torch-dcp: a file short by one byte names file, tensor and what is lost") {
  for (const VerifyLevel level : kLevels) {
    MemoryFileSystem fs;
    load_sample(fs, "dcp/fsdp2_w2");
    edit(fs, "/source/__1_0.distcp", cut_one);
    const VerifyReport report = verify(fs, "/source", level);
    INFO(list(report));
    CHECK_FALSE(report.ok);
    const Note* cut = find(report, "CK011", "__1_0.distcp");
    REQUIRE(cut);
    CHECK(cut->tensor == "optim.state.head.bias.exp_avg_sq");
    const Note* lost = find(report, "CK024", "__1_0.distcp", cut->tensor);
    REQUIRE(lost);
    CHECK(lost->message.find("2 of 5 elements") != std::string::npos);
  }
}

TEST_CASE("torch-dcp: an empty and a missing file list every tensor they took along") {
  for (const bool missing : {false, true}) {
    MemoryFileSystem fs;
    load_sample(fs, "dcp/fsdp2_w2");
    if (missing)
      fs.remove_file("/source/__1_0.distcp");
    else
      edit(fs, "/source/__1_0.distcp", empty);
    const VerifyReport report = verify(fs, "/source", VerifyLevel::kQuick);
    INFO(list(report));
    CHECK_FALSE(report.ok);
    CHECK(find(report, missing ? "CK010" : "CK011", "__1_0.distcp"));
    for (const char* tensor : {"model.embed.weight", "optim.state.embed.weight.exp_avg"}) {
      const Note* lost = find(report, "CK024", "__1_0.distcp", tensor);
      REQUIRE(lost);
      CHECK(lost->message.find("of 66 elements") != std::string::npos);
    }
    if (missing) CHECK(find(report, "CK024", "__1_0.distcp", "optim.param_groups.0.lr"));
  }
}

TEST_CASE("torch-dcp: a trailing byte is found, and harms no reading") {
  MemoryFileSystem fs;
  load_sample(fs, "dcp/fsdp2_w2");
  const auto content = content_at(fs, "/source").tensors;
  edit(fs, "/source/__0_0.distcp", add_one);
  const VerifyReport report = verify(fs, "/source", VerifyLevel::kQuick);
  CHECK_FALSE(report.ok);
  REQUIRE(find(report, "CK023", "__0_0.distcp"));
  CHECK(content_at(fs, "/source").tensors == content);
}

TEST_CASE("torch-dcp: a flipped bit is found by the record's CRC, from full on") {
  MemoryFileSystem fs;
  load_sample(fs, "dcp/fsdp2_w2");
  const auto [file, offset] = place_of(fs, "/source", "model.embed.weight");
  edit(fs, "/source/" + file, flip(offset + 2));
  CHECK(verify(fs, "/source", VerifyLevel::kQuick).ok);
  for (const VerifyLevel level : {VerifyLevel::kFull, VerifyLevel::kDeep}) {
    const VerifyReport report = verify(fs, "/source", level);
    INFO(list(report));
    CHECK_FALSE(report.ok);
    CHECK(find(report, "CK041", file, "model.embed.weight"));
  }
}

TEST_CASE("torch-dcp: damaged encoded items and item heads are findings") {
  for (const auto& [name, at] :
       {std::pair("dcp/fsdp2_w2_zstd", 20000), std::pair("dcp/fsdp2_w2", 3784)}) {
    MemoryFileSystem fs;
    load_sample(fs, name);
    edit(fs, "/source/__0_0.distcp", flip(static_cast<std::size_t>(at)));
    const VerifyReport report = verify(fs, "/source");
    INFO(name << "\n" << list(report));
    CHECK_FALSE(report.ok);
    CHECK(find(report, "CK019", "__0_0.distcp"));
  }
}

TEST_CASE("torch-dcp: whatever bit turns, verify reports it or finds nothing, and never gives up") {
  std::mt19937_64 random(3);
  int found = 0;
  for (const char* name : {"dcp/fsdp2_w2", "dcp/fsdp2_w2_zstd", "dcp/objects_w2"}) {
    MemoryFileSystem sound;
    load_sample(sound, name);
    const std::size_t size = sound.read_file("/source/__0_0.distcp").size();
    for (int round = 0; round < (kSanitized ? 10 : 60); ++round) {
      const std::size_t at = random() % size;
      const int bit = static_cast<int>(random() % 8);
      INFO(name << ", bit " << bit << " of byte " << at);
      MemoryFileSystem fs;
      load_sample(fs, name);
      edit(fs, "/source/__0_0.distcp", [&](Bytes& bytes) { bytes[at] ^= std::byte{1} << bit; });
      const VerifyReport report = verify(fs, "/source");
      found += !report.ok;
    }
  }
  CHECK(found > (kSanitized ? 10 : 60));
}

TEST_CASE("torch-dcp: without .metadata, or with an empty one, nothing can be parsed") {
  MemoryFileSystem fs;
  load_sample(fs, "dcp/fsdp2_w2");
  edit(fs, "/source/.metadata", empty);
  CHECK_THROWS_WITH(verify(fs, "/source"), Catch::Contains("empty"));
  fs.remove_file("/source/.metadata");
  CHECK_THROWS_WITH(verify(fs, "/source"), Catch::Contains(".metadata"));
}

TEST_CASE("torch-dcp: a hole, an overlap and a chunk outside name the tensor") {
  MemoryFileSystem fs;
  write_rows(fs, {{0, 3, 0}, {4, 6, 0}});
  CHECK(find(verify(fs, "/ck", VerifyLevel::kQuick), "CK012", "", "a"));
  write_rows(fs, {{0, 4, 0}, {3, 6, 0}});
  CHECK(find(verify(fs, "/ck", VerifyLevel::kQuick), "CK013", "", "a"));
  write_rows(fs, {{0, 4, 0}, {4, 7, 0}});
  CHECK(find(verify(fs, "/ck", VerifyLevel::kQuick), "CK014", "", "a"));
  write_rows(fs, {{0, 4, 0}, {4, 6, 0}});
  CHECK(verify(fs, "/ck", VerifyLevel::kDeep).ok);
}

TEST_CASE("replicas that differ are found by their checksums or their bytes") {
  for (const float other : {5.0F, 6.0F}) {
    MemoryFileSystem fs;
    for (int rank = 0; rank < 2; ++rank) {
      const std::string file = fmt::format("__{}_0.distcp", rank);
      const Bytes item = tensor_item({2, 2}, rank == 0 ? 5.0F : other);
      BuiltMetadata metadata;
      metadata.tensors = {{"a", "float32", {2, 2}, {{{0, 0}, {2, 2}}}}};
      metadata.items = {{"a", Numbers{0, 0}, file, 0, static_cast<std::int64_t>(item.size()), {}}};
      fs.write_file("/ck/" + file, item);
      fs.write_file(fmt::format("/ck/__{}.metadata", rank), build_metadata(metadata));
    }
    CHECK(verify(fs, "/ck", VerifyLevel::kQuick).ok);
    for (const VerifyLevel level : {VerifyLevel::kFull, VerifyLevel::kDeep}) {
      const VerifyReport report = verify(fs, "/ck", level);
      INFO(list(report));
      CHECK(report.ok == (other == 5.0F));
      CHECK((find(report, "CK046", "__1_0.distcp", "a") != nullptr) == (other != 5.0F));
    }
  }
}

TEST_CASE("a lost replica loses nothing") {
  MemoryFileSystem fs;
  load_sample(fs, "dcp/fsdp2_w2_rank_local");
  const VerifyReport sound = verify(fs, "/source", VerifyLevel::kQuick);
  fs.remove_file("/source/__1_0.distcp");
  const VerifyReport report = verify(fs, "/source", VerifyLevel::kQuick);
  CHECK(sound.ok);
  CHECK(find(report, "CK010", "__1_0.distcp"));
  CHECK(find(report, "CK024", "__1_0.distcp", "model.embed.weight"));
  CHECK_FALSE(find(report, "CK024", "__1_0.distcp", "model.tokens_seen"));
}

TEST_CASE("a file that no item lies in is a warning") {
  MemoryFileSystem fs;
  load_sample(fs, "dcp/fsdp2_w2");
  fs.write_file("/source/__2_0.distcp", fs.read_file("/source/__0_0.distcp"));
  const VerifyReport report = verify(fs, "/source", VerifyLevel::kQuick);
  CHECK(report.ok);
  REQUIRE(find(report, "CK018", "__2_0.distcp"));
  CHECK(find(report, "CK018")->severity == Severity::kWarning);
}

TEST_CASE("a stale pointer is a finding, with one checkpoint below, several, or named itself") {
  MemoryFileSystem fs;
  load_sample(fs, "dcp/fsdp2_w2_model_only");
  const auto copy = [&](const std::string& to) {
    for (const auto& [name, content] : fs.contents("/source"))
      fs.write_file(to + "/" + name, as_bytes(content));
  };
  copy("/run/step_1");
  fs.write_file("/run/latest", as_bytes(std::string("step_9")));
  for (const char* path : {"/run", "/run/latest"}) {
    const VerifyReport report = verify(fs, path, VerifyLevel::kQuick);
    CHECK_FALSE(report.ok);
    CHECK(find(report, "CK040", "latest"));
  }
  copy("/run/step_2");
  const VerifyReport several = verify(fs, "/run", VerifyLevel::kQuick);
  CHECK_FALSE(several.ok);
  CHECK(several.findings.size() == 1);
  fs.write_file("/run/latest", as_bytes(std::string("step_2")));
  CHECK(verify(fs, "/run", VerifyLevel::kQuick).ok);
  fs.remove_file("/run/latest");
  CHECK_THROWS_AS(verify(fs, "/run"), Error);
}

}  // namespace verify_test
