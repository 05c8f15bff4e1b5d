// From what the user typed to a checkpoint: the PATH rules, in their order.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/ops/hash.h>
#include <tessera/ops/ls.h>
#include <tessera/storage/memory_file_system.h>
#include <tessera/storage/observed_file_system.h>

#include <array>
#include <catch2/catch.hpp>

#include "tests/support/convert_case.h"
#include "tests/support/open_case.h"

namespace open_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

/// /run/step_10 and /run/step_20, both whole.
void make_run(MemoryFileSystem& fs) {
  load_sample(fs, "dcp/fsdp2_w2_model_only");
  copy_to(fs, "/run/step_10");
  copy_to(fs, "/run/step_20");
}

}  // namespace

TEST_CASE("a folder that is a checkpoint opens as itself") {
  MemoryFileSystem fs;
  load_sample(fs, "dcp/fsdp2_w2");
  const OpenedCheckpoint opened = open_checkpoint(fs, "/source");
  CHECK(opened.path == "/source");
  CHECK(opened.file.empty());
  CHECK(opened.manifest.format == "torch-dcp");
  CHECK(opened.notes.empty());
}

TEST_CASE("the pointer named, found in the folder, and Megatron's count all lead to the folder") {
  MemoryFileSystem fs;
  make_run(fs);
  put(fs, "/run/latest", "step_20\n");
  CHECK(open_checkpoint(fs, "/run").path == "/run/step_20");
  CHECK(open_checkpoint(fs, "/run/latest").path == "/run/step_20");
  CHECK(open_checkpoint(fs, "/run").notes.at(0).message == "using /run/step_20, named by latest");
  MemoryFileSystem megatron;
  load_sample(megatron, "dcp/fsdp2_w2_model_only");
  copy_to(megatron, "/run/iter_0000020");
  copy_to(megatron, "/run/iter_0000010");
  put(megatron, "/run/latest_checkpointed_iteration.txt", "20");
  CHECK(open_checkpoint(megatron, "/run").path == "/run/iter_0000020");
}

TEST_CASE("a link called latest is followed when it stays inside") {
  MemoryFileSystem fs;
  make_run(fs);
  fs.add_symlink("/run/latest", "step_10");
  CHECK(open_checkpoint(fs, "/run").path == "/run/step_10");
  MemoryFileSystem other;
  make_run(other);
  copy_to(other, "/elsewhere");
  other.add_symlink("/run/latest", "/elsewhere");
  CHECK(has(refusal(other, "/run").message, "2 checkpoints"));
}

TEST_CASE("a pointer to nothing is named when it was asked for") {
  MemoryFileSystem fs;
  make_run(fs);
  put(fs, "/run/latest", "step_30");
  CHECK(refusal(fs, "/run/latest").code == Code::kNotFound);
  CHECK(has(refusal(fs, "/run/latest").message, "step_30"));
  const auto stale = stale_pointer(fs, "/run");
  REQUIRE(stale);
  CHECK(stale->code == Finding::kBadPointer);
  CHECK(stale->file == "latest");
  put(fs, "/run/latest", "step_10");
  CHECK_FALSE(stale_pointer(fs, "/run"));
}

TEST_CASE("what other libraries wrote is called by its name") {
  const auto what = [](const std::string& file, std::string_view content, const char* asked) {
    MemoryFileSystem fs;
    put(fs, "/m/" + file, content);
    const Status status = refusal(fs, asked);
    CHECK(status.code == Code::kUnsupported);
    return status.message;
  };
  CHECK(has(what("flax_model.msgpack", "\x81\xa6params", "/m/flax_model.msgpack"), "Flax"));
  CHECK(has(what("flax_model.msgpack", "\x81\xa6params", "/m"), "Flax"));
  CHECK(has(what("a.onnx", "\x08\x07", "/m/a.onnx"), "ONNX"));
  CHECK(has(what("saved_model.pb", "\x08\x01", "/m"), "SavedModel of TensorFlow"));
  CHECK(has(what("ckpt-1.index", "x", "/m/ckpt-1.index"), "checkpoint of TensorFlow"));
  CHECK(has(what("ckpt-1.data-00000-of-00001", "x", "/m/ckpt-1.data-00000-of-00001"),
            "checkpoint of TensorFlow"));
  CHECK(has(what("manifest.ocdbt", "x", "/m"), "Orbax"));
  CHECK(has(what("a.pkl", "\x80\x04}.", "/m/a.pkl"), "a pickle that torch.save did not write"));
  CHECK(has(what("a.pt", "\x80\x04}.", "/m/a.pt"), "a pickle that torch.save did not write"));
}

