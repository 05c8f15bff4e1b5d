// What a new format needs beside its folder and its line in the registry: nothing in operations. A
// toy format, read only, is added for the time of a test.
#include "lib/format/added_format.h"

#include <tessera/base/error.h>
#include <tessera/ops/hash.h>
#include <tessera/ops/summary.h>
#include <tessera/ops/verify.h>
#include <tessera/storage/memory_file_system.h>

#include <catch2/catch.hpp>
#include <string>

#include "tests/support/convert_case.h"
#include "tests/support/inspect_case.h"

namespace added_format_test {

using namespace tessera;
using namespace tessera::testing;
using Catch::Matchers::Contains;

namespace {

constexpr std::string_view kMagic = "TOY1";

inline constexpr OptionOf<bool> kDoubleFlag{
    {FormatOption::Kind::kSwitch, "--toy-half", "", "toy: the first half of the numbers alone"}};

/// "x.toy": TOY1, then float32 numbers, the tensor "numbers". A folder is one by its index "toy.list".
class ToyDriver final : public FormatDriver {
 public:
  std::string_view id() const override { return "toy"; }
  Capabilities capabilities() const override {
    static constexpr std::string_view kSuffixes[] = {".toy"};
    static constexpr std::string_view kFolderFiles[] = {"toy.list"};
    static constexpr const FormatOption* kReads[] = {&kDoubleFlag};
    return {.writes = false,
            .is_loose_files = true,
            .pointer = {"toy_newest", "save_"},
            .suffixes = kSuffixes,
            .folder_files = kFolderFiles,
            .reads_with = kReads};
  }
  ProbeResult probe(const Place& place) const override {
    using Answer = ProbeResult::Answer;
    if (place.file.empty())
      return place.directory->stat("toy.list") ? ProbeResult{Answer::kYes, "has toy.list"}
                                               : ProbeResult{};
    Bytes first(kMagic.size());
    const auto file = place.directory->open(place.file);
    if (file->size_bytes() < first.size()) return {};
    file->read_at(0, first);
    return as_text(first) == kMagic ? ProbeResult{Answer::kYes, "starts with TOY1"} : ProbeResult{};
  }
  Manifest manifest(const Place& place, const ReadOptions& options) const override {
    Manifest out;
    out.format = "toy";
    const std::string name = place.file.empty() ? "a.toy" : place.file;
    const std::uint64_t size = place.directory->open(name)->size_bytes();
    StoredFile file;
    file.path = name;
    file.size_bytes = size;
    out.files.push_back(std::move(file));
    auto count = static_cast<std::int64_t>((size - kMagic.size()) / sizeof(float));
    if (options.own.get(kDoubleFlag)) count /= 2;
    StoredTensor tensor;
    tensor.name = "numbers";
    tensor.spec = {DType::kFloat32, Shape{count}};
    Source source;
    source.kind = Source::Kind::kExtent;
    source.offset = kMagic.size();
    source.length = static_cast<std::uint64_t>(tensor.spec.size_bytes());
    tensor.first_chunk = out.chunks.size();
    tensor.chunk_count = 1;
    out.chunks.add(Chunk::whole_of(Box::whole(tensor.spec.shape)), source);
    out.tensors.push_back(std::move(tensor));
    out.state.entries.push_back({"numbers", {key_item("numbers")}, Value::tensor(0)});
    return out;
  }
  void locate(const Place&, Manifest&, std::span<const std::uint32_t>,
              const ReadOptions&) const override {}
  OutputPlan output_plan(const Manifest&, const TargetRequest&) const override {
    fail(Code::kUnsupported, "toy is read, not written");
  }
};

std::string toy_bytes() {
  const float numbers[] = {1, 2, 3, 4};
  return std::string(kMagic) + std::string(reinterpret_cast<const char*>(numbers), sizeof(numbers));
}

}  // namespace

TEST_CASE("a format in the table is found, read, verified and converted from") {
  MemoryFileSystem fs;
  fs.write_file("/run/a.toy", as_bytes(toy_bytes()));
  CHECK_THROWS_AS(open_checkpoint(fs, "/run"), Error);

  const ToyDriver toy;
  const AddedFormat added(toy);
  // The one checkpoint below a folder, by the suffix that the driver declares.
  OpenedCheckpoint opened = open_checkpoint(fs, "/run");
  CHECK(opened.driver == &toy);
  CHECK(opened.path == "/run/a.toy");
  CHECK(summarize(opened).complete);
  CHECK(hash_checkpoint(opened, {}).tensors.size() == 1);
  CHECK(verify_checkpoint(fs, "/run/a.toy", {}).ok);

  // A part of a folder, by its name.
  fs.write_file("/many/toy.list", as_bytes("a.toy"));
  fs.write_file("/many/a.toy", as_bytes(toy_bytes()));
  CHECK(open_checkpoint(fs, "/many/toy.list").path == "/many");

  // A pointer of its own, that counts.
  fs.write_file("/saves/save_0000012/toy.list", as_bytes("a.toy"));
  fs.write_file("/saves/save_0000012/a.toy", as_bytes(toy_bytes()));
  fs.write_file("/saves/save_0000011/a.toy", as_bytes(toy_bytes()));
  fs.write_file("/saves/toy_newest", as_bytes("12\n"));
  CHECK(open_checkpoint(fs, "/saves").path == "/saves/save_0000012");

  ConvertOptions options = convert_options("/run/a.toy", "/out.safetensors", std::nullopt);
  options.verify = true;
  CHECK(convert(fs, options).verified);
  CHECK(content_at(fs, "/out.safetensors").tensors == content_at(fs, "/run/a.toy").tensors);
  options.destination = "/back";
  options.to = "toy";
  CHECK_THAT(status_of(fs, options).message, Contains("is read, not written"));
}

TEST_CASE("its own flag reaches it, and no other format") {
  MemoryFileSystem fs;
  fs.write_file("/a.toy", as_bytes(toy_bytes()));
  const std::string other = load_sample(fs, "torchsave/plain_zip");
  const ToyDriver toy;
  const AddedFormat added(toy);
  const auto all = format_options(/*to_write=*/false);
  CHECK(std::ranges::find(all, "--toy-half", &FormatOption::flag) != all.end());
  OpenOptions half;
  half.read.own.set(kDoubleFlag, true);
  CHECK(open_checkpoint(fs, "/a.toy", half).manifest.tensors[0].spec.shape == Shape{2});
  ConvertOptions options = convert_options(other, "/out.safetensors", std::nullopt);
  options.own.set(kDoubleFlag, true);
  const Status status = status_of(fs, options);
  CHECK(status.code == Code::kInvalidArgument);
  CHECK_THAT(status.message, Contains("--toy-half is for toy"));
}

TEST_CASE("the rules for PATH say which of them found it, and why the others did not") {
  using Answer = PathStep::Answer;
  const auto answers = [](const PathExplanation& explanation) {
    std::vector<Answer> out;
    for (const PathStep& step : explanation.steps) out.push_back(step.answer);
    return out;
  };
  MemoryFileSystem fs;
  fs.write_file("/run/a.safetensors", as_bytes(std::string_view("\x08\0\0\0\0\0\0\0{}      ", 16)));
  const PathExplanation folder = explain_path(fs, "/run");
  CHECK(folder.is_folder);
  CHECK(answers(folder) == std::vector{Answer::kNo, Answer::kYes, Answer::kNotAsked,
                                       Answer::kNotAsked, Answer::kNotAsked});
  CHECK_THAT(folder.steps[1].reason, Contains("safetensors"));
  CHECK(folder.format == "safetensors");
  const PathExplanation file = explain_path(fs, "/run/a.safetensors");
  CHECK_FALSE(file.is_folder);
  CHECK(answers(file) == std::vector{Answer::kNo, Answer::kNo, Answer::kYes});

  fs.write_file("/top/latest", as_bytes("gone"));
  fs.write_file("/top/x/a.safetensors",
                as_bytes(std::string_view("\x08\0\0\0\0\0\0\0{}      ", 16)));
  fs.write_file("/top/y/a.safetensors",
                as_bytes(std::string_view("\x08\0\0\0\0\0\0\0{}      ", 16)));
  const PathExplanation several = explain_path(fs, "/top");
  CHECK(answers(several) ==
        std::vector{Answer::kNo, Answer::kNo, Answer::kNo, Answer::kNo, Answer::kFailed});
  CHECK_THAT(several.steps[2].reason, Contains("\"gone\", which is not there"));
  CHECK(several.failure.code == Code::kNotFound);
  CHECK(several.found.empty());
  CHECK_THROWS_AS(explain_path(fs, "/absent"), Error);
}

}  // namespace added_format_test
