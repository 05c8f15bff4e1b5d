// What was not asked for cannot stop the work: damage of the optimizer leaves the model readable,
// and damage of the model does not pass for damage elsewhere.
#include "lib/ops/open/damage_elsewhere.h"

#include <tessera/base/error.h>
#include <tessera/ops/convert.h>
#include <tessera/ops/diff.h>
#include <tessera/ops/hash.h>
#include <tessera/ops/show.h>
#include <tessera/ops/stat.h>
#include <tessera/storage/memory_file_system.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/support/convert_case.h"
#include "tests/support/note_text.h"
#include "tests/support/open_case.h"
#include "tests/support/verify_case.h"

namespace damage_elsewhere_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

OpenOptions model_only() {
  OpenOptions options;
  options.selection.only = Part::kModel;
  return options;
}

HashReport hash_of(FileSystem& fs, const std::string& path, const OpenOptions& options) {
  OpenedCheckpoint opened = open_checkpoint(fs, path, options);
  return hash_checkpoint(opened);
}

bool says_damaged_elsewhere(const OpenedCheckpoint& opened) {
  return std::ranges::find(opened.notes, "ELSEWHERE", note_code<Note>) != opened.notes.end();
}

/// The checkpoint at `path` without what lies behind its last model (or optimizer) tensor: its one
/// data file is cut there. Returns the first tensor lost.
std::string cut_behind(MemoryFileSystem& fs, const std::string& path, bool model) {
  OpenedCheckpoint opened = open_checkpoint(fs, path);
  std::uint64_t end = 0;
  std::string lost;
  const Manifest& manifest = opened.manifest;
  for (const StoredTensor& tensor : manifest.tensors) {
    const Source& source = manifest.source(tensor, 0);
    if ((tensor.kind == TensorKind::kParam) == model)
      end = std::max(end, source.offset + source.length);
  }
  std::string file;
  for (const StoredTensor& tensor : manifest.tensors) {
    const Source& source = manifest.source(tensor, 0);
    if (source.offset < end || (tensor.kind == TensorKind::kParam) == model) continue;
    file = manifest.files[source.file].path;
    if (lost.empty()) lost = tensor.name;
  }
  if (lost.empty()) return lost;
  edit(fs, path + "/" + file, [&](Bytes& bytes) { bytes.resize(end); });
  fs.remove_file(path + "/tessera.manifest.json");
  return lost;
}

}  // namespace

TEST_CASE("an optimizer that is cut off leaves the model to every verb") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "dcp/fsdp2_w2");
  convert(fs, convert_options(source, "/whole", 1, "torch-dcp"));
  convert(fs, convert_options(source, "/cut", 1, "torch-dcp"));
  const HashReport whole = hash_of(fs, "/whole", model_only());
  const std::string lost = cut_behind(fs, "/cut", /*model=*/true);
  REQUIRE_FALSE(lost.empty());

  CHECK(refusal(fs, "/cut").code == Code::kCorrupt);
  const OpenedCheckpoint opened = open_checkpoint(fs, "/cut", model_only());
  CHECK(says_damaged_elsewhere(opened));
  CHECK(std::ranges::none_of(opened.manifest.notes,
                             [](const Note& note) { return note.severity == Severity::kError; }));
  CHECK(hash_of(fs, "/cut", model_only()).root == whole.root);

  OpenOptions globs;
  globs.selection.include = {"model.*"};
  OpenedCheckpoint included = open_checkpoint(fs, "/cut", globs);
  CHECK(stat_checkpoint(included).tensors.size() == whole.tensors.size());
  OpenOptions root;
  root.selection.root = "model";
  CHECK(hash_of(fs, "/cut", root).tensors.size() == whole.tensors.size());

  OpenOptions named;
  named.needed_name = whole.tensors[0].name;
  OpenedCheckpoint one = open_checkpoint(fs, "/cut", named);
  CHECK(show(one, named.needed_name, {}).what == ShowReport::What::kTensor);

  OpenedCheckpoint a = open_checkpoint(fs, "/whole", model_only());
  OpenedCheckpoint b = open_checkpoint(fs, "/cut", model_only());
  CHECK(diff_checkpoints(a, b).equal);
}