TEST_CASE("a folder without a checkpoint says what it does hold, and how deep it was searched") {
  MemoryFileSystem fs;
  std::string tar(1024, '\0');
  tar.replace(0, 17, "model_config.yaml");
  tar.replace(257, 5, "ustar");
  fs.write_file("/nemo/run.nemo", as_bytes(tar));
  CHECK(has(refusal(fs, "/nemo").message, "run.nemo is a tar archive"));
  CHECK(refusal(fs, "/nemo").code == Code::kUnsupported);
  fs.write_file("/deep/a/b/c/d/notes.txt", as_bytes(std::string("text")));
  CHECK(has(refusal(fs, "/deep").message, "3 levels down"));
}

TEST_CASE("a pointer that names nothing is told of, whatever is opened in its place") {
  const std::string garbage = "\x01\x02 not a number " + std::string(8000, 'x');
  for (const std::string& text :
       {std::string("77"), std::string("garbage"), std::string(), garbage}) {
    INFO(text.substr(0, 20));
    MemoryFileSystem fs;
    load_sample(fs, "dcp/fsdp2_w2_model_only");
    copy_to(fs, "/run/iter_0000020");
    put(fs, "/run/latest_checkpointed_iteration.txt", text);
    const OpenedCheckpoint opened = open_checkpoint(fs, "/run");
    CHECK(opened.path == "/run/iter_0000020");
    REQUIRE(opened.notes.size() == 2);
    CHECK(opened.notes[0].severity == Severity::kWarning);
    CHECK(has(opened.notes[0].message, "the pointer latest_checkpointed_iteration.txt names \""));
    CHECK(opened.notes[0].message.size() < 250);
    CHECK(refusal(fs, "/run/latest_checkpointed_iteration.txt").code == Code::kNotFound);
    CHECK(stale_pointer(fs, "/run"));
  }
}

TEST_CASE("a pointer never leads out of its folder") {
  MemoryFileSystem fs;
  make_run(fs);
  copy_to(fs, "/elsewhere");
  for (const char* target : {"../elsewhere", "/elsewhere", ".", "..", "", "step_10/x"}) {
    INFO(target);
    put(fs, "/run/latest", target);
    CHECK(refusal(fs, "/run/latest").code == Code::kNotFound);
  }
}

TEST_CASE("the single checkpoint below is taken, several are listed") {
  MemoryFileSystem fs;
  load_sample(fs, "dcp/fsdp2_w2_model_only");
  copy_to(fs, "/deep/run/step_10");
  const OpenedCheckpoint one = open_checkpoint(fs, "/deep");
  CHECK(one.path == "/deep/run/step_10");
  CHECK(has(one.notes.at(0).message, "the one checkpoint below"));
  copy_to(fs, "/deep/run/step_9");
  const Status several = refusal(fs, "/deep");
  CHECK(several.code == Code::kNotFound);
  CHECK(has(several.message, "run/step_9, run/step_10"));
}

TEST_CASE("a folder with one torch.save file is that file") {
  MemoryFileSystem fs;
  const std::string file = load_sample(fs, "torchsave/plain_zip");
  const OpenedCheckpoint opened = open_checkpoint(fs, "/source");
  CHECK(opened.path == file);
  CHECK(opened.manifest.format == "torch-save");
}

namespace {

/// Nobody may list a folder called lost+found.
class GuardedFileSystem : public ObservedFileSystem {
 public:
  using ObservedFileSystem::ObservedFileSystem;

 protected:
  void before(const IoEvent& event) const override {
    if ((event.op == IoOp::kList || event.op == IoOp::kOpenDirectory) &&
        event.path.find("lost+found") != std::string::npos)
      fail(Code::kIo, "cannot list " + event.path + ": Permission denied");
  }
};

}  // namespace

TEST_CASE("a folder that may not be read is left out with a note") {
  MemoryFileSystem fs;
  load_sample(fs, "dcp/fsdp2_w2_model_only");
  copy_to(fs, "/disk/run");
  fs.make_directories("/disk/lost+found");
  GuardedFileSystem guarded(fs);
  const OpenedCheckpoint opened = open_checkpoint(guarded, "/disk");
  CHECK(opened.path == "/disk/run");
  REQUIRE(opened.notes.size() == 2);
  CHECK(has(opened.notes[0].message, "lost+found was left out"));
}

