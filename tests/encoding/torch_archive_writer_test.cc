// Archives as laid out: the bytes PyTorch's writer would make, read back by our reader.
#include <tessera/encoding/torch_archive_writer.h>
#include <tessera/encoding/zip_reader.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <random>

#include "lib/encoding/zip_layout.h"
#include "tests/support/archive_gather.h"

namespace torch_archive_writer_test {

using namespace tessera;
using namespace tessera::test;
using namespace std::string_literals;

namespace {

/// Renders every piece, with `data[k]` as storage k.
Bytes render(const TorchArchiveLayout& layout, const std::vector<Bytes>& data) {
  Bytes out;
  for (std::size_t i = 0; i < layout.pieces().size(); ++i) {
    const auto& piece = layout.pieces()[i];
    CHECK(piece.offset == out.size());
    const Bytes bytes =
        piece.kind == TorchArchiveLayout::Piece::Kind::kStorage
            ? data.at(piece.storage)
            : layout.render(i, [&](std::uint32_t s) { return crc32(0, data.at(s)); });
    CHECK(bytes.size() == piece.length);
    if (piece.kind == TorchArchiveLayout::Piece::Kind::kStorage) CHECK(piece.offset % 64 == 0);
    out.insert(out.end(), bytes.begin(), bytes.end());
  }
  CHECK(out.size() == layout.size_bytes());
  return out;
}

Bytes random_bytes(std::int64_t size, unsigned seed) {
  std::mt19937 random(seed);
  Bytes out(static_cast<std::size_t>(size));
  for (std::byte& b : out) b = static_cast<std::byte>(random());
  return out;
}

/// The archive written again from its own records by ZipLayout.
Bytes rewritten(const ByteFile& file) {
  ZipReader zip(ByteWindow::whole(file));
  ZipLayout layout;
  Bytes out;
  for (const ZipEntry& entry : zip.entries()) {
    const std::size_t i = layout.add(zip.prefix() + "/" + entry.name, entry.size_bytes);
    const Bytes data = zip.read(entry);
    layout.append_header(i, out);
    out.insert(out.end(), data.begin(), data.end());
    layout.append_descriptor(i, entry.crc32, out);
  }
  layout.append_directory([&](std::size_t i) { return zip.entries()[i].crc32; }, out);
  return out;
}

}  // namespace

TEST_CASE("PyTorch's own archives are reproduced byte for byte from their records") {
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(sample("torchsave"))) {
    if (entry.path().extension() != ".pt") continue;
    const ByteFile file(read_whole(entry.path()));
    if (!file.bytes().starts_with("PK") ||
        entry.path().string().find("torchscript") != std::string::npos)
      continue;
    INFO(entry.path());
    CHECK(as_text(rewritten(file)) == file.bytes());
    ++files;
  }
  CHECK(files > 15);
}

TEST_CASE("the worked example: a 2x3 float32 in three records is 747 bytes") {
  ZipLayout layout;
  layout.add("archive/data.pkl", 154);
  layout.add("archive/data/0", 24);
  layout.add("archive/version", 2);
  CHECK(layout.records()[0].data_offset == 64);
  CHECK(layout.records()[1].header_offset == 234);
  CHECK(layout.records()[1].data_offset == 320);
  CHECK(layout.records()[2].header_offset == 360);
  CHECK(layout.records()[2].data_offset == 448);
  CHECK(layout.directory_offset() == 466);
  CHECK(layout.size_bytes() == 747);
}

TEST_CASE("records past 4 GiB take zip64 fields as PyTorch places them") {
  // From a real file: a record of 0x100000064 bytes whose header is at 313.
  ZipLayout layout;
  layout.add("a/" + std::string(313 - 64 - 1 - 16 - 2, 'x'), 1);
  const std::uint64_t shift = layout.directory_offset();
  ZipLayout exact;
  exact.add("f/big", 0x100000064);
  const auto big = exact.records()[0];
  CHECK(big.data_offset % 64 == 0);
  CHECK(big.end_offset == big.data_offset + 0x100000064 + 24);
  exact.add("f/next", 12);
  const auto& next = exact.records()[1];
  CHECK(next.header_offset == big.end_offset);
  CHECK(next.end_offset == next.data_offset + 12 + 24);  // a wide descriptor for its offset alone
  Bytes header;
  exact.append_header(0, header);
  CHECK(header.size() == big.data_offset);
  CHECK(load_le<std::uint16_t>(header.data() + 35) == 1);   // zip64 first
  CHECK(load_le<std::uint16_t>(header.data() + 37) == 16);  // size, then zeros
  CHECK(load_le<std::uint64_t>(header.data() + 39) == 0x100000064);
  CHECK(load_le<std::uint64_t>(header.data() + 47) == 0);
  Bytes after;
  exact.append_header(1, after);
  CHECK(load_le<std::uint16_t>(after.data() + 38) == 8);
  CHECK(load_le<std::uint64_t>(after.data() + 40) == next.header_offset);
  Bytes directory;
  exact.append_directory([](std::size_t) { return 7u; }, directory);
  CHECK(exact.size_bytes() == exact.directory_offset() + directory.size());
  CHECK(load_le<std::uint32_t>(directory.data() + 24) == 0xffffffff);
  CHECK(load_le<std::uint32_t>(directory.data() + directory.size() - 6) == 0xffffffff);
  CHECK(shift > 0);
}

