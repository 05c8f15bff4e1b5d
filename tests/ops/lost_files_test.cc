// Each file of a checkpoint that is lost or damaged in turn, for every format that is written and
// sealed here, and for samples of frameworks. A conversion of the whole and a hash refuse it or
// bring all of it; --salvage brings what is whole, byte for byte, and names all that is not there.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/format/registry.h>
#include <tessera/ops/hash.h>
#include <tessera/ops/seal.h>
#include <tessera/ops/summary.h>
#include <tessera/ops/verify.h>

#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "lib/ops/seal/asset_names.h"
#include "tests/support/convert_case.h"
#include "tests/support/soak.h"
#include "tests/support/verify_case.h"
#include "tests/support/written_formats.h"

namespace lost_files_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

enum class Loss { kMissing, kFolder, kEmpty, kHead, kHalf, kGarbage };
constexpr Loss kLosses[] = {Loss::kMissing, Loss::kFolder, Loss::kEmpty,
                            Loss::kHead,    Loss::kHalf,   Loss::kGarbage};

void plainly(ConvertOptions&) {}

/// Tensors and values.
using Content = std::map<std::string, std::string>;

Content entries_at(FileSystem& fs, const std::string& path) {
  const OpenedContent content = content_at(fs, path);
  Content out = content.tensors;
  for (const auto& [name, value] : content.values) out.emplace("value " + name, value);
  return out;
}

/// One checkpoint, of which files are lost.
class Case {
 public:
  MemoryFileSystem fs;
  std::string path = "/ck";
  std::map<std::string, Bytes> files;
  Content whole;  // as a conversion to torch-dcp brings it
  Content model;

  void remember(const std::string& folder) {
    for (const auto& [name, text] : fs.contents(folder)) {
      const ByteView bytes = as_bytes(text);
      if (!name.ends_with('/')) files.emplace(name, Bytes(bytes.begin(), bytes.end()));
    }
    folder_ = folder;
    REQUIRE(convert_it(plainly, whole).code == Code::kOk);
    const auto only_model = [](ConvertOptions& o) { o.selection.only = Part::kModel; };
    has_model_ = convert_it(only_model, model).code == Code::kOk;
  }

  void damage(const std::string& name, Loss loss) {
    const std::string place = folder_ + "/" + name;
    const Bytes& sound = files.at(name);
    Bytes bytes = sound;
    if (loss == Loss::kMissing || loss == Loss::kFolder) fs.remove_file(place);
    if (loss == Loss::kMissing) return;
    if (loss == Loss::kFolder) return fs.make_directories(place);
    if (loss == Loss::kEmpty) bytes.clear();
    if (loss == Loss::kHead) bytes.resize(std::min<std::size_t>(64, bytes.size() - 1));
    if (loss == Loss::kHalf) bytes.resize(bytes.size() / 2);
    if (loss == Loss::kGarbage) std::ranges::fill(bytes, std::byte{0x93});
    fs.write_file(place, bytes);
  }
  void mend(const std::string& name, Loss loss) {
    const std::string place = folder_ + "/" + name;
    if (loss == Loss::kFolder) fs.remove_tree(place);
    fs.write_file(place, files.at(name));
  }

  template <class Adjust>
  Status convert_it(Adjust adjust, Content& out) {
    fs.remove_tree("/out");
    ConvertOptions options = convert_options(path, "/out", std::nullopt, "torch-dcp");
    options.rank_state = RankStatePolicy::kKeep;
    adjust(options);
    try {
      report = convert(fs, options);
      out = entries_at(fs, "/out");
    } catch (const Error& error) {
      INFO(error.what());
      CHECK(error.code() != Code::kInternal);
      return error.status();
    }
    return {};
  }

  Status hash_it() {
    try {
      OpenedCheckpoint opened = open_checkpoint(fs, path);
      opened.locate_all({});
      hash_checkpoint(opened);
    } catch (const Error& error) {
      return error.status();
    }
    return {};
  }

  bool has_model() const { return has_model_; }
  ConvertReport report;

 private:
  std::string folder_;
  bool has_model_ = false;
};

