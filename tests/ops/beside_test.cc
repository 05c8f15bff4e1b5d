// What lies beside a checkpoint and belongs to the same training state: named, looked into, and
// never left behind without a word.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/ops/seal.h>
#include <tessera/ops/summary.h>
#include <tessera/ops/verify.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/support/convert_case.h"
#include "tests/support/hostile_bytes.h"
#include "tests/support/note_text.h"
#include "tests/support/open_case.h"
#include "tests/support/rank_archive.h"
#include "tests/support/verify_case.h"

namespace beside_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

Bytes archive_of(const std::vector<std::pair<std::string, Shape>>& tensors) {
  RankArchive archive;
  std::vector<std::pair<std::string, Value>> items;
  for (const auto& [name, shape] : tensors)
    items.emplace_back(
        name,
        archive.tensor(shape, std::vector<float>(static_cast<std::size_t>(shape.numel()), 2)));
  return archive.render(dict(std::move(items)));
}

/// Weights under a name that is no trainer's, beside what Hugging Face's Trainer writes with them.
void put_trainer_folder(MemoryFileSystem& fs, const std::string& at) {
  fs.write_file("/weights.pt", archive_of({{"a.weight", {4, 2}}, {"a.bias", {4}}}));
  convert(fs, convert_options("/weights.pt", "/made.safetensors", std::nullopt));
  fs.write_file(at + "/weights.safetensors", fs.read_file("/made.safetensors"));
  fs.write_file(at + "/optimizer.pt", archive_of({{"exp_avg", {4, 2}}, {"exp_avg_sq", {4, 2}}}));
  fs.write_file(at + "/scheduler.pt", RankArchive().render(dict({{"last_epoch", number(4)}})));
  put(fs, at + "/trainer_state.json", "{}");
  put(fs, at + "/config.json", "{}");
  put(fs, at + "/README.md", "# a model");
  put(fs, at + "/events.out.tfevents.1", "x");
}

std::vector<std::string> names(const std::vector<Beside>& all, Beside::Kind kind) {
  std::vector<std::string> out;
  for (const Beside& beside : all)
    if (beside.kind == kind) out.push_back(beside.path);
  return out;
}

}  // namespace

TEST_CASE("a folder of weights names the optimizer and the sidecars beside them") {
  MemoryFileSystem fs;
  put_trainer_folder(fs, "/run");
  const OpenedCheckpoint opened = open_checkpoint(fs, "/run");
  CHECK(opened.driver->id() == "safetensors");
  CHECK(names(opened.beside, Beside::Kind::kOptimizer) == std::vector<std::string>{"optimizer.pt"});
  CHECK(names(opened.beside, Beside::Kind::kSidecar) ==
        std::vector<std::string>{"scheduler.pt", "trainer_state.json"});
  REQUIRE(opened.notes.size() == 1);
  CHECK(note_code(opened.notes[0]) == "CK050");
  CHECK(has(opened.notes[0].message, "optimizer.pt"));
  CHECK(summarize(opened).beside.size() == 3);
  CHECK(open_checkpoint(fs, "/run/weights.safetensors").beside.empty());
}

TEST_CASE(
    "a folder with an optimizer beside its weights is converted only in a part that is named") {
  MemoryFileSystem fs;
  put_trainer_folder(fs, "/run");
  const Status refused = status_of(fs, convert_options("/run", "/out", 1, "torch-dcp"));
  CHECK(refused.code == Code::kUnsupported);
  CHECK(has(refused.message, "optimizer.pt"));
  CHECK(has(refused.hint, "--only model"));
  CHECK_FALSE(fs.stat("/out"));

  ConvertOptions model = convert_options("/run", "/model", 1, "torch-dcp");
  model.selection.only = Part::kModel;
  const ConvertReport report = convert(fs, model);
  std::vector<std::string> behind;
  for (const LeftBehind& file : report.balance.left_behind) behind.push_back(file.path);
  CHECK(behind == std::vector<std::string>{"optimizer.pt", "scheduler.pt", "trainer_state.json"});
  const auto seal = read_seal(*fs.open_directory("/model"), "");
  REQUIRE((seal && seal->balance));
  CHECK(seal->balance->left_behind.size() == 3);

  CHECK(convert(fs, convert_options("/run", "/hf", std::nullopt, "hf")).published);
  CHECK(
      convert(fs, convert_options("/run/weights.safetensors", "/named", 1, "torch-dcp")).published);
  CHECK(convert(fs, convert_options("/run/optimizer.pt", "/optim", 1, "torch-dcp")).published);
}