namespace {

/// A file that is all zeros but for some pieces: a layout of any size without its storages.
class SparseFile : public ReadFile {
 public:
  explicit SparseFile(const TorchArchiveLayout& layout) : layout_(layout) {
    for (std::size_t i = 0; i < layout.pieces().size(); ++i) {
      if (layout.pieces()[i].kind != TorchArchiveLayout::Piece::Kind::kStorage)
        pieces_.emplace_back(layout.pieces()[i].offset, layout.render(i, [](auto) { return 0u; }));
    }
  }
  std::uint64_t size_bytes() const override { return layout_.size_bytes(); }
  const std::string& path() const override { return path_; }
  void read_at(std::uint64_t offset, MutableBytes out) const override {
    std::fill(out.begin(), out.end(), std::byte{0});
    for (const auto& [at, bytes] : pieces_) {
      const std::uint64_t begin = std::max(at, offset);
      const std::uint64_t end = std::min(at + bytes.size(), offset + out.size());
      if (begin < end)
        std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(begin - at), end - begin,
                    out.begin() + static_cast<std::ptrdiff_t>(begin - offset));
    }
  }

 private:
  const TorchArchiveLayout& layout_;
  std::string path_ = "sparse";
  std::vector<std::pair<std::uint64_t, Bytes>> pieces_;
};

}  // namespace

TEST_CASE("an archive of tens of GiB opens and locates") {
  const std::int64_t huge = std::int64_t{5} << 30;
  const TorchArchiveLayout layout(Value::dict({{Value::string("a"), Value::tensor(0)},
                                               {Value::string("b"), Value::tensor(1)},
                                               {Value::string("c"), Value::tensor(2)}}),
                                  {{.spec = {DType::kFloat32, {huge}}, .storage = 0},
                                   {.spec = {DType::kFloat32, {3}}, .storage = 1},
                                   {.spec = {DType::kInt8, {huge}}, .storage = 2}},
                                  "big");
  CHECK(layout.size_bytes() > static_cast<std::uint64_t>(huge) * 5);
  const SparseFile file(layout);
  const TorchArchive archive = open_torch_archive(ByteWindow::whole(file), {.locate = true});
  REQUIRE(archive.storages.size() == 3);
  for (const auto& piece : layout.pieces()) {
    if (piece.kind != TorchArchiveLayout::Piece::Kind::kStorage) continue;
    CHECK(archive.storages[piece.storage].offset == piece.offset);
    CHECK(archive.storages[piece.storage].size_bytes == piece.length);
  }
}

TEST_CASE("tensors of every dtype and shape come back") {
  std::vector<ArchiveWriteTensor> tensors;
  std::vector<Bytes> data;
  ValueDict entries;
  QuantParams per_tensor{.scheme = "per_tensor_affine", .scale = 0.25, .zero_point = 3};
  const auto add = [&](DType dtype, Shape shape) {
    const auto index = static_cast<std::uint32_t>(tensors.size());
    ArchiveWriteTensor tensor;
    tensor.spec = {dtype, std::move(shape)};
    tensor.storage = index;
    if (is_quantized(dtype)) tensor.quant = &per_tensor;
    data.push_back(random_bytes(tensor.spec.size_bytes(), index));
    entries.emplace_back(Value::string("t" + std::to_string(index)), Value::tensor(index));
    tensors.push_back(std::move(tensor));
  };
  for (const DType dtype : all_dtypes()) {
    if (is_sub_byte(dtype) || dtype == DType::kQUInt4x2 || dtype == DType::kQUInt2x4) continue;
    add(dtype, {3, 2});
  }
  for (const Shape& shape : {Shape{}, Shape{0}, Shape{4, 0, 2}, Shape{2, 1, 3, 1}, Shape{300}})
    add(DType::kFloat32, shape);
  const TorchArchiveLayout layout(Value::dict(entries), tensors, "archive");
  const ByteFile file(render(layout, data));
  const ByteWindow window = ByteWindow::whole(file);
  const TorchArchive archive = open_torch_archive(window, {.locate = true});
  REQUIRE(archive.root.as_dict().size() == tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    INFO(tensors[i].spec.to_string());
    const std::uint32_t index = archive.root.as_dict()[i].second.tensor_index();
    CHECK(archive.tensors[index].dtype == tensors[i].spec.dtype);
    CHECK(archive.tensors[index].shape == tensors[i].spec.shape);
    CHECK(gather(window, archive, index) == data[i]);
    CHECK((archive.tensors[index].quant >= 0) == is_quantized(tensors[i].spec.dtype));
  }
}