TEST_CASE("what is damaged itself is refused as before, whatever selects it") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "dcp/fsdp2_w2");
  convert(fs, convert_options(source, "/cut", 1, "torch-dcp"));
  const std::string lost = cut_behind(fs, "/cut", /*model=*/true);
  OpenOptions optim;
  optim.selection.only = Part::kOptim;
  CHECK(refusal(fs, "/cut", optim).code == Code::kCorrupt);
  OpenOptions named;
  named.needed_name = lost;
  CHECK(refusal(fs, "/cut", named).code == Code::kCorrupt);
  OpenOptions globs;
  globs.selection.include = {"model.*", lost};
  CHECK(refusal(fs, "/cut", globs).code == Code::kCorrupt);
}

TEST_CASE("a model is exported from beside a damaged optimizer, whole checkpoints are not") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "dcp/fsdp2_w2");
  convert(fs, convert_options(source, "/whole", 1, "torch-dcp"));
  convert(fs, convert_options(source, "/cut", 1, "torch-dcp"));
  REQUIRE_FALSE(cut_behind(fs, "/cut", /*model=*/true).empty());
  const ConvertReport expected = convert(fs, convert_options("/whole", "/a", std::nullopt, "hf"));
  const ConvertReport report = convert(fs, convert_options("/cut", "/b", std::nullopt, "hf"));
  CHECK(report.tensors == expected.tensors);
  CHECK(bytes_below(fs, "/a") == bytes_below(fs, "/b"));
  CHECK(std::ranges::find(report.notes, "ELSEWHERE", note_code<Note>) != report.notes.end());
  ConvertOptions only = convert_options("/cut", "/c", 2, "torch-dcp");
  only.selection.only = Part::kModel;
  CHECK(convert(fs, only).published);
  CHECK(status_of(fs, convert_options("/cut", "/d", std::nullopt, "torch-save")).code ==
        Code::kCorrupt);

  ConvertOptions salvaged = convert_options("/cut", "/e", std::nullopt, "hf");
  salvaged.salvage = true;
  CHECK(convert(fs, salvaged).lost.empty());  // nothing that it writes was lost
}

TEST_CASE("of a lost file that nothing lists, those that are called alike tell what it held") {
  const auto made = [](const std::string& weights, const std::string& lost) {
    Manifest manifest;
    manifest.format = "torch-rank-files";
    manifest.files = {{"model_rank_0.pt", 100, 1}, {"optim_rank_0.pt", 100, 1}, {lost, 0, 0}};
    const auto add = [&](const std::string& name, const std::string& path) {
      Source source;
      source.file = path == "optim_rank_0.pt" ? 1 : 0;
      source.length = 16;
      StoredTensor tensor{.name = name, .spec = {DType::kFloat32, {4}}, .quant = -1};
      tensor.first_chunk = manifest.chunks.size();
      tensor.chunk_count = 1;
      manifest.chunks.add(Chunk::whole_of({{0}, {4}}), source);
      manifest.state.entries.push_back(
          {name,
           {key_item(name)},
           Value::tensor(static_cast<std::uint32_t>(manifest.tensors.size()))});
      manifest.tensors.push_back(tensor);
    };
    add("model.w", weights);
    add("optim.state.w.exp_avg", "optim_rank_0.pt");
    manifest.notes.push_back({Finding::kMissingFile, Severity::kError, "it is missing", lost, ""});
    return manifest;
  };
  const auto touches = [&](const std::string& weights, const std::string& lost) {
    const Manifest whole = made(weights, lost);
    Manifest part = whole;
    keep_entries(part, {true, false});
    OpenOptions options;
    options.selection.include = {"model.*"};
    return DamageElsewhere(whole).touches(part, options);
  };
  CHECK_FALSE(touches("model_rank_0.pt", "optim_rank_1.pt"));
  CHECK(touches("optim_rank_0.pt", "optim_rank_1.pt"));
  CHECK(touches("model_rank_0.pt", "model_rank_1.pt"));
  CHECK(touches("model_rank_0.pt", "other.pt"));
}