TEST_CASE("hidden names are never checkpoints") {
  MemoryFileSystem fs;
  load_sample(fs, "dcp/fsdp2_w2_model_only");
  copy_to(fs, "/run/.step_20.tmp-0123");
  CHECK(refusal(fs, "/run").code == Code::kUnsupported);
  copy_to(fs, "/run/step_10");
  CHECK(open_checkpoint(fs, "/run").path == "/run/step_10");
}

TEST_CASE("a damaged checkpoint is still recognised: without .metadata it is corrupt") {
  MemoryFileSystem fs;
  load_sample(fs, "dcp/fsdp2_w2");
  fs.remove_file("/source/.metadata");
  const Status status = refusal(fs, "/source");
  CHECK(status.code == Code::kCorrupt);
  CHECK(has(status.message, ".metadata"));
}

TEST_CASE("what does not exist is named with its nearest neighbour") {
  MemoryFileSystem fs;
  make_run(fs);
  const Status status = refusal(fs, "/run/step_11");
  CHECK(status.code == Code::kNotFound);
  CHECK(has(status.hint, "/run/step_1"));
  CHECK(refusal(fs, "/nowhere/at/all").code == Code::kNotFound);
}

TEST_CASE("a URL is refused with the command that copies it") {
  MemoryFileSystem fs;
  for (const auto& [url, tool] :
       std::vector<std::pair<std::string, std::string>>{{"s3://bucket/run", "aws s3 cp"},
                                                        {"gs://bucket/run", "gcloud storage cp"},
                                                        {"hf://org/model", "hf download org/model"},
                                                        {"https://host/model.pt", "curl"}}) {
    const Status status = refusal(fs, url);
    CHECK(status.code == Code::kUnsupported);
    CHECK(has(status.hint, tool));
  }
}

TEST_CASE("a named --from decides, and is held to what is there") {
  MemoryFileSystem fs;
  load_sample(fs, "dcp/fsdp2_w2");
  OpenOptions options;
  options.from = "torch-dcp";
  CHECK(open_checkpoint(fs, "/source", options).detected_by == "--from");
  options.from = "no-such-format";
  CHECK(refusal(fs, "/source", options).code == Code::kInvalidArgument);
  options.from = "safetensors";
  CHECK(refusal(fs, "/source", options).code == Code::kUnsupported);
}

TEST_CASE("a run lists its checkpoints with step, health and pointer") {
  MemoryFileSystem fs;
  make_run(fs);
  copy_to(fs, "/run/step_9");
  fs.remove_file("/run/step_20/__1_0.distcp");
  put(fs, "/run/latest", "step_10");
  const auto run = list_run(fs, "/run");
  REQUIRE(run);
  CHECK(run->pointer == "latest");
  CHECK_FALSE(run->pointer_stale);
  REQUIRE(run->rows.size() == 3);
  CHECK(run->rows[0].step == 9);
  CHECK(run->rows[1].step == 10);
  CHECK(run->rows[1].is_latest);
  CHECK(run->rows[1].complete);
  CHECK(run->rows[1].world_size == 2);
  CHECK(run->rows[1].bytes > 0);
  CHECK(run->rows[2].step == 20);
  CHECK_FALSE(run->rows[2].complete);
  CHECK(has(run->rows[2].problem, "missing"));
  CHECK_FALSE(list_run(fs, "/run/step_10"));
}

TEST_CASE("a selection chooses the checkpoints of a run that hold it, and counts their bytes") {
  MemoryFileSystem fs;
  make_run(fs);
  OpenOptions options;
  const auto all = list_run(fs, "/run", options);
  REQUIRE(all);
  options.selection.include = {"embed*"};
  const auto models = list_run(fs, "/run", options);
  REQUIRE(models);
  REQUIRE(models->rows.size() == all->rows.size());
  CHECK(models->rows[0].bytes < all->rows[0].bytes);
  CHECK(models->rows[0].bytes > 0);
  options.selection.include = {"zzz"};
  try {
    list_run(fs, "/run", options);
    FAIL("a selection that matches nothing was taken");
  } catch (const Error& error) {
    CHECK(error.code() == Code::kInvalidArgument);
    CHECK(has(error.status().message, "zzz"));
  }
}