TEST_CASE("a link that leads nowhere, or a folder, in the place of a part is named as lost") {
  for (const bool is_link : {true, false}) {
    for (const char* lost : {"optimizer.pt", "scheduler.pt"}) {
      INFO(lost << (is_link ? ", a link" : ", a folder"));
      MemoryFileSystem fs;
      put_trainer_folder(fs, "/run");
      const std::string path = std::string("/run/") + lost;
      fs.remove_file(path);
      is_link ? fs.add_symlink(path, "/elsewhere/gone") : fs.make_directories(path);
      const bool is_sidecar = std::string_view(lost) == "scheduler.pt";
      const OpenedCheckpoint opened = open_checkpoint(fs, "/run");
      const auto kind = is_sidecar ? Beside::Kind::kSidecar : Beside::Kind::kOptimizer;
      REQUIRE(std::ranges::count(names(opened.beside, kind), lost) == 1);
      CHECK(std::ranges::any_of(opened.beside, [&](const Beside& beside) {
        return beside.path == lost && has(beside.what, is_link ? "leads nowhere" : "no file");
      }));
      if (is_link) CHECK_FALSE(verify_checkpoint(fs, "/run", {}).ok);
      // The optimizer would stay behind, a whole one or a lost one.
      CHECK(status_of(fs, convert_options("/run", "/out", std::nullopt, "torch-dcp")).code ==
            Code::kUnsupported);
    }
  }
}

TEST_CASE("an optimizer that is found alone is not the whole where its model is a lost link") {
  MemoryFileSystem fs;
  load_sample(fs, "torchsave/fsdp1_full");
  fs.remove_file("/source/model.pt");
  fs.add_symlink("/source/model.pt", "/elsewhere/gone");
  const OpenedCheckpoint opened = open_checkpoint(fs, "/source");
  CHECK(names(opened.beside, Beside::Kind::kWeights) == std::vector<std::string>{"model.pt"});
  CHECK_FALSE(verify_checkpoint(fs, "/source", {}).ok);
  CHECK(status_of(fs, convert_options("/source", "/out", std::nullopt, "torch-dcp")).code ==
        Code::kUnsupported);
}

TEST_CASE("sidecars alone are no reason to refuse") {
  MemoryFileSystem fs;
  put_trainer_folder(fs, "/run");
  fs.remove_file("/run/optimizer.pt");
  const ConvertReport report = convert(fs, convert_options("/run", "/out", 1, "torch-dcp"));
  CHECK(report.balance.left_behind.size() == 2);
  const auto notes = by_code(report.notes);
  CHECK(notes.at("CK052").size() == 2);
}

TEST_CASE("verify looks into what lies beside, and its damage is an error") {
  MemoryFileSystem fs;
  put_trainer_folder(fs, "/run");
  const VerifyReport whole = verify(fs, "/run");
  CHECK(whole.ok);
  REQUIRE(whole.beside.size() == 3);
  CHECK(whole.beside[0].opened);
  CHECK(whole.beside[0].tensors == 2);
  CHECK(whole.other_files == 4);  // of no tensors; the optimizer and the scheduler were looked into
  SECTION("cut short") {
    edit(fs, "/run/optimizer.pt", [](Bytes& bytes) { bytes.resize(bytes.size() / 2); });
    const VerifyReport cut = verify(fs, "/run");
    CHECK_FALSE(cut.ok);
    CHECK(find(cut, "CK051", "optimizer.pt") != nullptr);
    CHECK_FALSE(cut.beside[0].ok);
  }
  SECTION("a turned bit in a tensor") {
    Bytes bytes = fs.read_file("/run/optimizer.pt");
    const float two = 2;
    Bytes value(sizeof two);
    std::memcpy(value.data(), &two, sizeof two);
    const auto at = std::search(bytes.begin(), bytes.end(), value.begin(), value.end());
    REQUIRE(at != bytes.end());
    *at ^= std::byte{1};
    fs.write_file("/run/optimizer.pt", bytes);
    const VerifyReport turned = verify(fs, "/run");
    CHECK_FALSE(turned.ok);
    CHECK(find(turned, "CK041", "optimizer.pt") != nullptr);
  }
  SECTION("a scheduler that is cut") {
    edit(fs, "/run/scheduler.pt", cut_one);
    CHECK_FALSE(verify(fs, "/run").ok);
  }
}

