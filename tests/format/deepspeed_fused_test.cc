// Engines without ZeRO whose optimizer steps flat buffers (FusedAdam's wrapper): what the engine
// itself held in them (tests/format/data/deepspeed_plain/fused_*) is read under its names.
#include <tessera/base/error.h>
#include <tessera/encoding/json.h>
#include <tessera/format/deepspeed_zero.h>
#include <tessera/ops/convert.h>
#include <tessera/ops/open.h>
#include <tessera/state/optim_state.h>
#include <tessera/storage/memory_file_system.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "lib/format/deepspeed_zero/fused_optim.h"
#include "lib/format/deepspeed_zero/values.h"
#include "tests/support/archive_gather.h"
#include "tests/support/convert_case.h"
#include "tests/support/note_text.h"
#include "tests/support/rank_archive.h"
#include "tests/support/sample_case.h"

namespace deepspeed_fused_test {

using namespace tessera;
using namespace tessera::testing;
using deepspeed::text;

namespace {

const std::string kData = TESSERA_SOURCE_DIR "/tests/format/data/deepspeed_plain/";
constexpr const char* kSamples[] = {"fused_fp16_w2", "fused_bf16_w2"};

Bytes bytes_at(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const auto fs = make_posix_file_system();
  const auto directory = fs->open_directory(path.substr(0, slash));
  const auto file = directory->open(path.substr(slash + 1));
  Bytes bytes(static_cast<std::size_t>(file->size_bytes()));
  file->read_at(0, bytes);
  return bytes;
}

Value expected_of(const std::string& name) {
  JsonLimits limits;
  limits.max_depth = 64;
  return parse_json(bytes_at(kData + name + "/expected.json"), limits);
}

/// A model file in memory: weights of groups end to end in one storage each.
struct Fused {
  TorchArchive archive;
  deepspeed::ModelFile model;

