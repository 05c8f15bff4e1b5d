// What the formats made of torch.save files share: tensors put together from pieces of several
// archives, and archives whose storages are put together from pieces of tensors.
#include <tessera/base/error.h>
#include <tessera/format/torch_save.h>
#include <tessera/reshard/tensor_reader.h>
#include <tessera/storage/checksum.h>
#include <tessera/storage/memory_file_system.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <random>

#include "lib/format/torch_files/archive_manifest.h"
#include "lib/format/torch_files/archive_plan.h"
#include "tests/support/archive_gather.h"
#include "tests/support/execute_plan.h"
#include "tests/support/sample_case.h"

namespace tessera::torch_files_test {
namespace {

Value key(const std::string& name) { return Value::string(name); }
Path path_of(const std::string& name) { return {PathItem{PathItem::Kind::kKey, 0, name}}; }

/// An archive of int32 tensors whose elements count from `first` on, made by ArchivePlanBuilder.
void write_counting(MemoryFileSystem& fs, const std::string& name,
                    const std::vector<std::pair<std::string, Shape>>& tensors, std::int32_t first) {
  const Manifest none;
  ArchiveFile file;
  file.path = name;
  file.prefix = "archive";
  ValueDict root;
  for (const auto& [tensor, shape] : tensors) {
    StoragePiece piece;
    piece.tensor = StoragePiece::kBytes;
    for (std::int64_t i = 0; i < shape.numel(); ++i, ++first)
      piece.bytes.append(reinterpret_cast<const char*>(&first), sizeof first);
    root.emplace_back(key(tensor), Value::tensor(static_cast<std::uint32_t>(file.tensors.size())));
    ArchiveWriteTensor write;
    write.spec = {DType::kInt32, shape};
    write.storage = static_cast<std::uint32_t>(file.tensors.size());
    file.tensors.push_back(write);
    file.storages.push_back({std::move(piece)});
  }
  file.root = Value::dict(std::move(root));
  ArchivePlanBuilder builder(none);
  builder.add(std::move(file));
  const OutputPlan plan = builder.finish("test");
  plan.check(none);
  const auto directory = fs.open_directory("/");
  for (const auto& [path, bytes] : testing::execute_plan(none, *directory, plan))
    fs.write_file("/" + path, bytes);
}

std::vector<std::int32_t> elements(const Manifest& manifest, const Directory& directory,
                                   const std::string& name) {
  TransferOptions options;
  const TensorReader reader(manifest, directory, options);
  for (std::uint32_t t = 0; t < manifest.tensors.size(); ++t) {
    if (manifest.tensors[t].name != name) continue;
    std::vector<std::int32_t> out(static_cast<std::size_t>(manifest.tensors[t].spec.shape.numel()));
    reader.read(t, 0, static_cast<std::int64_t>(out.size()),
                std::as_writable_bytes(std::span(out)));
    return out;
  }
  FAIL("no tensor " << name);
  return {};
}

std::vector<std::int32_t> range(std::int32_t begin, std::int32_t end) {
  std::vector<std::int32_t> out;
  for (std::int32_t i = begin; i < end; ++i) out.push_back(i);
  return out;
}

struct TwoFiles {
  MemoryFileSystem fs;
  std::unique_ptr<Directory> directory;
  TwoFiles() {
    write_counting(fs, "a.pt", {{"x", Shape{2, 3}}, {"y", Shape{5}}}, 0);
    write_counting(fs, "b.pt", {{"x", Shape{4}}}, 100);
    directory = fs.open_directory("/");
  }
};

Manifest located(const Directory& directory, Manifest manifest) {
  locate_archives(directory, manifest, testing::all_tensors(manifest), {});
  return manifest;
}

}  // namespace

TEST_CASE("a tensor is put together from pieces of tensors of several archives") {
  const TwoFiles files;
  ArchiveManifestBuilder builder(*files.directory, {});
  const std::uint32_t a = builder.open("a.pt"), b = builder.open("b.pt");
  const Box whole = Box::whole(Shape{3, 3});
  // Elements 1..4 of a.x, then all of b.x, then the last of a.y.
  const ArchivePiece pieces[] = {
      {Chunk{whole, 0, 4}, a, 0, 1}, {Chunk{whole, 4, 8}, b, 0, 0}, {Chunk{whole, 8, 9}, a, 1, 4}};
  builder.add_tensor(path_of("t"), {DType::kInt32, Shape{3, 3}}, pieces);
  builder.add_state(a, *builder.archive(a).root.find("y"), path_of("y"));
  const Manifest manifest = located(*files.directory, builder.finish("test", ""));
  CHECK(elements(manifest, *files.directory, "t") ==
        std::vector<std::int32_t>{1, 2, 3, 4, 100, 101, 102, 103, 10});
  CHECK(elements(manifest, *files.directory, "y") == range(6, 11));
  REQUIRE(manifest.find("t")->chunk_count == 3);
  for (const Record& record : manifest.records) CHECK(record.length > 0);
}

TEST_CASE("pending pieces differ from each other and lie inside of their file") {
  const TwoFiles files;
  ArchiveManifestBuilder builder(*files.directory, {});
  const std::uint32_t a = builder.open("a.pt");
  const Box whole = Box::whole(Shape{6});
  for (std::int64_t i = 0; i < 2; ++i) {
    const ArchivePiece piece{Chunk::whole_of(Box::whole(Shape{3})), a, 0, 3 * i};
    builder.add_tensor(path_of(std::to_string(i)), {DType::kInt32, Shape{3}}, {&piece, 1});
  }
  const Manifest manifest = builder.finish("test", "");
  const Source &first = manifest.source(manifest.tensors[0], 0),
               &second = manifest.source(manifest.tensors[1], 0);
  CHECK(first.kind == Source::Kind::kPending);
  CHECK(first.length == 12);
  CHECK(second.offset == first.offset + 12);
  CHECK(second.offset + second.length <= manifest.files[0].size_bytes);
}

TEST_CASE("a piece outside of its tensor, of another type or part of a view is refused") {
  const TwoFiles files;
  ArchiveManifestBuilder builder(*files.directory, {});
  const std::uint32_t a = builder.open("a.pt");
  const auto add = [&](DType dtype, const Shape& shape, const ArchivePiece& piece) {
    return test::code_of([&] {
      builder.add_tensor(path_of("t"), TensorSpec{dtype, shape}, {&piece, 1});
    });
  };
  const auto run = [](std::int64_t n) { return Chunk::whole_of(Box::whole(Shape{n})); };
  CHECK(add(DType::kInt32, Shape{3}, {run(3), a, 0, 4}) == Code::kCorrupt);
  CHECK(add(DType::kInt32, Shape{7}, {run(7), a, 0, 0}) == Code::kCorrupt);
  CHECK(add(DType::kInt32, Shape{3}, {run(3), a, 0, -1}) == Code::kCorrupt);
  CHECK(add(DType::kFloat32, Shape{3}, {run(3), a, 0, 0}) == Code::kCorrupt);
  CHECK(add(DType::kInt32, Shape{2}, {run(3), a, 0, 0}) == Code::kCorrupt);

  const testing::SampleCase sample("torchsave/tied_views_zip");
  ArchiveManifestBuilder views(*sample.directory, {});
  const std::string file = sample.directory->list()[0].name;
  const std::uint32_t v = views.open(file);
  const Value* transposed = views.archive(v).root.find("transposed");
  REQUIRE(transposed);
  const ArchiveTensor& tensor = views.archive(v).tensors[transposed->tensor_index()];
  const ArchivePiece part{run(1), v, transposed->tensor_index(), 0};
  CHECK(test::code_of([&] {
          views.add_tensor(path_of("t"), {tensor.dtype, Shape{1}}, {&part, 1});
        }) == Code::kUnsupported);
}

TEST_CASE("two entries of one name are corrupt") {
  const TwoFiles files;
  ArchiveManifestBuilder builder(*files.directory, {});
  const std::uint32_t a = builder.open("a.pt"), b = builder.open("b.pt");
  builder.add_state(a, builder.archive(a).root, {});
  builder.add_state(b, builder.archive(b).root, {});
  std::string message;
  CHECK(test::code_of([&] { builder.finish("test", ""); }, &message) == Code::kCorrupt);
  CHECK(message.find("\"x\"") != std::string::npos);
}

TEST_CASE("a file that changes between opening and locating is noticed") {
  TwoFiles files;
  ArchiveManifestBuilder builder(*files.directory, {});
  const std::uint32_t a = builder.open("a.pt");
  builder.add_state(a, builder.archive(a).root, {});
  Manifest manifest = builder.finish("test", "");
  write_counting(files.fs, "a.pt", {{"x", Shape{3}}, {"y", Shape{5}}}, 0);
  CHECK(test::code_of([&] {
          locate_archives(*files.directory, manifest, testing::all_tensors(manifest), {});
        }) == Code::kCorrupt);
}

TEST_CASE("storages of pieces and zeros and bytes have right contents and checksums") {
  const std::uint64_t seed = 20261121;
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  const TwoFiles files;
  ArchiveManifestBuilder reading(*files.directory, {});
  const std::uint32_t a = reading.open("a.pt"), b = reading.open("b.pt");
  reading.add_state(a, reading.archive(a).root, path_of("a"));
  reading.add_state(b, reading.archive(b).root, path_of("b"));
  const Manifest source = located(*files.directory, reading.finish("test", ""));
  for (int round = 0; round < 40; ++round) {
    ArchiveFile file;
    file.path = "out.pt";
    file.prefix = "out";
    std::vector<std::vector<std::int32_t>> expected;
    ValueDict root;
    for (int s = 0, storages = static_cast<int>(random() % 4); s < storages; ++s) {
      std::vector<StoragePiece> pieces;
      std::vector<std::int32_t> content;
      for (int p = 0, n = static_cast<int>(random() % 5); p < n; ++p) {
        StoragePiece piece;
        const std::uint64_t what = random() % 5;
        if (what == 0) {
          const std::uint64_t zeros = round == 0 ? 700'000 : random() % 7;
          piece.zero_bytes = 4 * zeros;
          content.insert(content.end(), zeros, 0);
        } else if (what == 1) {
          piece.tensor = StoragePiece::kBytes;
          const std::int32_t number = static_cast<std::int32_t>(random());
          piece.bytes.assign(reinterpret_cast<const char*>(&number), 4);
          content.push_back(number);
        } else {
          piece.tensor = static_cast<std::uint32_t>(random() % source.tensors.size());
          const StoredTensor& tensor = source.tensors[piece.tensor];
          const std::int64_t numel = tensor.spec.shape.numel();
          const std::int64_t from = static_cast<std::int64_t>(random() % (numel + 1));
          const std::int64_t to = from + static_cast<std::int64_t>(random() % (numel - from + 1));
          piece.chunk = {Box::whole(tensor.spec.shape), from, to};
          const auto all = elements(source, *files.directory, tensor.name);
          content.insert(content.end(), all.begin() + from, all.begin() + to);
        }
        pieces.push_back(std::move(piece));
      }
      ArchiveWriteTensor tensor;
      tensor.spec = {DType::kInt32, Shape{static_cast<std::int64_t>(content.size())}};
      tensor.storage = static_cast<std::uint32_t>(s);
      file.tensors.push_back(tensor);
      file.storages.push_back(std::move(pieces));
      root.emplace_back(key("t" + std::to_string(s)), Value::tensor(static_cast<std::uint32_t>(s)));
      expected.push_back(std::move(content));
    }
    file.root = Value::dict(std::move(root));
    ArchivePlanBuilder builder(source);
    builder.add(std::move(file));
    builder.add_literal("latest", "out.pt");
    const OutputPlan plan = builder.finish("test");
    plan.check(source);
    MemoryFileSystem out;
    for (const auto& [path, bytes] : testing::execute_plan(source, *files.directory, plan))
      out.write_file("/" + path, bytes);
    const auto directory = out.open_directory("/");
    // The reader checks each record's CRC against its bytes.
    const Manifest back = located(
        *directory, torch_save_driver().manifest({directory.get(), "out.pt", "out.pt"}, {}));
    for (std::size_t s = 0; s < expected.size(); ++s)
      CHECK(elements(back, *directory, "t" + std::to_string(s)) == expected[s]);
    for (const Record& record : back.records) {
      Bytes bytes(record.length);
      directory->open("out.pt")->read_at(record.offset, bytes);
      CHECK(crc32(0, bytes) == record.crc32);
    }
    Bytes latest(6);
    directory->open("latest")->read_at(0, latest);
    CHECK(as_text(latest) == "out.pt");
  }
}

}  // namespace tessera::torch_files_test
