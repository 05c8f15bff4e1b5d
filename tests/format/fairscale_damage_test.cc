// FairScale's rank files with a part lost or damaged: the rank that lost it is named, and what the
// others hold is not dropped in silence.
#include <tessera/base/error.h>
#include <tessera/format/deepspeed_zero.h>
#include <tessera/format/registry.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/format/fairscale_fixture.h"
#include "tests/support/archive_gather.h"
#include "tests/support/note_text.h"

namespace tessera::testing::fairscale_damage_test {
namespace {

const std::vector<SceneWrapper> kTwo = {{"", {{"a", Shape{5, 3}}, {"b", Shape{4}}}},
                                        {"inner", {{"w", Shape{7}}}}};

Value* find_key(ValueDict& entries, const std::string& name) {
  for (auto& [key, value] : entries)
    if (key.is_string() && key.as_string() == name) return &value;
  return nullptr;
}
void erase_key(ValueDict& entries, const std::string& name) {
  std::erase_if(entries, [&](const auto& entry) {
    return entry.first.is_string() && entry.first.as_string() == name;
  });
}

Status failure(const SceneCheckpoint& checkpoint) {
  try {
    fairscale_fsdp_driver().manifest(checkpoint.place(), {});
  } catch (const Error& error) {
    return error.status();
  }
  return {};
}
Manifest tolerated(const SceneCheckpoint& checkpoint) {
  ReadOptions options;
  options.tolerate_damage = true;
  return fairscale_fsdp_driver().manifest(checkpoint.place(), options);
}
std::ptrdiff_t count(const Manifest& manifest, std::string_view code) {
  return std::ranges::count(manifest.notes, code, testing::note_code<Note>);
}

}  // namespace

TEST_CASE("an optimizer that one FairScale rank lost is damage, whichever rank it is") {
  for (const std::int64_t lost : {0, 1, 2}) {
    CAPTURE(lost);
    Scene scene{.wrappers = kTwo, .world_size = 3};
    scene.edit = [&](std::int64_t rank, ValueDict& root, RankArchive&) {
      if (rank == lost) erase_key(root, "optim");
    };
    const SceneCheckpoint checkpoint(scene);
    CHECK(failure(checkpoint).code == Code::kCorrupt);
    CHECK(failure(checkpoint).context.file == "rank_" + std::to_string(lost) + ".pt");
    const Manifest manifest = tolerated(checkpoint);
    CHECK(count(manifest, "CK024") > 0);
    CHECK(manifest.find("optim.state.a.exp_avg"));
  }
}

TEST_CASE("a leaf that one FairScale rank lost is damage, whichever rank it is") {
  for (const std::int64_t lost : {0, 1, 2}) {
    CAPTURE(lost);
    Scene scene{.wrappers = kTwo, .world_size = 3};
    scene.edit = [&](std::int64_t rank, ValueDict& root, RankArchive&) {
      if (rank != lost) return;
      ValueDict optim = find_key(root, "optim")->as_dict();
      ValueDict state = find_key(optim, "state")->as_dict();
      ValueDict first = state[0].second.as_dict();
      erase_key(first, "exp_avg_sq");
      state[0].second = Value::dict(std::move(first));
      *find_key(optim, "state") = Value::dict(std::move(state));
      *find_key(root, "optim") = Value::dict(std::move(optim));
    };
    const SceneCheckpoint checkpoint(scene);
    CHECK_THAT(failure(checkpoint).message, Catch::Contains("stored no \"exp_avg_sq\""));
    CHECK(failure(checkpoint).context.file == "rank_" + std::to_string(lost) + ".pt");
    CHECK(tolerated(checkpoint).find("optim.state.a.exp_avg_sq"));
  }
}

TEST_CASE("padding of the optimizer's state is looked at as well") {
  Scene scene{.wrappers = {{"", {{"a", Shape{5}}}}}, .world_size = 3};
  CHECK(count(tolerated(SceneCheckpoint(scene)), "CK065") == 0);
  scene.edit = [](std::int64_t rank, ValueDict& root, RankArchive& archive) {
    if (rank != 2) return;
    ValueDict optim = find_key(root, "optim")->as_dict();
    ValueDict state = find_key(optim, "state")->as_dict();
    ValueDict first = state[0].second.as_dict();
    *find_key(first, "exp_avg") = archive.tensor(Shape{2}, {1, 2});  // 5 of 6: one is padding
    state[0].second = Value::dict(std::move(first));
    *find_key(optim, "state") = Value::dict(std::move(state));
    *find_key(root, "optim") = Value::dict(std::move(optim));
  };
  const Manifest manifest = tolerated(SceneCheckpoint(scene));
  REQUIRE(count(manifest, "CK065") == 1);
  const auto note = std::ranges::find(manifest.notes, "CK065", testing::note_code<Note>);
  CHECK_THAT(note->tensor, Catch::Contains("exp_avg"));
  CHECK(note->file == "rank_2.pt");
}

TEST_CASE("a damaged file of one rank is named, not taken for a second checkpoint") {
  const Scene scene{.wrappers = kTwo, .world_size = 3};
  for (const std::string name : {"rank_0.pt", "rank_1.pt"}) {
    CAPTURE(name);
    SceneCheckpoint checkpoint(scene);
    Bytes bytes = checkpoint.fs.read_file("/c/" + name);
    bytes.resize(bytes.size() / 2);
    checkpoint.fs.write_file("/c/" + name, bytes);
    CHECK(detect_format(checkpoint.place()).driver == &fairscale_fsdp_driver());
    const Status status = failure(checkpoint);
    CHECK(status.code == Code::kCorrupt);
    CHECK(status.context.file == name);
  }
}

TEST_CASE("a first rank's file that no longer starts like torch.save's is named as well") {
  const Scene scene{.wrappers = kTwo, .world_size = 3};
  for (const bool empty : {false, true}) {
    CAPTURE(empty);
    SceneCheckpoint checkpoint(scene);
    Bytes bytes = checkpoint.fs.read_file("/c/rank_0.pt");
    bytes[0] ^= std::byte{1};
    if (empty) bytes.clear();
    checkpoint.fs.write_file("/c/rank_0.pt", bytes);
    CHECK(detect_format(checkpoint.place()).driver == &fairscale_fsdp_driver());
    const Status status = failure(checkpoint);
    CHECK(status.code == Code::kCorrupt);
    CHECK(status.context.file == "rank_0.pt");
    CHECK(count(tolerated(checkpoint), "CK042") == 1);
  }
}

TEST_CASE("a damaged file of another format does not make it FairScale's") {
  const SampleCase sample("deepspeed/zero1_w2", "checkpoint/global_step2");
  MemoryFileSystem fs;
  for (const FileInfo& info : sample.directory->list()) {
    Bytes bytes(info.size_bytes);
    sample.directory->open(info.name)->read_at(0, bytes);
    // A flag that torch.save never sets, in the central directory's last entry: unsupported.
    if (info.name.starts_with("mp_rank")) {
      const std::string_view all = as_text(bytes);
      bytes[all.rfind("PK\x01\x02") + 8] ^= std::byte{1};
    }
    fs.write_file("/c/" + info.name, bytes);
  }
  const auto directory = fs.open_directory("/c");
  CHECK(detect_format({directory.get(), "", "c"}).driver == &deepspeed_zero_driver());
}

}  // namespace tessera::testing::fairscale_damage_test
