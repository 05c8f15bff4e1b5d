// Damage of the other formats, and what proves them: their own sums, our seal, a hash report.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/encoding/zip_reader.h>
#include <tessera/ops/convert.h>
#include <tessera/ops/hash.h>
#include <tessera/ops/verify.h>
#include <tessera/storage/observed_file_system.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/support/convert_case.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/sanitized.h"
#include "tests/support/verify_case.h"

namespace verify_formats_test {

using namespace tessera;
using namespace tessera::testing;

TEST_CASE("safetensors shards: short, long, empty and missing ones") {
  const std::string shard = "model-00001-of-00003.safetensors";
  struct Damage {
    const char* what;
    Edit change;
    const char* code;
    bool loses;  // names what is lost
  };
  const Damage kDamages[] = {{"short", cut_one, "CK011", true},
                             {"long", add_one, "CK023", false},
                             {"empty", empty, "CK011", true},
                             {"missing", {}, "CK010", true}};
  for (const Damage& damage : kDamages) {
    MemoryFileSystem fs;
    load_sample(fs, "safetensors/hf_sharded");
    if (damage.change)
      edit(fs, "/source/" + shard, damage.change);
    else
      fs.remove_file("/source/" + shard);
    for (const VerifyLevel level : kLevels) {
      const VerifyReport report = verify(fs, "/source", level);
      INFO(damage.what << "\n" << list(report));
      CHECK_FALSE(report.ok);
      CHECK(find(report, damage.code, shard));
      CHECK((find(report, "CK024", shard) != nullptr) == damage.loses);
    }
  }
}

namespace {

/// Will not read one file, from the first operation of a kind on.
class Unreadable final : public ObservedFileSystem {
 public:
  Unreadable(FileSystem& inner, std::string name, IoOp op)
      : ObservedFileSystem(inner), name_(std::move(name)), op_(op) {}

 protected:
  void before(const IoEvent& event) const override {
    if (event.op == op_ && event.path.ends_with("/" + name_))
      fail(Code::kIo, "cannot read " + event.path + ": Permission denied");
  }

 private:
  std::string name_;
  IoOp op_;
};

}  // namespace

TEST_CASE("a file that the system will not read is CK042 in every format of several files") {
  const std::pair<const char*, const char*> files[] = {
      {"dcp/fsdp2_w2", "__0_0.distcp"},
      {"dcp/fsdp2_w2_zstd", "__1_0.distcp"},
      {"dcp/objects_w2", "__0_0.distcp"},
      {"megatron/torch_dist_tp2_dp1", "__1_0.distcp"},
      {"safetensors/hf_sharded", "model-00001-of-00003.safetensors"},
      {"torchsave/dtensor_rankfiles_w2", "rank1.pt"},
      {"fairscale/nested_flat_w2", "rank_1.pt"}};
  for (const auto& [name, file] : files) {
    for (const IoOp op : {IoOp::kOpen, IoOp::kRead}) {
      INFO(name << " " << file << " " << io_op_name(op));
      MemoryFileSystem fs;
      const std::string path = load_sample(fs, name);
      Unreadable unreadable(fs, file, op);
      const VerifyReport report = verify(unreadable, path);
      INFO(list(report));
      CHECK_FALSE(report.ok);
      CHECK(std::ranges::any_of(report.findings, [&](const Note& note) {
        return note_code(note) == "CK042" && note.file.ends_with(file);
      }));
      CHECK_FALSE(find(report, "CK019"));
    }
  }
}

TEST_CASE("safetensors shards: no index, a key in no shard, a shard in no index") {
  MemoryFileSystem fs;
  load_sample(fs, "safetensors/hf_sharded");
  fs.remove_file("/source/model.safetensors.index.json");
  const VerifyReport report = verify(fs, "/source", VerifyLevel::kQuick);
  CHECK_FALSE(report.ok);
  CHECK(find(report, "CK036"));
  fs.remove_file("/source/model-00002-of-00003.safetensors");
  CHECK(find(verify(fs, "/source", VerifyLevel::kQuick), "CK010"));
  const VerifyReport key = verify(disk(), sample("hostile/index_key_not_in_shard"));
  CHECK(find(key, "CK030", "model.safetensors", "zz"));
  const VerifyReport rank_files = verify(disk(), case_path("safetensors/hf_dcp_sharded_w2"));
  CHECK_FALSE(find(rank_files, "CK036"));
}

TEST_CASE("one name twice, or with two types, names both files") {
  const auto shard = [](const std::string& dtype, int bytes, const std::string& offsets) {
    const std::string header = fmt::format(
        R"({{"__metadata__":{{"DCP_SHARDING_INFO":"{{\"w\":{{\"saved_offsets\":[{}]}}}}"}},)"
        R"("w":{{"dtype":"{}","shape":[2],"data_offsets":[0,{}]}}}})",
        offsets, dtype, bytes);
    return safetensors_of(header, std::string(static_cast<std::size_t>(bytes), 'x'));
  };
  MemoryFileSystem fs;
  fs.write_file("/ck/shard-00001-model-00001-of-00001.safetensors", as_bytes(shard("F32", 8, "0")));
  fs.write_file("/ck/shard-00002-model-00001-of-00001.safetensors", as_bytes(shard("F32", 8, "2")));
  CHECK(verify(fs, "/ck").ok);
  fs.write_file("/ck/shard-00002-model-00001-of-00001.safetensors", as_bytes(shard("F16", 4, "2")));
  CHECK_THROWS_WITH(verify(fs, "/ck"), Catch::Contains("float16") && Catch::Contains("float32"));
  MemoryFileSystem twice;
  const std::string file =
      safetensors_of(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "abcd");
  twice.write_file("/ck/a.safetensors", as_bytes(file));
  twice.write_file("/ck/b.safetensors", as_bytes(file));
  CHECK_THROWS_WITH(verify(twice, "/ck"),
                    Catch::Contains("a.safetensors") && Catch::Contains("b.safetensors"));
}