TEST_CASE("a framework's own pointer goes before an adapter that lies beside it") {
  MemoryFileSystem fs;
  load_sample(fs, "deepspeed/zero2_w2");
  fs.write_file("/weights.pt", archive_of({{"lora_A.weight", {2, 2}}}));
  convert(fs, convert_options("/weights.pt", "/made.safetensors", std::nullopt));
  fs.write_file("/source/adapter_model.safetensors", fs.read_file("/made.safetensors"));
  const OpenedCheckpoint opened = open_checkpoint(fs, "/source");
  CHECK(opened.path == "/source/global_step2");
  CHECK(opened.is_named);
  CHECK(names(opened.beside, Beside::Kind::kSidecar) ==
        std::vector<std::string>{"adapter_model.safetensors"});
  const ConvertReport report = convert(fs, convert_options("/source", "/out", 3));
  CHECK(report.to == "deepspeed-zero");
  CHECK(report.balance.left_behind.at(0).path == "adapter_model.safetensors");

  SECTION("and from the run's folder") {
    MemoryFileSystem run;
    for (const auto& [name, content] : fs.contents("/source"))
      if (!name.ends_with('/')) run.write_file("/run/checkpoint-2/" + name, as_bytes(content));
    CHECK(open_checkpoint(run, "/run").path == "/run/checkpoint-2/global_step2");
  }
  SECTION("without the pointer nothing says which is meant") {
    fs.remove_file("/source/latest");
    const Status refused = status_of(fs, convert_options("/source", "/again", 1, "torch-dcp"));
    CHECK(refused.code == Code::kUnsupported);
    CHECK(has(refused.message, "global_step2"));
  }
}

TEST_CASE("an adapter hides neither FSDP's folders nor the model beside it") {
  MemoryFileSystem fs;
  fs.write_file("/weights.pt", archive_of({{"lora_A.weight", {2, 2}}}));
  convert(fs, convert_options("/weights.pt", "/made.safetensors", std::nullopt));
  SECTION("folders of accelerate") {
    load_sample(fs, "dcp/fsdp2_w2");
    copy_to(fs, "/run/pytorch_model_fsdp_0");
    copy_to(fs, "/run/optimizer_0");
    fs.write_file("/run/adapter_model.safetensors", fs.read_file("/made.safetensors"));
    const OpenedCheckpoint opened = open_checkpoint(fs, "/run");
    CHECK(names(opened.beside, Beside::Kind::kOptimizer) ==
          std::vector<std::string>{"optimizer_0"});
    CHECK(names(opened.beside, Beside::Kind::kWeights) ==
          std::vector<std::string>{"pytorch_model_fsdp_0"});
    CHECK(status_of(fs, convert_options("/run", "/out", 1, "torch-dcp")).code ==
          Code::kUnsupported);
    edit(fs, "/run/optimizer_0/__0_0.distcp", [](Bytes& bytes) { bytes.resize(100); });
    CHECK_FALSE(verify(fs, "/run").ok);
  }
  SECTION("a model of another file format") {
    fs.write_file("/run/adapter_model.safetensors", fs.read_file("/made.safetensors"));
    fs.write_file("/run/pytorch_model.bin", archive_of({{"a.weight", {4, 2}}}));
    CHECK(status_of(fs, convert_options("/run", "/out", 1, "torch-dcp")).code ==
          Code::kUnsupported);
  }
  SECTION("the same weights in another file format are only named") {
    fs.write_file("/run/model.safetensors", fs.read_file("/made.safetensors"));
    fs.write_file("/run/pytorch_model.bin", archive_of({{"a.weight", {4, 2}}}));
    const ConvertReport report = convert(fs, convert_options("/run", "/out", 1, "torch-dcp"));
    CHECK(report.balance.left_behind.at(0).path == "pytorch_model.bin");
  }
}