TEST_CASE("parameters, tied tensors, quantizers and values come back") {
  QuantParams per_channel{.scheme = "per_channel_affine",
                          .scale = 0,
                          .zero_point = 0,
                          .scales = Value::list({Value::real(0.5), Value::real(1.5)}),
                          .zero_points = Value::tensor(3),
                          .axis = 0};
  const std::vector<ArchiveWriteTensor> tensors = {
      {.spec = {DType::kFloat32, {2, 2}},
       .storage = 0,
       .is_parameter = true,
       .requires_grad = true},
      {.spec = {DType::kFloat32, {4}}, .storage = 0},
      {.spec = {DType::kQInt8, {2, 3}}, .storage = 1, .quant = &per_channel},
      {.spec = {DType::kInt64, {2}}, .storage = 2}};
  const Value attributes = Value::dict({{Value::string("_metadata"), Value::dict({})}});
  const Value root = Value::ordered_dict(
      {{Value::string("weight"), Value::tensor(0)},
       {Value::string("tied"), Value::tensor(1)},
       {Value::string("q"), Value::tensor(2)},
       {Value::string("lr"), Value::real(0.1)},
       {Value::integer(3), Value::list({Value::tensor(3)}, Value::Kind::kTuple)}},
      attributes);
  const TorchArchiveLayout layout(root, tensors, "model");
  const ByteFile file(
      render(layout, {random_bytes(16, 1), random_bytes(6, 2), random_bytes(16, 3)}));
  const TorchArchive archive = open_torch_archive(ByteWindow::whole(file), {.locate = true});
  CHECK(archive.prefix == "model");
  CHECK(archive.storages.size() == 3);
  CHECK(archive.root.attributes() == attributes);
  const auto tensor = [&](const char* key) -> const ArchiveTensor& {
    return archive.tensors[archive.root.find(key)->tensor_index()];
  };
  CHECK(tensor("weight").is_parameter);
  CHECK(tensor("weight").requires_grad);
  CHECK(tensor("weight").storage == tensor("tied").storage);
  CHECK_FALSE(tensor("tied").is_parameter);
  const QuantParams& quant = archive.quant.at(static_cast<std::size_t>(tensor("q").quant));
  CHECK(quant.scheme == "per_channel_affine");
  CHECK(quant.scales == per_channel.scales);
  CHECK(quant.zero_points.is_tensor());
  CHECK(*archive.root.find("lr") == Value::real(0.1));
}

TEST_CASE("archives without tensors, with empty storages, and of one bare tensor") {
  const TorchArchiveLayout value_only(Value::integer(5), {}, "archive");
  const ByteFile no_tensors(render(value_only, {}));
  CHECK(open_torch_archive(ByteWindow::whole(no_tensors)).root == Value::integer(5));

  const TorchArchiveLayout bare(Value::tensor(0), {{.spec = {DType::kBFloat16, {0, 4}}}},
                                "archive");
  const ByteFile empty(render(bare, {Bytes{}}));
  const TorchArchive archive = open_torch_archive(ByteWindow::whole(empty), {.locate = true});
  CHECK(archive.root.is_tensor());
  CHECK(archive.tensors[0].shape == Shape{0, 4});
  CHECK(empty.reads == 1);
}

TEST_CASE("the same input gives the same bytes") {
  const auto make = [] {
    const TorchArchiveLayout layout(Value::tensor(0), {{.spec = {DType::kFloat32, {2, 3}}}},
                                    "archive");
    return render(layout, {random_bytes(24, 9)});
  };
  CHECK(make() == make());
}

TEST_CASE("what a torch archive cannot hold is refused before any byte is laid out") {
  const auto lay_out = [](std::vector<ArchiveWriteTensor> tensors, std::string prefix = "archive") {
    return code_of([&] { TorchArchiveLayout(Value::tensor(0), tensors, prefix); });
  };
  CHECK(lay_out({{.spec = {DType::kFloat4, {2}}}}) == Code::kUnsupported);
  CHECK(lay_out({{.spec = {DType::kQInt8, {2}}}}) == Code::kUnsupported);
  CHECK(lay_out({{.spec = {DType::kInt8, {2}}, .storage = 1}}) == Code::kInvalidArgument);
  CHECK(lay_out({{.spec = {DType::kInt8, {2}}}, {.spec = {DType::kInt8, {3}}}}) ==
        Code::kInvalidArgument);
  CHECK(lay_out({}) == Code::kInvalidArgument);
  CHECK(lay_out({{.spec = {DType::kInt8, {2}}}}, "") == Code::kInvalidArgument);
  CHECK(lay_out({{.spec = {DType::kInt8, {2}}}}, "a/b") == Code::kInvalidArgument);
}

}  // namespace torch_archive_writer_test
