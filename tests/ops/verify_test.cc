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
#include "tests/support/inspect_case.h"

namespace verify_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

using Edit = std::function<void(Bytes&)>;

void edit(MemoryFileSystem& fs, const std::string& path, const Edit& change) {
  Bytes bytes = fs.read_file(path);
  change(bytes);
  fs.write_file(path, bytes);
}
void cut_one(Bytes& bytes) { bytes.pop_back(); }
void add_one(Bytes& bytes) { bytes.push_back(std::byte{7}); }
void empty(Bytes& bytes) { bytes.clear(); }
Edit flip(std::size_t at) {
  return [at](Bytes& bytes) { bytes.at(at) ^= std::byte{1}; };
}

VerifyReport verify(FileSystem& fs, const std::string& path,
                    VerifyLevel level = VerifyLevel::kFull) {
  VerifyOptions options;
  options.level = level;
  return verify_checkpoint(fs, path, options);
}

/// The finding of this code about this file and tensor ("" = any).
const Note* find(const VerifyReport& report, const std::string& code, const std::string& file = "",
                 const std::string& tensor = "") {
  for (const Note& note : report.findings)
    if (note.code == code && (file.empty() || note.file == file) &&
        (tensor.empty() || note.tensor == tensor))
      return &note;
  return nullptr;
}

std::string list(const VerifyReport& report) {
  std::string text;
  for (const Note& n : report.findings)
    text += fmt::format("{} {} [{}] {}: {}\n", n.code, n.severity, n.file, n.tensor, n.message);
  return text;
}

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

/// Where the elements of `tensor`'s first chunk lie.
std::pair<std::string, std::size_t> place_of(FileSystem& fs, const std::string& path,
                                             const std::string& tensor) {
  OpenedCheckpoint opened = open_checkpoint(fs, path);
  opened.locate_all({});
  const Source& source = opened.manifest.source(*opened.manifest.find(tensor), 0);
  return {opened.manifest.files[source.file].path, static_cast<std::size_t>(source.offset)};
}

constexpr VerifyLevel kLevels[] = {VerifyLevel::kQuick, VerifyLevel::kFull, VerifyLevel::kDeep};

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
    for (int round = 0; round < 60; ++round) {
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
  CHECK(found > 60);
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
  CHECK(find(report, "CK018")->severity == "warning");
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
    std::string header = fmt::format(
        R"({{"__metadata__":{{"DCP_SHARDING_INFO":"{{\"w\":{{\"saved_offsets\":[{}]}}}}"}},)"
        R"("w":{{"dtype":"{}","shape":[2],"data_offsets":[0,{}]}}}})",
        offsets, dtype, bytes);
    std::string file(8, '\0');
    file[0] = static_cast<char>(header.size());
    return file + header + std::string(static_cast<std::size_t>(bytes), 'x');
  };
  MemoryFileSystem fs;
  fs.write_file("/ck/shard-00001-model-00001-of-00001.safetensors", as_bytes(shard("F32", 8, "0")));
  fs.write_file("/ck/shard-00002-model-00001-of-00001.safetensors", as_bytes(shard("F32", 8, "2")));
  CHECK(verify(fs, "/ck").ok);
  fs.write_file("/ck/shard-00002-model-00001-of-00001.safetensors", as_bytes(shard("F16", 4, "2")));
  CHECK_THROWS_WITH(verify(fs, "/ck"), Catch::Contains("float16") && Catch::Contains("float32"));
  MemoryFileSystem twice;
  const std::string plain = R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(plain.size());
  twice.write_file("/ck/a.safetensors", as_bytes(file + plain + "abcd"));
  twice.write_file("/ck/b.safetensors", as_bytes(file + plain + "abcd"));
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

}  // namespace verify_test