TEST_CASE("checkpoints of other steps below a folder of weights are no part of its state") {
  MemoryFileSystem fs;
  put_trainer_folder(fs, "/run/checkpoint-4");
  fs.write_file("/run/model.safetensors", fs.read_file("/made.safetensors"));
  const OpenedCheckpoint opened = open_checkpoint(fs, "/run");
  CHECK(opened.beside.empty());
  CHECK(convert(fs, convert_options("/run", "/out", 1, "torch-dcp")).published);
}

TEST_CASE("Lightning's meta.pt goes along with a reshard, and is said to stay behind elsewhere") {
  MemoryFileSystem fs;
  load_sample(fs, "dcp/fsdp2_w2");
  fs.write_file("/source/meta.pt", RankArchive().render(dict({{"epoch", number(1)}})));
  CHECK(summarize(open_checkpoint(fs, "/source")).beside.size() == 1);
  const ConvertReport report = convert(fs, convert_options("/source", "/out", 3));
  CHECK(report.balance.left_behind.empty());
  CHECK(report.assets == std::vector<std::string>{"meta.pt"});
  CHECK(fs.read_file("/out/meta.pt") == fs.read_file("/source/meta.pt"));
  CHECK(verify(fs, "/out").ok);
  const auto seal = read_seal(*fs.open_directory("/out"), "");
  REQUIRE(seal);
  CHECK(seal->find("meta.pt") != nullptr);

  SECTION("to another format it does not") {
    const ConvertReport other =
        convert(fs, convert_options("/source", "/one.pt", std::nullopt, "torch-save"));
    REQUIRE(other.balance.left_behind.size() == 1);
    CHECK(other.balance.left_behind[0].path == "meta.pt");
    const auto note = std::ranges::find(other.notes, "CK052", note_code<Note>);
    REQUIRE(note != other.notes.end());
    CHECK(note->severity == Severity::kWarning);
  }
  SECTION("one that would run code is left out") {
    fs.write_file("/source/meta.pt", as_bytes(torch_zip_of("cos\nsystem\n(S'true'\ntR.")));
    const ConvertReport left = convert(fs, convert_options("/source", "/again", 3));
    REQUIRE(left.balance.left_behind.size() == 1);
    CHECK_FALSE(fs.stat("/again/meta.pt"));
    const auto note = std::ranges::find(left.notes, "CK052", note_code<Note>);
    REQUIRE(note != left.notes.end());
    CHECK(has(note->message, "run code"));
  }
  SECTION("a part that was asked for by name is that part alone") {
    ConvertOptions model = convert_options("/source", "/model", 3);
    model.selection.only = Part::kModel;
    CHECK(convert(fs, model).balance.left_behind.size() == 1);
  }
}

TEST_CASE("Meta's consolidated files are parts of one model") {
  MemoryFileSystem fs;
  fs.write_file("/llama/consolidated.00.pth", archive_of({{"wq.weight", {4, 2}}}));
  SECTION("one alone is whole") {
    CHECK(convert(fs, convert_options("/llama", "/out", 1, "torch-dcp")).published);
  }
  SECTION("several are joined, and refused one by one") {
    fs.write_file("/llama/consolidated.01.pth", archive_of({{"wq.weight", {4, 2}}}));
    const OpenedCheckpoint whole = open_checkpoint(fs, "/llama");
    REQUIRE(whole.manifest.tensors.size() == 1);
    CHECK(whole.manifest.tensors[0].spec.shape == Shape{8, 2});
    CHECK_FALSE(list_run(fs, "/llama"));
    const Status part =
        status_of(fs, convert_options("/llama/consolidated.00.pth", "/out", std::nullopt, "hf"));
    CHECK(part.code == Code::kUnsupported);
    CHECK(has(part.message, "consolidated.01.pth"));
  }
}