TEST_CASE("torch-save: record CRCs prove every tensor byte") {
  MemoryFileSystem fs;
  const std::string path = load_sample(fs, "torchsave/adamw_zip");
  const auto [file, offset] = place_of(fs, path, "model.head.bias");
  edit(fs, path, flip(offset));
  CHECK(verify(fs, path, VerifyLevel::kQuick).ok);
  const VerifyReport report = verify(fs, path);
  CHECK_FALSE(report.ok);
  CHECK(find(report, "CK041", file, "model.head.bias"));
  for (const Edit& change : {Edit(cut_one), Edit(add_one), Edit(empty)}) {
    MemoryFileSystem other;
    const std::string cut = load_sample(other, "torchsave/adamw_zip");
    edit(other, cut, change);
    CHECK_THROWS_AS(verify(other, cut), Error);  // the directory at its end cannot be parsed
  }
}

// The oracle is the zip directory: every record of every archive has a CRC-32, tensors and numbers
// alike, so that no bit of one may turn without a word.
TEST_CASE("no turned bit of a record of a rank's file passes", "[wide]") {
  struct Sample {
    const char* name;
    const char* as;  // converted to this format first
  };
  int flips = 0, refused = 0, seen = 0;
  for (const Sample& sample :
       {Sample{"fairscale/single_flat_w2", ""}, Sample{"fairscale/nested_unflat_w2", ""},
        Sample{"deepspeed/zero2_w2", ""}, Sample{"deepspeed/zero3_w2", ""},
        Sample{"deepspeed/zero3_w2", "deepspeed-universal"}, Sample{"megatron/legacy_tp2", ""},
        Sample{"torchsave/fsdp1_local_rankfiles_w3", ""}}) {
    MemoryFileSystem fs;
    std::string path = load_sample(fs, sample.name);
    if (*sample.as) {
      REQUIRE(convert(fs, convert_options(path, "/as", std::nullopt, sample.as)).published);
      path = "/as";
      fs.remove_file("/as/tessera.manifest.json");
    }
    const auto hash = [&] {
      OpenedCheckpoint opened = open_checkpoint(fs, path);
      opened.locate_all({});
      const HashReport report = hash_checkpoint(opened);
      return report.root + report.values_root;
    };
    const std::string sound = hash();
    for (const auto& [name, bytes] : bytes_below(fs, path)) {
      const std::string file = path + "/" + name;
      if (!bytes.starts_with("PK")) continue;
      const auto open = fs.open_directory(path)->open(name);
      ZipReader zip(ByteWindow::whole(*open));
      for (const ZipEntry& entry : zip.entries()) {
        if (!entry.name.starts_with("data/") || entry.size_bytes == 0) continue;
        if (kSanitized && ++seen % 10 != 0) continue;  // a tenth of them will do
        INFO(sample.name << " " << sample.as << " " << name << " " << entry.name);
        edit(fs, file, flip(zip.data_offset(entry) + entry.size_bytes / 2));
        try {
          const bool same = hash() == sound;  // of a copy, or no part of the state
          CHECK(same);
        } catch (const Error& error) {
          CHECK(error.code() == Code::kCorrupt);
          ++refused;
        }
        const VerifyReport report = verify(fs, path);
        CHECK(find(report, "CK041"));
        CHECK_FALSE(verify(fs, path, VerifyLevel::kDeep).ok);
        fs.write_file(file, as_bytes(bytes));
        ++flips;
      }
    }
  }
  CHECK(flips > (kSanitized ? 15 : 200));
  CHECK(refused > flips / 2);
}

