// Optimizer state of FSDP1's local files whose ids fit the parameters in several ways: shown with a
// warning, never written under names that may be wrong.
#include <tessera/base/error.h>
#include <tessera/encoding/json.h>
#include <tessera/format/torch_rank_files.h>
#include <tessera/live/load.h>
#include <tessera/ops/open.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/support/convert_case.h"
#include "tests/support/edited_archive.h"
#include "tests/support/live_job.h"
#include "tests/support/live_saved.h"
#include "tests/support/note_text.h"
#include "tests/support/sample_case.h"

namespace unsure_names_test {

using namespace tessera;
using namespace tessera::testing;
using namespace tessera::test;

namespace {

const std::string kSample = "torchsave/fsdp1_local_rankfiles_w3";

std::string record_of_sample() {
  const SampleCase sample(kSample);
  return R"({"flat_params": )" + dump_json(*sample.expected.find("flat_params"));
}

/// The sample with its flat parameters in two groups; both layers have one size, so that ids may be
/// either. `ids`: what the layout says of them, "" nothing.
void write_two_groups(MemoryFileSystem& fs, const std::string& ids) {
  load_sample(fs, kSample);
  std::string layout = record_of_sample();
  if (!ids.empty()) layout += R"(, "optimizers": {"optim": )" + ids + "}";
  fs.write_file("/source/flat_layout.json", as_bytes(layout + "}"));
  for (const std::string file : {"rank0.pt", "rank1.pt", "rank2.pt"}) {
    const auto directory = fs.open_directory("/source");
    EditedArchive archive(*directory, file);
    const EditedArchive::Keys groups = {Value::string("optim"), Value::string("param_groups")};
    ValueDict first = archive.at(groups).as_list().at(0).as_dict(), second = first;
    const auto set_members = [](ValueDict& group, ValueList members) {
      for (auto& [key, value] : group)
        if (key == Value::string("params")) value = Value::list(std::move(members));
    };
    set_members(first, {Value::integer(0), Value::integer(1)});
    set_members(second, {Value::integer(2)});
    archive.set(groups, Value::list({Value::dict(first), Value::dict(second)}));
    fs.write_file("/source/" + file, archive.render());
  }
}

}  // namespace

TEST_CASE("ids that sizes leave open are shown and not written") {
  MemoryFileSystem fs;
  write_two_groups(fs, "");
  const OpenedCheckpoint opened = open_checkpoint(fs, "/source", {});
  const auto note = std::ranges::find(opened.manifest.notes, "CK075", note_code<Note>);
  REQUIRE(note != opened.manifest.notes.end());
  CHECK(note->tensor == "optim");
  CHECK(opened.manifest.find("optim.state.layers.0.up.weight.exp_avg") != nullptr);
  for (const std::string format : {"", "torch-dcp", "safetensors", "fairscale-fsdp"}) {
    CAPTURE(format);
    ConvertOptions options =
        convert_options("/source", "/out", format == "safetensors" ? 1 : 2, format);
    try {
      convert(fs, options);
      FAIL_CHECK("it was written");
    } catch (const Error& error) {
      CHECK(error.code() == Code::kUnsupported);
      CHECK(error.status().message.find("could mean other parameters") != std::string::npos);
      CHECK(error.status().hint.find("--flat-layout") != std::string::npos);
    }
    CHECK_FALSE(fs.stat("/out"));
  }
  ConvertOptions model = convert_options("/source", "/out", 2);
  model.selection.only = Part::kModel;
  CHECK(convert(fs, model).published);
}

/// What a training program has of one parameter: the weight and a moment.
LiveState trained(std::vector<float>& weight, std::vector<float>& moment) {
  const auto whole = [](std::vector<float>& memory) {
    LiveTensor tensor{{DType::kFloat32, Shape({10, 6})}, {}};
    tensor.pieces.push_back({Chunk::whole_of(Box{{0, 0}, Shape({10, 6})}), memory.data(), {}});
    return tensor;
  };
  const auto tree = [](const std::string& name, Value value) {
    return Value::dict({{Value::string(name), std::move(value)}});
  };
  const std::string name = "layers.0.up.weight";
  return LiveState::of(
      Value::dict(
          {{Value::string("model"), tree(name, Value::tensor(0))},
           {Value::string("optim"), tree("state", tree(name, tree("exp_avg", Value::tensor(1))))}}),
      {whole(weight), whole(moment)});
}

TEST_CASE("a training program does not get moments under names that may be wrong") {
  MemoryFileSystem fs;
  write_two_groups(fs, "");
  std::vector<float> weight(60), moment(60);
  const auto load_with = [&](PartPolicy optimizer) {
    return on_ranks(1, [&](RankGroup& ranks) {
      LoadPolicy policy = loading(fs);
      policy.model = policy.other = PartPolicy::kAllowBoth;
      policy.optimizer = optimizer;
      load("/source", trained(weight, moment), ranks, policy);
    });
  };
  const std::vector<std::string> refused = load_with(PartPolicy::kAllowBoth);
  CHECK(refused.at(0).find("could mean other parameters") != std::string::npos);
  CHECK(weight == std::vector<float>(60));
  require_quiet(load_with(PartPolicy::kSkip));
  CHECK(weight != std::vector<float>(60));
  CHECK(moment == std::vector<float>(60));
  write_two_groups(fs, R"(["_flat_param", "layers.1._flat_param", "layers.0._flat_param"])");
  require_quiet(load_with(PartPolicy::kAllowBoth));
  CHECK(moment != std::vector<float>(60));
}

TEST_CASE("a layout that says what ids mean lets them through") {
  MemoryFileSystem fs;
  write_two_groups(fs, R"(["_flat_param", "layers.1._flat_param", "layers.0._flat_param"])");
  ConvertOptions options = convert_options("/source", "/out", 2, "torch-dcp");
  options.verify = true;
  CHECK(convert(fs, options).published);
}

TEST_CASE("one group of all parameters is in their order") {
  MemoryFileSystem fs;
  load_sample(fs, kSample);
  fs.write_file("/source/flat_layout.json", as_bytes(record_of_sample() + "}"));
  CHECK(convert(fs, convert_options("/source", "/out", 2, "torch-dcp")).published);
}

}  // namespace unsure_names_test