TEST_CASE("OLMo's model.pt, optim.pt and train.pt are one state") {
  MemoryFileSystem fs;
  fs.write_file("/run/model.pt", archive_of({{"a.weight", {4, 2}}}));
  fs.write_file("/run/optim.pt", archive_of({{"exp_avg", {4, 2}}}));
  fs.write_file("/run/train.pt", archive_of({{"rng.cpu", {4}}}));
  const OpenedCheckpoint whole = open_checkpoint(fs, "/run");
  CHECK(whole.manifest.files.size() == 3);
  CHECK(whole.manifest.find("train.rng.cpu") != nullptr);
  CHECK(whole.manifest.find("model.a.weight")->kind == TensorKind::kParam);
}

TEST_CASE("files that are parts by their names are no checkpoints, and said to be parts") {
  for (const std::string name :
       {"last-shard#.pt", "reshard-model_part-#.pt", "hf_model_000#_2.pt"}) {
    CAPTURE(name);
    MemoryFileSystem fs;
    const auto part = [&](const char* number) {
      std::string file = name;
      return "/run/" + file.replace(file.find('#'), 1, number);
    };
    fs.write_file(part("1"), archive_of({{"a.weight", {4, 2}}}));
    CHECK(open_checkpoint(fs, part("1")).notes.empty());  // alone
    fs.write_file(part("2"), archive_of({{"b.weight", {4, 2}}}));
    const Status whole = refusal(fs, "/run");
    CHECK(whole.code == Code::kUnsupported);
    CHECK(has(whole.message, "parts of one model"));
    CHECK_THROWS_AS(list_run(fs, "/run"), Error);
    const auto notes = open_checkpoint(fs, part("1")).notes;
    REQUIRE(notes.size() == 1);
    CHECK(has(notes[0].message, "one of 2 parts"));
    const auto report = convert(fs, convert_options(part("1"), "/out", std::nullopt, "hf"));
    CHECK(report.balance.left_behind.size() == 1);
    fs.write_file("/run/other.pt", archive_of({{"b.weight", {4, 2}}}));
    REQUIRE(list_run(fs, "/run"));
    CHECK(list_run(fs, "/run")->rows.size() == 3);
  }
}

TEST_CASE("rank files of several saves in one folder are several checkpoints") {
  MemoryFileSystem fs;
  const Bytes file = archive_of({{"a.weight", {4, 2}}});
  for (const char* name : {"ep1-ba3-rank0.pt", "ep2-ba6-rank0.pt"})
    fs.write_file(std::string("/run/") + name, file);
  const auto listing = list_run(fs, "/run");
  REQUIRE(listing);
  CHECK(listing->rows.size() == 2);
  CHECK(refusal(fs, "/run").code == Code::kNotFound);
  CHECK(open_checkpoint(fs, "/run/ep2-ba6-rank0.pt").notes.empty());
  SECTION("of several ranks nobody can tell them apart") {
    for (const char* name : {"ep1-ba3-rank1.pt", "ep2-ba6-rank1.pt"})
      fs.write_file(std::string("/run/") + name, file);
    const Status status = refusal(fs, "/run");
    CHECK(status.code == Code::kUnsupported);
    CHECK(has(status.message, "ep1_ba3"));
  }
  SECTION("parts of one save are one") {
    MemoryFileSystem verl;
    for (const char* name : {"model_world_size_1_rank_0.pt", "optim_world_size_1_rank_0.pt"})
      verl.write_file(std::string("/run/") + name, file);
    CHECK(open_checkpoint(verl, "/run").driver->id() == "torch-rank-files");
  }
}

TEST_CASE("two results of one file each in a folder are two checkpoints") {
  MemoryFileSystem fs;
  fs.write_file("/weights.pt", archive_of({{"a.weight", {4, 2}}}));
  for (const char* to : {"/two/a.safetensors", "/two/b.safetensors"})
    convert(fs, convert_options("/weights.pt", to, std::nullopt));
  const auto listing = list_run(fs, "/two");
  REQUIRE(listing);
  CHECK(listing->rows.size() == 2);
  CHECK(has(refusal(fs, "/two").message, "b.safetensors"));
  CHECK(open_checkpoint(fs, "/two/a.safetensors").driver->id() == "safetensors");
  const std::vector<std::pair<std::string, std::string>> pairs = {
      {"a.safetensors", "b.pt"}, {"a.safetensors", "b"}, {"a.h5", "b.pt"}, {"a.h5", "b"}};
  for (const auto& [one, other] : pairs) {
    CAPTURE(one, other);
    const std::string folder = "/mixed-" + one + "-" + other + "/";
    convert(fs, convert_options("/weights.pt", folder + one, std::nullopt));
    convert(fs, convert_options("/weights.pt", folder + other, std::nullopt,
                                other == "b" ? "torch-dcp" : ""));
    const auto mixed = list_run(fs, folder);
    REQUIRE(mixed);
    CHECK(mixed->rows.size() == 2);
  }
}

