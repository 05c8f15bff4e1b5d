// FairScale's files and DeepSpeed's, each through the other and back: what only one of them has
// words for goes along under our own key.
#include <tessera/encoding/torch_archive.h>

#include <catch2/catch.hpp>

#include "tests/format/fairscale_fixture.h"
#include "tests/support/convert_case.h"
#include "tests/support/sample_case.h"

namespace fairscale_deepspeed_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

/// A wrapper at the root whose optimizer rank 0 has gathered, with a key of the user's in it.
Scene gathered_scene() {
  Scene scene{.wrappers = {{.path = "", .parameters = {{"w", {3, 2}}, {"b", {2}}}}},
              .optimizer_key = ""};
  scene.edit = [](std::int64_t rank, ValueDict& root, RankArchive& archive) {
    if (rank != 0) return;
    const auto state = [&](std::int64_t numel) {
      const std::vector<float> content(static_cast<std::size_t>(numel), 0.5f);
      return dict({{"step", Value::real(7)},
                   {"exp_avg", archive.tensor(Shape{numel}, content)},
                   {"exp_avg_sq", archive.tensor(Shape{numel}, content)}});
    };
    ValueDict by_id = {{number(0), state(6)}, {number(1), state(2)}};
    ValueDict map = {{number(0), number(0)}, {number(1), number(0)}};
    const Value group =
        dict({{"lr", Value::real(0.5)}, {"params", Value::list({number(0), number(1)})}});
    root.emplace_back(text("optim"), dict({{"state", Value::dict(std::move(by_id))},
                                           {"param_groups", Value::list({group})},
                                           {"param_id_map", Value::dict(std::move(map))},
                                           {"uncollected_local_ids", Value::list({})},
                                           {"loss_scale", number(1024)}}));
  };
  return scene;
}

OpenedContent after(MemoryFileSystem& fs, const std::string& from, const std::string& to,
                    const std::string& format, std::optional<std::int64_t> ranks) {
  convert(fs, convert_options(from, to, ranks, format));
  return content_at(fs, to);
}

/// FairScale's own map of ids is one value, a map that came through another format its leaves.
std::map<std::string, std::string> without_map(std::map<std::string, std::string> values) {
  std::erase_if(values, [](const auto& v) { return v.first.starts_with("optim.param_id_map"); });
  return values;
}

void check_equal(const OpenedContent& got, const OpenedContent& want) {
  CHECK(got.tensors == want.tensors);
  CHECK(without_map(got.values) == without_map(want.values));
}

Value root_of(MemoryFileSystem& fs, const std::string& file) {
  const auto opened = fs.open_directory("/f")->open(file);
  return open_torch_archive(ByteWindow::whole(*opened)).root;
}

/// True where the file keeps state of "tokens_seen" under our key.
bool keeps_state(MemoryFileSystem& fs, const std::string& file) {
  const Value root = root_of(fs, file);
  const Value* ours = root.find("meta")->find("tessera");
  const Value* state = ours ? ours->find("state") : nullptr;
  return state && state->find("tokens_seen");
}

}  // namespace

TEST_CASE("a gathered FairScale optimizer goes to DeepSpeed and back with its maps of ids") {
  const Scene scene = gathered_scene();
  SceneCheckpoint made(scene);
  const OpenedContent before = content_at(made.fs, "/c");
  REQUIRE(before.values.contains("optim.param_id_map"));
  REQUIRE(before.values.contains("optim.loss_scale"));
  for (const std::string format : {"deepspeed-zero", "deepspeed-universal"}) {
    INFO(format);
    const auto ranks = format == "deepspeed-zero" ? std::optional<std::int64_t>(3) : std::nullopt;
    const OpenedContent there = after(made.fs, "/c", "/d", format, ranks);
    CHECK(there.tensors == before.tensors);
    check_equal(after(made.fs, "/d", "/f", "fairscale-fsdp", 2), before);
    const Value gathered = root_of(made.fs, "optim.pt");
    CHECK(*gathered.find("param_id_map") ==
          Value::dict({{number(0), number(0)}, {number(1), number(0)}}));
    for (const char* path : {"/d", "/f"}) made.fs.remove_tree(path);
  }
}

TEST_CASE("what DeepSpeed keeps of buffers goes to FairScale's first rank and back") {
  for (const std::string name : {"deepspeed/zero1_w2", "deepspeed/zero2_w4"}) {
    INFO(name);
    MemoryFileSystem fs;
    const std::string source = load_sample(fs, name);
    const OpenedContent before = content_at(fs, source);
    REQUIRE(before.tensors.contains("optim.state.tokens_seen.fp32"));
    check_equal(after(fs, source, "/f", "fairscale-fsdp", 3), before);
    CHECK(keeps_state(fs, "rank_0.pt"));
    CHECK_FALSE(keeps_state(fs, "rank_1.pt"));
    check_equal(after(fs, "/f", "/g", "fairscale-fsdp", 2), before);
    check_equal(after(fs, "/g", "/back", "deepspeed-zero", 2), before);
  }
}

}  // namespace fairscale_deepspeed_test