void check_losses(Case& c, const std::string& what, bool sealed) {
  int turn = 0;
  for (const auto& [name, sound] : c.files) {
    const bool is_seal = name == "tessera.manifest.json" || name.ends_with(".tessera.json");
    if (is_seal || sound.empty()) continue;
    const bool holds_state = !is_asset_name(name) && !name.starts_with("latest");
    for (const Loss loss : kLosses) {
      const bool left_to_soak = loss != Loss::kMissing && ++turn % 4 != 0 && !soaking();
      // A last rank of PyTorch's safetensors writer that left no file leaves no trace.
      const bool traceless = name.starts_with("shard-00002") && loss == Loss::kMissing;
      if (left_to_soak || traceless) continue;
      c.damage(name, loss);
      INFO(what << " " << name << " " << static_cast<int>(loss));
      Content got;
      const Status plain = c.convert_it(plainly, got);
      if (plain.code == Code::kOk) CHECK(got == c.whole);
      const bool gone = loss == Loss::kMissing || loss == Loss::kFolder;
      if (sealed && gone && holds_state) {
        CHECK(plain.code == Code::kCorrupt);
        CHECK(c.hash_it().code == Code::kCorrupt);
      }
      if (c.has_model()) {
        const auto only_model = [](ConvertOptions& o) { o.selection.only = Part::kModel; };
        if (c.convert_it(only_model, got).code == Code::kOk) CHECK(got == c.model);
      }
      const auto salvaging = [](ConvertOptions& o) { o.salvage = true; };
      const Status salvaged = c.convert_it(salvaging, got);
      if (salvaged.code == Code::kOk) {
        for (const auto& [entry, digest] : got) {
          INFO(entry);
          REQUIRE(c.whole.contains(entry));
          CHECK(c.whole.at(entry) == digest);
        }
        const bool less = got != c.whole;
        if (less || (sealed && gone && holds_state)) CHECK_FALSE(c.report.lost.empty());
        if (!c.report.lost.empty()) {
          CHECK(find(verify(c.fs, "/out"), "CK053"));
          CHECK(summarize(open_checkpoint(c.fs, "/out")).lost.size() == c.report.lost.size());
        }
      }
      c.mend(name, loss);
    }
  }
}

}  // namespace

TEST_CASE("a lost file of a sealed folder is damage in every format", "[wide]") {
  int formats = 0;
  for (const FormatDriver* driver : written_formats()) {
    Case c;
    ConvertOptions options = convert_options(load_sample(c.fs, "dcp/fsdp2_w2"), "/ck", std::nullopt,
                                             std::string(driver->id()));
    if (driver->id().starts_with("megatron"))
      options.target.mesh = Mesh({{"dp", 2}});
    else if (driver->capabilities().many_ranks)
      options.target.world_size = 2;
    if (driver->id() != "megatron-torch")
      options.selection.include = {"*layers.0.norm*", "*head.bias*", "*param_groups*"};
    REQUIRE(convert(c.fs, options).published);
    c.remember("/ck");
    check_losses(c, std::string(driver->id()), true);
    ++formats;
  }
  CHECK(formats >= 10);
}

TEST_CASE("of an unsealed sample, salvage never writes what the source did not hold", "[wide]") {
  for (const char* sample :
       {"fairscale/nested_flat_w3", "deepspeed/zero2_w4", "deepspeed/zero3_w4",
        "megatron/legacy_tp2", "megatron/torch_dist_tp2_dp2", "torchsave/fsdp1_local_rankfiles_w3",
        "dcp/fsdp2_w3", "safetensors/hf_sharded", "safetensors/hf_dcp_sharded_w2"}) {
    Case c;
    c.path = load_sample(c.fs, sample);
    c.remember("/source");
    check_losses(c, sample, false);
  }
}

TEST_CASE("what a lost rank file of PyTorch's writer may have held is not taken for whole") {
  const std::string first = "shard-00001-model-00001-of-00001.safetensors",
                    second = "shard-00002-model-00001-of-00001.safetensors";
  const std::string no_tensors("\x02\0\0\0\0\0\0\0{}", 10);
  for (const std::string& file : {first, second})
    for (const std::string& content : {std::string(), no_tensors, std::string("\x40\0\0", 3)}) {
      INFO(file << " " << content.size());
      Case c;
      c.path = load_sample(c.fs, "safetensors/hf_dcp_sharded_w2");
      c.remember("/source");
      c.fs.write_file("/source/" + file, as_bytes(content));
      Content got;
      CHECK(c.convert_it(plainly, got).code == Code::kCorrupt);
      CHECK(c.hash_it().code == Code::kCorrupt);
      CHECK_FALSE(verify(c.fs, c.path, VerifyLevel::kQuick).ok);
      CHECK(find(verify(c.fs, c.path), "CK024", "", "embed.weight"));
      const auto salvaging = [](ConvertOptions& o) { o.salvage = true; };
      const Status status = c.convert_it(salvaging, got);
      if (file == first) {  // the one that is left has pieces alone
        CHECK(status.code == Code::kCorrupt);
        continue;
      }
      REQUIRE(status.code == Code::kOk);
      CHECK(got.size() == 1);
      CHECK(got.contains("tokens_seen"));
      CHECK(c.report.lost.size() == 14);  // 13 tensors of pieces, and the file
    }
}

TEST_CASE("one rank's file of PyTorch's writer, and a rank without one, are worth a warning") {
  Case c;
  c.path = load_sample(c.fs, "safetensors/hf_dcp_sharded_w2");
  CHECK_FALSE(find(verify(c.fs, "/source"), "CK010"));
  c.fs.remove_file("/source/shard-00002-model-00001-of-00001.safetensors");
  const VerifyReport lone = verify(c.fs, "/source");
  REQUIRE(find(lone, "CK010"));
  CHECK(find(lone, "CK010")->severity == Severity::kWarning);
}

