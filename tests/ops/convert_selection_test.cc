// Renames, selections, --to hf with ties, --verify.
#include <tessera/base/error.h>
#include <tessera/format/safetensors.h>
#include <tessera/ops/seal.h>
#include <tessera/storage/observed_file_system.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/support/convert_case.h"
#include "tests/support/sample_case.h"

namespace convert_selection_test {

using namespace tessera;
using namespace tessera::testing;

TEST_CASE("a renamed parameter takes its state and its place in the groups along") {
  MemoryFileSystem fs;
  std::string source = load_sample(fs, "dcp/fsdp2_w4");
  OpenedContent before = content_at(fs, source);
  ConvertOptions options = convert_options(source, "/out", 2);
  options.names.renames = {{"layers.0.*", "h.zero.*"}};
  convert(fs, options);
  OpenedContent after = content_at(fs, "/out");
  std::size_t renamed = 0;
  for (const auto& [name, content] : before.tensors) {
    std::string expected = name;
    if (std::size_t at = expected.find("layers.0."); at != std::string::npos) {
      expected.replace(at, 9, "h.zero.");
      ++renamed;
    }
    REQUIRE(after.tensors.contains(expected));
    CHECK(after.tensors[expected] == content);
  }
  CHECK(renamed > 3);
  CHECK(after.tensors.size() == before.tensors.size());
  bool member = false;
  for (const auto& [name, value] : after.values) {
    CHECK(value.find("layers.0.") == std::string::npos);
    member = member || value.find("h.zero.") != std::string::npos;
  }
  CHECK(member);
}

TEST_CASE("to hf: the model alone, without its root, in shards with an index") {
  MemoryFileSystem fs;
  std::string source = load_sample(fs, "dcp/fsdp2_w2");
  OpenedContent before = content_at(fs, source);
  ConvertOptions options = convert_options(source, "/out", std::nullopt, "hf");
  options.own.set(kMaxShardSizeFlag, 2000);
  options.copy_assets = true;
  fs.write_file("/source/config.json", as_bytes("{}"));
  fs.write_file("/source/notes.bak", as_bytes("x"));
  ConvertReport report = convert(fs, options);
  CHECK(report.assets == std::vector<std::string>{"config.json"});
  CHECK(fs.stat("/out/config.json"));
  CHECK(fs.stat("/out/model.safetensors.index.json"));
  OpenedContent after = content_at(fs, "/out");
  std::size_t model = 0;
  for (const auto& [name, content] : before.tensors) {
    if (!name.starts_with("model.")) continue;
    ++model;
    CHECK(after.tensors[name.substr(6)] == content);
  }
  CHECK(after.tensors.size() == model);
  bool told = std::any_of(report.notes.begin(), report.notes.end(),
                          [](const Note& note) { return note.file == "notes.bak"; });
  CHECK(told);
  std::optional<Seal> seal = read_seal(*fs.open_directory("/out"), "");
  REQUIRE(seal);
  CHECK(seal->find("config.json") != nullptr);
}

TEST_CASE("to hf drops a tie by its bytes and records the alias") {
  MemoryFileSystem fs;
  std::string source = load_sample(fs, "torchsave/sgd_tied_zip");
  ConvertOptions options = convert_options(source, "/out.safetensors", std::nullopt, "hf");
  ConvertReport report = convert(fs, options);
  REQUIRE(report.dropped.size() == 1);
  OpenedContent before = content_at(fs, source);
  OpenedContent after = content_at(fs, "/out.safetensors");
  for (const auto& [name, content] : after.tensors) {
    bool same = std::any_of(before.tensors.begin(), before.tensors.end(), [&](const auto& entry) {
      return entry.first.ends_with(name) && entry.second == content;
    });
    CHECK(same);
  }
  Bytes bytes = fs.read_file("/out.safetensors");
  CHECK(as_text(bytes).find("\"" + report.dropped[0] + "\":\"") != std::string_view::npos);
}

TEST_CASE("dropped values are not missed by --verify, a wrong byte is") {
  MemoryFileSystem fs;
  std::string source = load_sample(fs, "dcp/fsdp2_w2");
  ConvertOptions options = convert_options(source, "/out.safetensors", std::nullopt);
  options.target.values = KeepPolicy::kDrop;
  options.verify = true;
  ConvertReport report = convert(fs, options);
  CHECK(report.published);
  CHECK(report.verified);
  CHECK(content_at(fs, "/out.safetensors").values.empty());
}

TEST_CASE("verify compares trees, so that an older release's flattening is no difference") {
  for (const std::string& name :
       {"dcp-old/torch-1.13.1_shardedtensor_w2", "dcp-old/torch-2.3.1_fsdp1_dtensor_w2"}) {
    MemoryFileSystem fs;
    std::string source = load_sample(fs, name);
    ConvertOptions options = convert_options(source, "/out.pt", std::nullopt);
    options.verify = true;
    ConvertReport report = convert(fs, options);
    CHECK(report.verify_findings == std::vector<std::string>{});
    CHECK(report.published);
  }
}

TEST_CASE("verify compares ids with the names that formats of names hold for them") {
  for (const std::string& name :
       {"torchsave/adamw_zip", "torchsave/sgd_tied_zip", "torchsnapshot/model_optim_w2"}) {
    for (const std::string& format : {"deepspeed-zero", "deepspeed-universal", "fairscale-fsdp"}) {
      CAPTURE(name, format);
      MemoryFileSystem fs;
      ConvertOptions options = convert_options(load_sample(fs, name), "/out", std::nullopt, format);
      options.verify = true;
      const ConvertReport report = convert(fs, options);
      CHECK(report.verify_findings == std::vector<std::string>{});
      CHECK(report.published);
    }
  }
}

TEST_CASE("state that had ids is cut among the ranks of a later result, as its weights are") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "torchsave/adamw_zip");
  for (const char* format : {"deepspeed-zero", "fairscale-fsdp"}) {
    CAPTURE(format);
    const std::string named = std::string("/named-") + format, cut = std::string("/cut-") + format;
    convert(fs, convert_options(source, named, 2, format));
    convert(fs, convert_options(named, cut, 3, "torch-dcp"));
    const OpenedCheckpoint opened = open_checkpoint(fs, cut);
    const auto chunks = [&](const std::string& ending) {
      for (const StoredTensor& tensor : opened.manifest.tensors)
        if (tensor.name.ends_with(ending)) return tensor.chunk_count;
      return decltype(StoredTensor::chunk_count){0};
    };
    CHECK(chunks("state.embed.weight.exp_avg") == 3);
    CHECK(chunks("state.embed.weight.exp_avg_sq") == 3);
    CHECK(chunks("state.embed.weight.step") == 1);
  }
}

