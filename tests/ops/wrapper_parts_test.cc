// Tensors of classes that are made of several (torchao's 8-bit and 4-bit state and its weights): rows
// of their own in every verb, cut and joined by blocks, written back as the same class.
#include <tessera/ops/convert.h>
#include <tessera/ops/diff.h>
#include <tessera/ops/hash.h>
#include <tessera/ops/ls.h>
#include <tessera/ops/show.h>
#include <tessera/ops/summary.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "lib/state/tensor_wrapper.h"
#include "tests/support/convert_case.h"
#include "tests/support/inspect_case.h"
#include "tests/support/sample_case.h"

namespace wrapper_parts_test {

using namespace tessera;
using namespace tessera::testing;
using Catch::Matchers::Contains;

namespace {

constexpr const char* kMoment = "optim.state.0.weight.exp_avg";

/// "dtype shape sha256" by name.
std::map<std::string, std::string> hashed(FileSystem& fs, const std::string& path) {
  OpenedCheckpoint opened = open_checkpoint(fs, path);
  std::map<std::string, std::string> out;
  for (const HashedTensor& tensor : hash_checkpoint(opened).tensors)
    out[tensor.name] = content_text(tensor);
  return out;
}

ConvertReport to(MemoryFileSystem& fs, const std::string& from, const std::string& out,
                 std::int64_t ranks, const std::string& format) {
  ConvertOptions options = convert_options(from, out, ranks, format);
  options.verify = true;
  return convert(fs, options);
}

std::string class_at(FileSystem& fs, const std::string& path, const std::string& name) {
  const OpenedCheckpoint opened = open_checkpoint(fs, path);
  const StateEntry* entry = opened.manifest.state.find(name);
  return entry == nullptr ? "" : wrapper_class(entry->value);
}

}  // namespace

TEST_CASE("the parts of a tensor are listed, shown and read by their names") {
  OpenedCheckpoint opened = open_sample("torchao/weights");
  std::vector<std::string> names;
  for (const LsTensor& tensor : list_tensors(opened).tensors) names.emplace_back(tensor.name);
  for (const char* name : {"int8.weight#qdata", "int8.weight#scale", "nf4.weight#quantized_data",
                           "float8.weight#scale", "int4.weight#zero_point"})
    CHECK(std::ranges::count(names, name) == 1);
  const ShowReport shown = show(opened, "int8.weight#scale", {});
  CHECK(shown.what == ShowReport::What::kTensor);
  CHECK(shown.tensor.shape == std::vector<std::int64_t>{16, 1});
  CHECK(opened.read<float>("int8.weight#scale").size() == 16);
  CHECK(opened.tensor("int8.weight#qdata").spec.dtype == DType::kInt8);
}

TEST_CASE("parts of the optimizer's state count as the optimizer's") {
  OpenedCheckpoint opened = open_sample("torchao/adamw8bit");
  for (const LsTensor& tensor : list_tensors(opened).tensors)
    if (tensor.name.view().find('#') != std::string_view::npos)
      CHECK(tensor.kind == TensorKind::kOptim);
}

TEST_CASE("parts count in the summary, whose rows are those of ls") {
  for (const char* name : {"torchao/weights", "torchao/adamw8bit", "dcp/fsdp2_w2"}) {
    INFO(name);
    OpenedCheckpoint opened = open_sample(name);
    const LsReport ls = list_tensors(opened);
    const SummaryReport summary = summarize(opened);
    std::uint64_t bytes = 0, kinds = 0, dtypes = 0;
    for (const LsTensor& tensor : ls.tensors) bytes += tensor.bytes;
    for (const ByteRow& row : summary.by_kind) kinds += row.bytes;
    for (const ByteRow& row : summary.by_dtype) dtypes += row.bytes;
    CHECK(summary.tensors == ls.tensors.size());
    CHECK(summary.tensor_bytes == bytes);
    CHECK(kinds == bytes);
    CHECK(dtypes == bytes);
  }
}

TEST_CASE("a part is chosen with its whole, and the refusal names that") {
  for (const bool include : {true, false}) {
    OpenOptions options;
    (include ? options.selection.include : options.selection.exclude) = {"int8.weight#*"};
    try {
      open_sample("torchao/weights", options);
      FAIL("opened");
    } catch (const Error& error) {
      CHECK(error.code() == Code::kInvalidArgument);
      CHECK_THAT(error.status().message,
                 Contains("\"int8.weight#qdata\" is a part of \"int8.weight\""));
      CHECK(error.status().hint ==
            (include ? "--include 'int8.weight'" : "--exclude 'int8.weight'"));
    }
  }
  OpenOptions options;
  options.selection.include = {"int8.weight"};
  OpenedCheckpoint chosen = open_sample("torchao/weights", options);
  std::vector<std::string> names;
  for (const LsTensor& tensor : list_tensors(chosen).tensors) names.emplace_back(tensor.name);
  CHECK(names == std::vector<std::string>{"int8.weight#qdata", "int8.weight#scale",
                                          "int8.weight#zero_point"});
}

TEST_CASE("diff names the part that differs, and nothing else of the object") {
  MemoryFileSystem fs;
  const std::string path = load_sample(fs, "torchao/adamw8bit_fsdp2_w2");
  OpenedCheckpoint a = open_checkpoint(fs, path), b = open_checkpoint(fs, path);
  const DiffReport same = diff_checkpoints(a, b);
  CHECK(same.equal);
  CHECK(same.tensors_compared == hashed(fs, path).size());
  // One code of one block, where it lies in the file.
  std::uint32_t index = 0;
  while (b.manifest.tensors[index].name != std::string(kMoment) + "#codes") ++index;
  b.locate(std::span(&index, 1), {});
  const Source& codes = b.manifest.source(b.manifest.tensors[index], 0);
  const std::string file = path + "/" + b.manifest.files[codes.file].path;
  const std::unique_ptr<ReadFile> open =
      fs.open_directory(path)->open(b.manifest.files[codes.file].path);
  std::string bytes(open->size_bytes(), '\0');
  open->read_at(0, std::as_writable_bytes(std::span(bytes)));
  bytes[codes.offset + 7] ^= 1;
  fs.write_file(file, as_bytes(bytes));
  OpenedCheckpoint other = open_checkpoint(fs, path);
  MemoryFileSystem untouched;
  OpenedCheckpoint original =
      open_checkpoint(untouched, load_sample(untouched, "torchao/adamw8bit_fsdp2_w2"));
  DiffOptions options;
  options.transfer.check_crc = false;
  const DiffReport report = diff_checkpoints(original, other, options);
  REQUIRE(report.tensors.size() == 1);
  CHECK(report.tensors[0].name == std::string(kMoment) + "#codes");
  CHECK(report.values.empty());
}

TEST_CASE("state in blocks is cut and joined between them, in every format of pickles") {
  for (const char* name : {"torchao/adamw8bit_fsdp2_w2", "torchao/adamw4bit_fsdp2_w2"}) {
    INFO(name);
    MemoryFileSystem fs;
    const std::string source = load_sample(fs, name);
    const auto want = hashed(fs, source);
    const std::string of_class = class_at(fs, source, kMoment);
    CHECK_THAT(of_class, Contains("OptimState"));
    to(fs, source, "/w4", 4, "torch-dcp");
    to(fs, "/w4", "/w1", 1, "torch-dcp");
    to(fs, "/w1", "/ranks", 2, "torch-rank-files");
    to(fs, "/ranks", "/w8", 8, "torch-dcp");
    to(fs, "/w8", "/whole.pt", 1, "torch-save");
    to(fs, "/whole.pt", "/w2", 2, "torch-dcp");
    for (const char* made : {"/w4", "/w1", "/ranks", "/w8", "/whole.pt", "/w2"}) {
      INFO(made);
      CHECK(hashed(fs, made) == want);
      CHECK(class_at(fs, made, kMoment) == of_class);
    }
    // As PyTorch saves it: a chunk for each rank, with rows of its own.
    CHECK(content_at(fs, "/w2").chunks == content_at(fs, source).chunks);
  }
}

TEST_CASE("a cut through a block is refused by name, and what keeps it whole is said") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "torchao/adamw8bit_fsdp2_w2");
  for (const char* format : {"torch-dcp", "torch-rank-files"}) {
    INFO(format);
    ConvertOptions options = convert_options(source, "/out", 3, format);
    const Status status = status_of(fs, options);
    CHECK(status.code == Code::kUnsupported);
    CHECK_THAT(status.message, Contains(kMoment));
    CHECK_THAT(status.message, Contains("torchao.optim.subclass_8bit.OptimState8bit"));
    CHECK_THAT(status.hint, Contains("--replicate") && Contains("--only model"));
    options.target.replicate = {"optim.state.0.weight.exp_avg*"};
    options.destination = std::string("/whole-") + format;
    CHECK(convert(fs, options).published);
    CHECK(hashed(fs, options.destination) == hashed(fs, source));
    options.target.replicate.clear();
    options.selection.only = Part::kModel;
    options.destination = std::string("/model-") + format;
    CHECK(convert(fs, options).published);
    CHECK_FALSE(hashed(fs, options.destination).contains("optim.state.0.bias.exp_avg"));
  }
}

TEST_CASE("a leaf that is called like a part keeps its name, and the part gets a number") {
  OpaqueObject rebuild;
  rebuild.how = OpaqueObject::How::kReduce;
  rebuild.module = "torch._tensor";
  rebuild.name = "_rebuild_from_type_v2";
  OpaqueObject cls;
  cls.module = "made.up";
  cls.name = "Blocks";
  const Value type = Value::opaque(cls);
  const Value attributes =
      Value::dict({{Value::string("codes"), Value::tensor(0)}, {Value::string("n"), Value()}});
  rebuild.arguments = Value::list({type, type, Value::list({}, Value::Kind::kTuple), attributes},
                                  Value::Kind::kTuple);
  StateDict state;
  state.entries.push_back({"w", {key_item(std::string("w"))}, Value::opaque(rebuild)});
  state.entries.push_back({"w#codes", {key_item(std::string("w#codes"))}, Value::tensor(1)});
  const std::vector<PartRow> rows = part_rows(state);
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].suffix == "#2.codes");
}

}  // namespace wrapper_parts_test