TEST_CASE("a leaf of a Universal Checkpoint that cannot be read costs that leaf alone") {
  for (const bool cut : {false, true}) {
    Case c;
    ConvertOptions options = convert_options(load_sample(c.fs, "deepspeed/zero2_w2"), "/ck",
                                             std::nullopt, "deepspeed-universal");
    REQUIRE(convert(c.fs, options).published);
    c.fs.remove_file("/ck/tessera.manifest.json");
    c.remember("/ck");
    std::vector<std::string> leaves;
    for (const auto& [name, bytes] : c.files)
      if (name.ends_with("/exp_avg.pt") && leaves.size() < 2) leaves.push_back(name);
    REQUIRE(leaves.size() == 2);
    for (const std::string& leaf : leaves)
      c.fs.write_file("/ck/" + leaf, cut ? ByteView() : as_bytes(std::string_view("garbage")));
    Content got;
    CHECK(c.convert_it(plainly, got).code == Code::kCorrupt);
    const auto only_model = [](ConvertOptions& o) { o.selection.only = Part::kModel; };
    CHECK(c.convert_it(only_model, got).code == Code::kOk);
    CHECK(got == c.model);
    const auto salvaging = [](ConvertOptions& o) { o.salvage = true; };
    REQUIRE(c.convert_it(salvaging, got).code == Code::kOk);
    CHECK(c.report.lost.size() == 2);
    CHECK(c.whole.size() - got.size() == 2);
    for (const LostTensor& lost : c.report.lost) CHECK(c.whole.contains(lost.name));
  }
}

TEST_CASE("a thing that is no file where FairScale's gathered optimizer should be is damage") {
  Case c;
  c.path = load_sample(c.fs, "dcp/fsdp2_w2");
  ConvertOptions options = convert_options("/source", "/ck", 2, "fairscale-fsdp");
  REQUIRE(convert(c.fs, options).published);
  c.path = "/ck";
  c.fs.remove_file("/ck/tessera.manifest.json");
  c.remember("/ck");
  REQUIRE(c.files.contains("optim.pt"));
  c.damage("optim.pt", Loss::kFolder);
  Content got;
  CHECK(c.convert_it(plainly, got).code == Code::kCorrupt);
  CHECK_FALSE(verify(c.fs, "/ck").ok);
  const auto only_model = [](ConvertOptions& o) { o.selection.only = Part::kModel; };
  CHECK(c.convert_it(only_model, got).code == Code::kOk);
  const auto salvaging = [](ConvertOptions& o) { o.salvage = true; };
  REQUIRE(c.convert_it(salvaging, got).code == Code::kOk);
  REQUIRE(c.report.lost.size() == 1);
  CHECK(c.report.lost[0].name == "optim");
}

TEST_CASE("a sealed folder stays what it was sealed as when weights are laid beside it") {
  for (const char* format : {"deepspeed-zero", "deepspeed-universal", "fairscale-fsdp"}) {
    INFO(format);
    MemoryFileSystem fs;
    ConvertOptions options =
        convert_options(load_sample(fs, "dcp/fsdp2_w2"), "/ck", std::nullopt, format);
    REQUIRE(convert(fs, options).published);
    const OpenedContent before = content_at(fs, "/ck");
    MemoryFileSystem weights;
    fs.write_file("/ck/model.safetensors",
                  weights.read_file(load_sample(weights, "safetensors/no_metadata")));
    CHECK(content_at(fs, "/ck").tensors == before.tensors);
    const SummaryReport summary = summarize(open_checkpoint(fs, "/ck"));
    CHECK(summary.format == format);
    REQUIRE(summary.beside.size() == 1);
    CHECK(summary.beside[0].path == "model.safetensors");
    const ConvertReport report = convert(fs, convert_options("/ck", "/out", 1, "torch-dcp"));
    REQUIRE(report.balance.left_behind.size() == 1);
    CHECK(report.balance.left_behind[0].path == "model.safetensors");
  }
}

TEST_CASE("metadata.json of Megatron that is there and says nothing is damaged, not missing") {
  Case c;
  c.path = load_sample(c.fs, "megatron/torch_dist_tp1_dp1");
  const std::string file = "/source/iter_0000100/metadata.json";
  REQUIRE(c.fs.stat(file));
  c.fs.write_file(file, as_bytes(std::string(1, '\0')));
  Content got;
  const Status status = c.convert_it(plainly, got);
  CHECK(status.code == Code::kCorrupt);
  CHECK_THAT(status.message, Catch::Contains("damaged") && !Catch::Contains("missing"));
}

}  // namespace lost_files_test