TEST_CASE("verify compares state whose leaf stands before the name with state by name") {
  MemoryFileSystem fs;
  ConvertOptions options = convert_options(load_sample(fs, "megatron/torch_dist_tp2_dp2"), "/out",
                                           std::nullopt, "deepspeed-universal");
  options.rank_state = RankStatePolicy::kRank0;
  options.transform.dtype = DType::kBFloat16;  // one type for a flat buffer
  options.verify = true;
  const ConvertReport report = convert(fs, options);
  CHECK(report.verify_findings == std::vector<std::string>{});
  CHECK(report.published);
}

TEST_CASE(
    "options that are attributes of an HDF5 group go along to formats that write groups anew") {
  for (const std::string& format : {"deepspeed-zero", "deepspeed-universal", "fairscale-fsdp"}) {
    CAPTURE(format);
    MemoryFileSystem fs;
    const std::string source = load_sample(fs, "hdf5/chunked");
    ConvertOptions options = convert_options(source, "/out", std::nullopt, format);
    options.selection.exclude = {"model.bf16"};
    options.verify = true;
    const ConvertReport report = convert(fs, options);
    CHECK(report.verify_findings == std::vector<std::string>{});
    REQUIRE(report.published);
    OpenedContent after = content_at(fs, "/out");
    OpenedContent before = content_at(fs, source);
    for (const std::string option : {"lr", "betas"}) {
      CHECK(after.values["optim.param_groups.0." + option] ==
            before.values["optim.param_groups.0@" + option]);
      CHECK_FALSE(after.values["optim.param_groups.0." + option].empty());
    }
  }
}

TEST_CASE("verify stops a result of which one staged byte turned") {
  MemoryFileSystem fs;
  std::string source = load_sample(fs, "safetensors/hf_sharded");
  class TurnByte final : public ObservedFileSystem {
   public:
    explicit TurnByte(MemoryFileSystem& inner) : ObservedFileSystem(inner), memory_(inner) {}

   protected:
    // In the stage, when everything was written: what a disk that lies would leave.
    void before(const IoEvent& event) const override {
      if (event.op != IoOp::kSync || done_ || !event.path.ends_with("out.safetensors")) return;
      done_ = true;
      Bytes bytes = memory_.read_file(event.path);
      std::size_t at = bytes.size() - 1;  // of the last tensor
      std::byte turned = bytes[at] ^ std::byte{1};
      std::unique_ptr<WriteFile> file = memory_.reopen(event.path, IoMode::kBuffered);
      file->write_at(at, {&turned, 1});
      file->close();
    }

   private:
    MemoryFileSystem& memory_;
    mutable bool done_ = false;
  } turning(fs);
  ConvertOptions options = convert_options(source, "/out.safetensors", std::nullopt);
  options.verify = true;
  ConvertReport report = convert(turning, options);
  CHECK_FALSE(report.published);
  CHECK_FALSE(report.verified);
  REQUIRE(report.verify_findings.size() == 1);
  CHECK(report.verify_findings[0].find("other bytes") != std::string::npos);
  CHECK_FALSE(fs.stat("/out.safetensors"));
}

}  // namespace convert_selection_test