TEST_CASE("files that hold a tensor of one name are a checkpoint each, unless they are numbered") {
  MemoryFileSystem fs;
  const auto write = [&](const char* path, const char* tensor) {
    const std::string json =
        fmt::format(R"({{"{}":{{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}}})", tensor);
    const std::string file = le<std::uint64_t>(json.size()) + json + std::string(8, '\0');
    fs.write_file(path, as_bytes(file));
  };
  write("/variants/model.safetensors", "a.weight");
  write("/variants/model.fp16.safetensors", "a.weight");
  const auto listing = list_run(fs, "/variants");
  REQUIRE(listing);
  CHECK(listing->rows.size() == 2);
  CHECK(has(refusal(fs, "/variants").message, "model.fp16.safetensors"));
  CHECK(open_checkpoint(fs, "/variants/model.fp16.safetensors").driver->id() == "safetensors");

  write("/halves/encoder.safetensors", "a.weight");
  write("/halves/decoder.safetensors", "b.weight");
  CHECK(open_checkpoint(fs, "/halves").manifest.tensors.size() == 2);

  // An adapter, an optimizer or a copy in another library's form is no part of the model beside it.
  for (const std::string other :
       {"adapter_model.safetensors", "consolidated.safetensors", "optimizer.safetensors"}) {
    CAPTURE(other);
    const std::string folder = "/beside-" + other + "/";
    write((folder + "model.safetensors").c_str(), "a.weight");
    write((folder + other).c_str(), "b.weight");
    CHECK(has(refusal(fs, folder).message, other));
  }

  write("/shards/model-00001-of-00002.safetensors", "a.weight");
  write("/shards/model-00002-of-00002.safetensors", "a.weight");
  CHECK(refusal(fs, "/shards").code == Code::kCorrupt);
}

TEST_CASE("FairScale's files whose numbers are not all ranks' are refused by those numbers") {
  MemoryFileSystem fs;
  load_sample(fs, "fairscale/single_flat_w2");
  fs.rename("/source/rank_0.pt", "/source/rank_15.pt");
  fs.rename("/source/rank_1.pt", "/source/rank_16.pt");
  const Status refused = refusal(fs, "/source");
  CHECK(refused.code == Code::kUnsupported);
  CHECK(has(refused.message, "rank_15.pt and rank_16.pt"));
  CHECK(has(refused.message, "numbers 15 to 16"));
}

TEST_CASE("one file beside an index of others is what Hugging Face's loaders take") {
  MemoryFileSystem fs;
  fs.write_file("/weights.pt", archive_of({{"a.weight", {4, 2}}}));
  convert(fs, convert_options("/weights.pt", "/model", std::nullopt, "hf"));
  fs.write_file("/weights.pt", archive_of({{"b.weight", {3, 2}}}));
  convert(fs, convert_options("/weights.pt", "/other.safetensors", std::nullopt));
  fs.write_file("/model/model.safetensors", fs.read_file("/other.safetensors"));
  const OpenedCheckpoint single = open_checkpoint(fs, "/model");
  REQUIRE(single.manifest.tensors.size() == 1);
  CHECK(single.manifest.tensors[0].name == "b.weight");
  const auto note = std::ranges::find(single.manifest.notes, "CK018", note_code<Note>);
  REQUIRE(note != single.manifest.notes.end());
  CHECK(note->severity == Severity::kWarning);
  const OpenedCheckpoint index = open_checkpoint(fs, "/model/model.safetensors.index.json");
  CHECK(index.manifest.tensors.at(0).name == "a.weight");
}

}  // namespace beside_test