TEST_CASE("our seal proves formats without sums of their own") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "dcp/fsdp2_w2");
  REQUIRE(convert(fs, convert_options(source, "/out", 1, "safetensors")).published);
  const VerifyReport sound = verify(fs, "/out");
  INFO(list(sound));
  CHECK(sound.ok);
  CHECK(sound.sealed);
  CHECK(sound.bytes_with_sums == sound.tensor_bytes_stored);
  const auto [file, offset] = place_of(fs, "/out", "model.head.bias");
  edit(fs, "/out/" + file, flip(offset));
  // Quick as well: the file is smaller than the MiB that holds its header.
  for (const VerifyLevel level : {VerifyLevel::kQuick, VerifyLevel::kFull}) {
    const VerifyReport flipped = verify(fs, "/out", level);
    CHECK_FALSE(flipped.ok);
    CHECK(find(flipped, "CK043", file));
  }
}

TEST_CASE("require-sums: what no checksum covers is an error") {
  VerifyOptions options;
  options.require_sums = true;
  CHECK(verify_checkpoint(disk(), case_path("dcp/fsdp2_w2"), options).ok);
  const VerifyReport bare = verify_checkpoint(disk(), case_path("safetensors/hf_sharded"), options);
  CHECK_FALSE(bare.ok);
  CHECK(find(bare, "CK045"));
  options.level = VerifyLevel::kQuick;
  CHECK(find(verify_checkpoint(disk(), case_path("dcp/fsdp2_w2"), options), "CK045"));
}

TEST_CASE("against: a hash report made from another format and sharding") {
  OpenedCheckpoint source = open_sample("dcp/fsdp2_w4");
  HashReport hash = hash_checkpoint(source);
  const auto write = [&](MemoryFileSystem& fs) {
    fs.write_file("/hash.json", as_bytes(hash_report(hash.tensors)));
  };
  MemoryFileSystem fs;
  const std::string path = load_sample(fs, "torchsave/full_state_dict");
  VerifyOptions options;
  options.against = "/hash.json";
  write(fs);
  CHECK(verify_checkpoint(fs, path, options).ok);
  const std::string first = hash.tensors[0].name, second = hash.tensors[1].name,
                    third = hash.tensors[2].name;
  hash.tensors[0].sha256[0] = hash.tensors[0].sha256[0] == '0' ? '1' : '0';
  hash.tensors[1].dtype = "int8";
  hash.tensors[2].name = "elsewhere";
  write(fs);
  const VerifyReport report = verify_checkpoint(fs, path, options);
  INFO(list(report));
  CHECK_FALSE(report.ok);
  CHECK(find(report, "CK047", "", first));
  CHECK(find(report, "CK047", "", second));
  CHECK(find(report, "CK048", "", third));
  CHECK(find(report, "CK048", "", "elsewhere"));
  CHECK(report.findings.size() == 4);
  fs.write_file("/hash.json", as_bytes(std::string("{}")));
  CHECK_THROWS_AS(verify_checkpoint(fs, path, options), Error);
  options.against = "/absent.json";
  CHECK_THROWS_AS(verify_checkpoint(fs, path, options), Error);
}

TEST_CASE("accelerate's parts are verified as one") {
  const VerifyReport report = verify(disk(), fixture("accelerate/checkpoint"), VerifyLevel::kDeep);
  INFO(list(report));
  CHECK(report.ok);
  CHECK(report.tensors == 16);
  CHECK(report.bytes_with_sums > 0);
}

}  // namespace verify_formats_test