TEST_CASE("weights that an optimizer's files hold are lost with them") {
  for (const char* sample : {"deepspeed/zero2_w2", "deepspeed/zero3_w2"}) {
    INFO(sample);
    MemoryFileSystem fs;
    const std::string source = load_sample(fs, sample);
    fs.remove_file(open_checkpoint(fs, source).path + "/zero_pp_rank_1_mp_rank_00_optim_states.pt");
    CHECK(refusal(fs, source, model_only()).code == Code::kCorrupt);
  }
}

TEST_CASE("a lost shard stops those whose tensors its index places there") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "safetensors/hf_sharded");
  OpenedCheckpoint opened = open_checkpoint(fs, source);
  const Manifest& manifest = opened.manifest;
  const std::string kept = manifest.tensors.front().name;
  const std::uint32_t there = manifest.source(manifest.tensors.front(), 0).file;
  std::string lost, gone;
  for (const StoredTensor& tensor : manifest.tensors)
    if (manifest.source(tensor, 0).file != there) {
      lost = tensor.name;
      gone = manifest.files[manifest.source(tensor, 0).file].path;
    }
  REQUIRE_FALSE(lost.empty());
  fs.remove_file("/source/" + gone);
  OpenOptions named;
  named.selection.include = {kept};
  CHECK(hash_of(fs, source, named).tensors.size() == 1);
  named.selection.include = {lost};
  CHECK(refusal(fs, source, named).code == Code::kCorrupt);
  named.selection.include = {kept, lost};
  CHECK(refusal(fs, source, named).code == Code::kCorrupt);
}

TEST_CASE("a turned bit of a sealed optimizer leaves the model") {
  for (const char* format : {"safetensors", "torch-dcp"}) {
    INFO(format);
    MemoryFileSystem fs;
    const std::string source = load_sample(fs, "dcp/fsdp2_w2");
    convert(fs, convert_options(source, "/out", std::nullopt, format));
    const HashReport whole = hash_of(fs, "/out", model_only());
    std::string optim;
    for (const StoredTensor& tensor : open_checkpoint(fs, "/out").manifest.tensors)
      if (tensor.kind == TensorKind::kOptim && tensor.spec.shape.rank() == 2) optim = tensor.name;
    const auto [file, at] = place_of(fs, "/out", optim);
    edit(fs, "/out/" + file, flip(at));
    CHECK(hash_of(fs, "/out", model_only()).root == whole.root);
    CHECK_THROWS_AS(hash_of(fs, "/out", {}), Error);
  }
}

TEST_CASE("a turned bit of a sealed model is found whatever else is left out") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "dcp/fsdp2_w2");
  convert(fs, convert_options(source, "/out", std::nullopt, "safetensors"));
  const std::string weight = hash_of(fs, "/out", model_only()).tensors[0].name;
  const auto [file, at] = place_of(fs, "/out", weight);
  edit(fs, "/out/" + file, flip(at));
  CHECK_THROWS_AS(hash_of(fs, "/out", model_only()), Error);
}

TEST_CASE("locating a tensor that is not there is an error of the caller") {
  MemoryFileSystem fs;
  OpenedCheckpoint opened = open_checkpoint(fs, load_sample(fs, "dcp/fsdp2_w2"));
  const std::uint32_t foreign[] = {999};
  try {
    opened.locate(foreign, {});
    FAIL("located number 999");
  } catch (const Error& error) {
    CHECK(error.code() == Code::kInvalidArgument);
  }
}

}  // namespace damage_elsewhere_test
