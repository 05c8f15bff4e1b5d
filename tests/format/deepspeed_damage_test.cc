// Damaged, incomplete and mixed DeepSpeed folders: what is wrong is named. Padding never surfaces.
#include <tessera/base/error.h>
#include <tessera/format/deepspeed_universal.h>
#include <tessera/format/deepspeed_zero.h>
#include <tessera/format/registry.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <string>

#include "lib/format/deepspeed_zero/names.h"
#include "tests/support/archive_gather.h"
#include "tests/support/note_text.h"
#include "tests/support/written_checkpoint.h"

namespace tessera::deepspeed_damage_test {
namespace {

constexpr const char* kTag = "/ckpt/global_step2/";

/// A sample's tag folder in memory, to be damaged.
struct Scene {
  MemoryFileSystem fs;
  explicit Scene(const std::string& name) {
    const testing::SampleCase sample(name, "checkpoint/global_step2");
    for (const FileInfo& info : sample.directory->list()) {
      Bytes bytes(info.size_bytes);
      sample.directory->open(info.name)->read_at(0, bytes);
      fs.write_file(kTag + info.name, bytes);
    }
  }
  void copy(const std::string& from, const std::string& to) {
    fs.write_file(kTag + to, fs.read_file(kTag + from));
  }
  void remove(const std::string& name) { fs.remove_file(kTag + name); }
  std::string failure(Code code = Code::kCorrupt) {
    const auto directory = fs.open_directory("/ckpt/global_step2");
    try {
      testing::read_all(deepspeed_zero_driver(), {directory.get(), "", "ckpt/global_step2"});
    } catch (const Error& error) {
      CHECK(error.code() == code);
      return error.status().to_string();
    }
    return "";
  }
};

}  // namespace

TEST_CASE("file names of every age are told apart") {
  using deepspeed::parse_file_name;
  using Kind = deepspeed::FileName::Kind;
  CHECK(parse_file_name("mp_rank_00_model_states.pt").kind == Kind::kModel);
  CHECK(parse_file_name("mp_rank_00_model_states.pt").dp_rank == -1);
  CHECK(parse_file_name("zero_pp_rank_12_mp_rank_00_model_states.pt").dp_rank == 12);
  const auto bf16 = parse_file_name("bf16_zero_pp_rank_10_mp_rank_01_optim_states.pt");
  CHECK(bf16.kind == Kind::kOptim);
  CHECK(bf16.bf16);
  CHECK(bf16.dp_rank == 10);
  CHECK(bf16.mp_rank == 1);
  CHECK(parse_file_name("zero_pp_rank_3_mp_rank_00optim_states.pt").kind == Kind::kOptim);
  CHECK(parse_file_name("layer_3_expert_7_mp_rank_00_model_states.pt").kind == Kind::kExpert);
  CHECK(parse_file_name("expp_rank_0_mp_rank_00_optim_states.pt").kind == Kind::kExpert);
  CHECK(parse_file_name("layer_00-model_00-model_states.pt").kind == Kind::kPipeline);
  CHECK(parse_file_name("zero_to_fp32.py").kind == Kind::kOther);
  CHECK(parse_file_name("zero_pp_rank_x_mp_rank_00_optim_states.pt").kind == Kind::kOther);
  CHECK(parse_file_name("zero_pp_rank_99999999999_mp_rank_00_optim_states.pt").kind ==
        Kind::kOther);
}

TEST_CASE("a missing rank is named with its file") {
  Scene scene("deepspeed/zero2_w4");
  scene.remove("zero_pp_rank_2_mp_rank_00_optim_states.pt");
  const std::string message = scene.failure();
  CHECK_THAT(message, Catch::Contains("3 optimizer files for 4 ranks; missing: rank 2"));
  CHECK_THAT(message, Catch::Contains("zero_pp_rank_2_mp_rank_00_optim_states.pt"));
}

TEST_CASE("under tolerance a missing rank is a finding, and its elements a hole") {
  Scene scene("deepspeed/zero2_w4");
  scene.remove("zero_pp_rank_2_mp_rank_00_optim_states.pt");
  const auto directory = scene.fs.open_directory("/ckpt/global_step2");
  ReadOptions options;
  options.tolerate_damage = true;
  const Manifest manifest =
      deepspeed_zero_driver().manifest({directory.get(), "", "global_step2"}, options);
  REQUIRE(manifest.notes.size() == 1);
  CHECK(testing::note_code(manifest.notes[0]) == "CK010");
  std::int64_t held = 0, all = 0;
  for (const StoredTensor& tensor : manifest.tensors) {
    if (!tensor.name.starts_with("model.")) continue;
    all += tensor.spec.shape.numel();
    for (std::uint32_t i = 0; i < tensor.chunk_count; ++i)
      held += manifest.chunk(tensor, i).numel();
  }
  CHECK(held < all);
}

TEST_CASE("all optimizer files or the model file missing is said so") {
  Scene scene("deepspeed/zero1_w2");
  scene.remove("zero_pp_rank_0_mp_rank_00_optim_states.pt");
  scene.remove("zero_pp_rank_1_mp_rank_00_optim_states.pt");
  CHECK_THAT(scene.failure(), Catch::Contains("optimizer files of all ranks are missing"));
  Scene other("deepspeed/zero1_w2");
  other.remove("mp_rank_00_model_states.pt");
  CHECK_THAT(other.failure(), Catch::Contains("no model file"));
}

TEST_CASE("a file left by a save over more ranks is not taken in silence") {
  Scene scene("deepspeed/zero2_w2");
  scene.copy("zero_pp_rank_1_mp_rank_00_optim_states.pt",
             "zero_pp_rank_2_mp_rank_00_optim_states.pt");
  CHECK_THAT(scene.failure(), Catch::Contains("a file of rank 2") && Catch::Contains("of 2 ranks"));
}

TEST_CASE("files of two world sizes are told apart") {
  Scene scene("deepspeed/zero2_w4"), other("deepspeed/zero2_w2");
  scene.fs.write_file(
      std::string(kTag) + "zero_pp_rank_1_mp_rank_00_optim_states.pt",
      other.fs.read_file(std::string(kTag) + "zero_pp_rank_1_mp_rank_00_optim_states.pt"));
  CHECK_THAT(scene.failure(), Catch::Contains("of a run over 2 ranks"));
}

TEST_CASE("two stages in one folder are told apart") {
  Scene scene("deepspeed/zero2_w2"), other("deepspeed/zero1_w2");
  scene.fs.write_file(
      std::string(kTag) + "zero_pp_rank_1_mp_rank_00_optim_states.pt",
      other.fs.read_file(std::string(kTag) + "zero_pp_rank_1_mp_rank_00_optim_states.pt"));
  CHECK_THAT(scene.failure(), Catch::Contains("stage differs"));
}

TEST_CASE("parallelism whose parts cannot be joined is refused by name") {
  Scene tensor("deepspeed/zero2_w2");
  tensor.copy("mp_rank_00_model_states.pt", "mp_rank_01_model_states.pt");
  CHECK_THAT(tensor.failure(Code::kUnsupported),
             Catch::Contains("tensor parallelism (mp_rank_01_model_states.pt)"));
  Scene expert("deepspeed/zero3_w2");
  expert.copy("zero_pp_rank_0_mp_rank_00_model_states.pt",
              "layer_0_expert_1_mp_rank_00_model_states.pt");
  CHECK_THAT(expert.failure(Code::kUnsupported),
             Catch::Contains("mixture of experts under ZeRO stage 3"));
  Scene pipeline("deepspeed/zero2_w2");
  pipeline.copy("mp_rank_00_model_states.pt", "layer_00-model_00-model_states.pt");
  CHECK_THAT(pipeline.failure(Code::kUnsupported), Catch::Contains("pipeline parallelism"));
}

TEST_CASE("a stage 3 folder names the model file it misses") {
  Scene scene("deepspeed/zero3_w4");
  scene.remove("zero_pp_rank_3_mp_rank_00_model_states.pt");
  CHECK_THAT(scene.failure(), Catch::Contains("3 model files for 4 ranks; missing: rank 3"));
}

TEST_CASE("poisoned padding never surfaces") {
  for (const char* name : {"deepspeed/zero2_w4", "deepspeed/zero3_w4", "deepspeed/zero2_bf16_w2"}) {
    CAPTURE(name);
    const testing::SampleCase sample(name, "checkpoint/global_step2");
    const auto clean =
        testing::read_all(deepspeed_zero_driver(), {sample.directory.get(), "", "global_step2"});
    const auto expected = testing::content_of(clean, *sample.directory);
    // Every element of the optimizer files that no tensor reads becomes a NaN.
    Scene scene(name);
    std::size_t poisoned = 0;
    for (std::uint32_t f = 0; f < clean.files.size(); ++f) {
      if (clean.files[f].path.find("optim_states") == std::string::npos) continue;
      const std::string path = std::string(kTag) + clean.files[f].path;
      std::string bytes(as_text(scene.fs.read_file(path)));
      std::vector<bool> read(bytes.size());
      for (std::size_t c = 0; c < clean.chunks.size(); ++c) {
        const Source& source = clean.chunks.source(c);
        if (source.file == f)
          std::fill_n(read.begin() + static_cast<std::ptrdiff_t>(source.offset), source.length,
                      true);
      }
      const test::ByteFile file(bytes);
      TorchArchive archive = open_torch_archive(ByteWindow::whole(file));
      locate_storages(ByteWindow::whole(file), archive);
      for (const ArchiveTensor& tensor : archive.tensors) {
        if (tensor.shape.rank() != 1) continue;
        const ArchiveStorage& storage = archive.storages[tensor.storage];
        const std::uint64_t begin =
            storage.offset + static_cast<std::uint64_t>(tensor.storage_offset) * 4;
        for (std::uint64_t at = begin;
             at < begin + static_cast<std::uint64_t>(tensor.shape.numel()) * 4; at += 4) {
          if (read[at]) continue;
          std::memcpy(bytes.data() + at, "\x00\x00\xc0\x7f", 4);
          ++poisoned;
        }
      }
      scene.fs.write_file(path, Bytes(as_bytes(bytes).begin(), as_bytes(bytes).end()));
    }
    CHECK(poisoned > 0);
    const auto directory = scene.fs.open_directory("/ckpt/global_step2");
    ReadOptions options;
    options.check_crc = false;
    Manifest dirty =
        testing::read_all(deepspeed_zero_driver(), {directory.get(), "", "global_step2"}, options);
    dirty.records.clear();
    for (std::size_t c = 0; c < dirty.chunks.size(); ++c) dirty.chunks.source(c).record = 0;
    CHECK(testing::content_of(dirty, *directory) == expected);
    // Nor does it reach what is written again.
    TargetRequest request;
    request.world_size = 3;
    const testing::WrittenCheckpoint written(deepspeed_zero_driver(), dirty, *directory, request);
    for (const auto& [path, content] : written.files)
      CHECK(as_text(content).find(std::string("\x00\x00\xc0\x7f", 4)) == std::string_view::npos);
  }
}

}  // namespace tessera::deepspeed_damage_test