TEST_CASE("where a pointer goes before weights, the rules say so") {
  MemoryFileSystem fs;
  load_sample(fs, "safetensors/hf_sharded");
  copy_to(fs, "/run");
  fs.remove_tree("/source");
  load_sample(fs, "dcp/fsdp2_w2");
  copy_to(fs, "/run/step_1");
  put(fs, "/run/latest", "step_1");
  const PathExplanation explained = explain_path(fs, "/run");
  CHECK(explained.found == "/run/step_1");
  CHECK(explained.steps[1].answer == PathStep::Answer::kNo);
  CHECK(has(explained.steps[1].reason, "pointer"));
  CHECK(explained.steps[2].answer == PathStep::Answer::kYes);
  CHECK(has(explained.steps[2].reason, "latest names step_1"));
}

TEST_CASE("files that are links are what they lead to, and links to nothing are named") {
  MemoryFileSystem fs;
  load_sample(fs, "safetensors/hf_sharded");
  int number = 0;
  for (const auto& [name, content] : fs.contents("/source")) {
    if (name.ends_with('/')) continue;
    const std::string blob = "blobs/" + std::to_string(++number);
    put(fs, "/hub/" + blob, content);
    fs.add_symlink("/hub/snapshots/abc/" + name, "../../" + blob);
    fs.add_symlink("/hub/snapshots/gone/" + name, "../../gone/" + blob);
  }
  OpenedCheckpoint whole = open_checkpoint(fs, "/source");
  for (const char* asked :
       {"/hub/snapshots/abc", "/hub/snapshots/abc/model.safetensors.index.json"}) {
    INFO(asked);
    OpenedCheckpoint opened = open_checkpoint(fs, asked);
    CHECK(opened.path == "/hub/snapshots/abc");
    CHECK(hash_checkpoint(opened).root == hash_checkpoint(whole).root);
  }
  CHECK(has(refusal(fs, "/hub/snapshots/gone").message, "symbolic link"));
  CHECK(open_checkpoint(fs, "/hub").path == "/hub/snapshots/abc");
}

TEST_CASE("a format that was asked for and is not there: what it looks like is said") {
  MemoryFileSystem fs;
  load_sample(fs, "dcp/fsdp2_w2_model_only");
  const OpenOptions from{.from = "safetensors", .selection = {}, .read = {}};
  const Status folder = refusal(fs, "/source", from);
  CHECK(folder.code == Code::kUnsupported);
  CHECK(has(folder.message, "\"/source\" is not safetensors; it looks like torch-dcp"));
  CHECK(has(folder.hint, "leave out --from"));
  MemoryFileSystem other;
  const std::string file = load_sample(other, "safetensors/no_metadata");
  const Status status = refusal(other, file, {.from = "torch-save", .selection = {}, .read = {}});
  CHECK(has(status.message, "is not torch-save; it looks like safetensors"));
}

TEST_CASE("a sealed folder whose only file is gone is damaged, and the file is named") {
  for (const char* format : {"safetensors", "torch-save"}) {
    INFO(format);
    MemoryFileSystem fs;
    const std::string source = load_sample(fs, "dcp/fsdp2_w2");
    convert(fs, convert_options(source, "/out", std::nullopt, format));
    std::string file;
    for (const FileInfo& entry : fs.open_directory("/out")->list())
      if (entry.name != "tessera.manifest.json") file = entry.name;
    fs.remove_file("/out/" + file);
    try {
      open_checkpoint(fs, "/out");
      FAIL("opened nothing");
    } catch (const Error& error) {
      CHECK(error.code() == Code::kCorrupt);
      CHECK(has(error.what(), "tessera.manifest.json does not match " + file));
    }
  }
}

TEST_CASE("a file that goes between metadata and data is damage, not a wrong path") {
  for (const char* sample : {"dcp/fsdp2_w2", "safetensors/hf_sharded"}) {
    INFO(sample);
    MemoryFileSystem fs;
    const std::string source = load_sample(fs, sample);
    OpenedCheckpoint early = open_checkpoint(fs, source);
    OpenedCheckpoint late = open_checkpoint(fs, source);
    late.locate_all({});
    for (const StoredFile& file : early.manifest.files)
      if (!file.path.starts_with('.') && !file.path.ends_with(".json"))
        fs.remove_file("/source/" + file.path);
    for (OpenedCheckpoint* opened : {&early, &late}) {
      try {
        hash_checkpoint(*opened);
        FAIL("read a file that is gone");
      } catch (const Error& error) {
        CHECK(error.code() == Code::kCorrupt);
        CHECK(has(error.what(), "a part of the checkpoint is missing"));
      }
    }
  }
}

}  // namespace open_test