  /// A storage of `numel` bfloat16; returns its number.
  std::uint32_t storage(std::int64_t numel) {
    ArchiveStorage storage;
    storage.size_bytes = static_cast<std::uint64_t>(numel) * 2;
    archive.storages.push_back(storage);
    return static_cast<std::uint32_t>(archive.storages.size() - 1);
  }
  std::uint32_t tensor(const Shape& shape, std::uint32_t storage, std::int64_t offset,
                       DType dtype = DType::kBFloat16) {
    ArchiveTensor tensor;
    tensor.dtype = dtype;
    tensor.shape = shape;
    tensor.storage = storage;
    tensor.storage_offset = offset;
    std::int64_t stride = 1;
    for (int d = shape.rank() - 1; d >= 0; --d) {
      tensor.strides.insert(tensor.strides.begin(), stride);
      stride *= shape[d];
    }
    archive.tensors.push_back(tensor);
    return static_cast<std::uint32_t>(archive.tensors.size() - 1);
  }
  void weight(const std::string& name, const Shape& shape, std::uint32_t in, std::int64_t offset) {
    model.module.push_back({name, tensor(shape, in, offset)});
  }
  /// The wrapper's dict with masters of these sizes.
  Value optimizer(const std::vector<std::int64_t>& sizes, std::size_t ids = 1) {
    ValueList masters, groups, list;
    for (std::size_t i = 0; i < ids; ++i)
      list.push_back(Value::integer(static_cast<std::int64_t>(i)));
    for (const std::int64_t size : sizes) {
      const std::uint32_t own = storage(size * 2);
      masters.push_back(Value::tensor(tensor(Shape{size}, own, 0, DType::kFloat32)));
      groups.push_back(Value::dict({{text("params"), Value::list(list)}}));
    }
    const Value inner = Value::dict(
        {{text("state"), Value::dict({})}, {text("param_groups"), Value::list(std::move(groups))}});
    return Value::dict({{text("optimizer_state_dict"), inner},
                        {text("fp32_groups_flat"), Value::list(std::move(masters))}});
  }
  std::optional<deepspeed::FusedLayout> layout(const Value& stored) const {
    return deepspeed::fused_layout(archive, model, stored);
  }
};

}  // namespace

TEST_CASE("flat buffers of an engine without ZeRO are read under the names it knows") {
  for (const std::string name : kSamples) {
    CAPTURE(name);
    const Value expected = expected_of(name);
    const auto fs = make_posix_file_system();
    OpenedCheckpoint checkpoint = open_checkpoint(*fs, kData + name + "/checkpoint", {});
    checkpoint.locate_all({});
    const Manifest& manifest = checkpoint.manifest;
    CHECK(content_of(manifest, *checkpoint.directory) == expected_content(expected));
    CHECK(std::ranges::none_of(manifest.notes,
                               [](const Note& n) { return note_code(n) == "CK099"; }));
    const auto optimizers = canonical_optim_states(manifest, find_roles(manifest.state));
    REQUIRE(optimizers.size() == 1);
    CHECK(optimizers[0].issues.empty());
    const auto& groups = expected.find("names")->as_list();
    REQUIRE(optimizers[0].groups.size() == groups.size());
    for (std::size_t g = 0; g < groups.size(); ++g) {
      std::vector<std::string> names;
      for (const Value& one : groups[g].as_list()) names.push_back(one.as_string());
      CHECK(optimizers[0].groups[g].members == names);
    }
    CHECK(manifest.state.find("deepspeed.clip_grad") != nullptr);
    CHECK((manifest.state.find("deepspeed.cur_scale") != nullptr) == (name == "fused_fp16_w2"));
  }
}

TEST_CASE("flat buffers become ZeRO's partitions and other formats' state") {
  for (const std::string name : kSamples)
    for (const std::string format :
         {"deepspeed-zero", "deepspeed-universal", "torch-dcp", "torch-save", "fairscale-fsdp"}) {
      CAPTURE(name, format);
      MemoryFileSystem fs;
      fs.make_directories("/source/global_step2");
      for (const std::string file : {"latest", "global_step2/mp_rank_00_model_states.pt"})
        fs.write_file("/source/" + file, bytes_at(kData + name + "/checkpoint/" + file));
      ConvertOptions options = convert_options(
          "/source", "/out", format == "torch-save" || format == "deepspeed-universal" ? 1 : 3,
          format);
      options.verify = true;
      options.rank_state = RankStatePolicy::kKeep;
      const ConvertReport report = convert(fs, options);
      CHECK(report.verify_findings == std::vector<std::string>{});
      CHECK(report.published);
      const auto has = content_at(fs, "/out").tensors;
      for (const auto& [key, content] : expected_content(expected_of(name))) {
        if (!key.starts_with("optim.")) continue;
        CAPTURE(key);
        if (!key.ends_with(".step")) CHECK(has.at(key) == content);
      }
    }
}

TEST_CASE("places in a buffer tell the members of a group, in any order") {
  Fused fused;
  const std::uint32_t one = fused.storage(10), two = fused.storage(6), own = fused.storage(4);
  fused.weight("late", Shape{2, 2}, one, 6);
  fused.weight("frozen", Shape{4}, own, 0);
  fused.weight("early", Shape{6}, one, 0);
  fused.weight("tied", Shape{6}, one, 0);
  fused.weight("other", Shape{2, 3}, two, 0);
  const auto layout = fused.layout(fused.optimizer({6, 10}));
  REQUIRE(layout);
  CHECK(layout->missing.empty());
  REQUIRE(layout->groups.size() == 2);
  CHECK(layout->groups[0].members.at(0).name == "other");
  REQUIRE(layout->groups[1].members.size() == 2);
  CHECK(layout->groups[1].members[0].name == "early");
  CHECK(layout->groups[1].members[1].name == "late");
  CHECK(layout->groups[1].members[1].begin == 6);
}

TEST_CASE("flat buffers whose members cannot be told are kept with the reason") {
  const auto why = [](Fused& fused, const std::vector<std::int64_t>& sizes) {
    const auto layout = fused.layout(fused.optimizer(sizes));
    REQUIRE(layout);
    CHECK(layout->groups.empty());
    return layout->missing;
  };
  Fused copied;  // each weight in a storage of its own
  copied.weight("a", Shape{6}, copied.storage(6), 0);
  copied.weight("b", Shape{4}, copied.storage(4), 0);
  CHECK_THAT(why(copied, {10}), Catch::StartsWith("none of"));
  Fused alike;
  alike.weight("a", Shape{6}, alike.storage(6), 0);
  alike.weight("b", Shape{6}, alike.storage(6), 0);
  CHECK_THAT(why(alike, {6, 6}), Catch::StartsWith("several sets"));
  Fused gap;
  const std::uint32_t in = gap.storage(10);
  gap.weight("a", Shape{5}, in, 0);
  gap.weight("b", Shape{4}, in, 6);
  CHECK_THAT(why(gap, {10}), Catch::StartsWith("none of"));
  Fused longer;
  longer.weight("a", Shape{6}, longer.storage(7), 0);
  CHECK_THAT(why(longer, {6}), Catch::StartsWith("none of"));
}

TEST_CASE("flat buffers that are not those of the groups are refused") {
  Fused fused;
  fused.weight("a", Shape{6}, fused.storage(6), 0);
  const Value two_ids = fused.optimizer({6}, 2);
  CHECK(test::code_of([&] { fused.layout(two_ids); }) == Code::kCorrupt);
  const Value stored = fused.optimizer({6});
  ValueDict fewer = stored.as_dict();
  fewer[1].second = Value::list({});
  CHECK(test::code_of([&] { fused.layout(Value::dict(fewer)); }) == Code::kCorrupt);
  CHECK_FALSE(fused.layout(Value::dict({{text("state"), Value::dict({})}})));
}

TEST_CASE("a refusal of flat buffers without names says why they have none") {
  RankArchive archive;  // each weight in a storage of its own, as after a copy
  const Value inner =
      dict({{"state",
             Value::dict(
                 {{number(0), dict({{"exp_avg", archive.tensor({10}, std::vector<float>(10))}})}})},
            {"param_groups", Value::list({dict({{"params", Value::list({number(0)})}})})}});
  const Value root = dict(
      {{"module", dict({{"a", archive.half({6}, std::vector<float>(6))},
                        {"b", archive.half({4}, std::vector<float>(4))}})},
       {"optimizer",
        dict({{"optimizer_state_dict", inner},
              {"fp32_groups_flat", Value::list({archive.tensor({10}, std::vector<float>(10))})}})},
       {"ds_version", text("0.19.8")},
       {"dp_world_size", number(2)}});
  MemoryFileSystem fs;
  fs.write_file("/c/mp_rank_00_model_states.pt", archive.render(root));
  for (const std::string format : {"deepspeed-zero", "deepspeed-universal", "fairscale-fsdp"}) {
    INFO(format);
    CHECK_THROWS_WITH(
        convert(fs, convert_options("/c", "/out", std::nullopt, format)),
        Catch::Contains(
            "none of the module's weights lie end to end in one buffer of 10 elements") &&
            Catch::Contains("mp_rank_00_model_states.pt"));
  }
  ConvertOptions by_name = convert_options("/c", "/out", std::nullopt, "torch-dcp");
  by_name.optim_keys = OptimKeys::kFqn;
  CHECK_THROWS_WITH(convert(fs, by_name), Catch::Contains("none of the module's weights"));
}

}  // namespace deepspeed_fused_test
