// The report of tessera-hdf5 as untrusted text: what is a report, and everything that is none.
#include <tessera/base/error.h>

#include <catch2/catch.hpp>
#include <random>

#include "lib/format/hdf5/dtype.h"
#include "lib/format/hdf5/pieces.h"
#include "lib/format/hdf5/report.h"

namespace tessera::h5::hdf5_report_test {
namespace {

Report parse(const WireWriter& w) {
  return parse_report({reinterpret_cast<const std::byte*>(w.bytes().data()), w.bytes().size()});
}

Code refusal(const WireWriter& w) {
  try {
    parse(w);
  } catch (const Error& error) {
    return error.code();
  }
  return Code::kOk;
}

void float32(WireWriter& w) {
  w.tag(TypeClass::kFloat);
  w.number(std::uint32_t{4});
  w.number(std::uint8_t{0});
  for (const std::uint32_t field : {31, 23, 8, 0, 23, 127}) w.number(field);
  w.number(std::uint8_t{1});
}

void head(WireWriter& w, std::initializer_list<std::uint64_t> extents, LayoutKind layout) {
  w.tag(Tag::kDataset);
  w.text("a/b");
  float32(w);
  w.number(static_cast<std::uint8_t>(extents.size()));
  for (const std::uint64_t extent : extents) w.number(extent);
  w.tag(layout);
  w.text("");
}

/// A chunked dataset of extents [10, 6] in chunks of [4, 4], without filters.
WireWriter chunked(std::initializer_list<std::pair<std::uint64_t, std::uint64_t>> chunks,
                   std::uint64_t length = 64) {
  WireWriter w;
  head(w, {10, 6}, LayoutKind::kChunked);
  w.number(std::uint64_t{4});
  w.number(std::uint64_t{4});
  w.number(std::uint8_t{0});
  w.number(std::uint8_t{0});
  for (const auto& [number, offset] : chunks) {
    w.number(number);
    w.number(offset);
    w.number(length);
    w.number(std::uint32_t{0});
  }
  w.number(~std::uint64_t{0});
  return w;
}

Code pieces_refusal(const Dataset& dataset, std::uint64_t file_bytes) {
  try {
    pieces_of(dataset, DType::kFloat32, 0, file_bytes);
  } catch (const Error& error) {
    return error.code();
  }
  return Code::kOk;
}

WireWriter contiguous(std::uint64_t rows, std::uint64_t offset, std::uint64_t length) {
  WireWriter w;
  head(w, {rows}, LayoutKind::kContiguous);
  w.number(offset);
  w.number(length);
  return w;
}

}  // namespace

TEST_CASE("an hdf5 report parses into its records") {
  WireWriter w;
  w.tag(Tag::kGroup);
  w.text("");
  w.number(std::uint8_t{0});
  w.tag(Tag::kAttribute);
  w.text("");
  w.text("list");
  w.tag(ValueTag::kList);
  w.number(std::uint32_t{2});
  w.tag(ValueTag::kUInt);
  w.number(~std::uint64_t{0});
  w.tag(ValueTag::kText);
  w.text("x");
  const WireWriter dataset = contiguous(3, 100, 12);
  w.bytes().insert(w.bytes().end(), dataset.bytes().begin(), dataset.bytes().end());
  const Report report = parse(w);
  REQUIRE(report.items.size() == 3);
  REQUIRE(report.values.size() == 1);
  CHECK(report.values[0].value ==
        Value::list({Value::big_integer("18446744073709551615"), Value::string("x")}));
  REQUIRE(report.find_dataset("a/b"));
  CHECK(dtype_of(report.datasets[0].type, "") == DType::kFloat32);
  CHECK(report.datasets[0].offset == 100);
}

TEST_CASE("every cut of an hdf5 report is refused, but between records") {
  const WireWriter whole = chunked({{0, 0}, {5, 64}});
  for (std::size_t n = 1; n < whole.bytes().size(); ++n) {
    WireWriter cut;
    cut.bytes().assign(whole.bytes().begin(), whole.bytes().begin() + static_cast<long>(n));
    CHECK(refusal(cut) == Code::kCorrupt);
  }
}

TEST_CASE("claims that bytes do not bear out are refused") {
  WireWriter list;
  list.tag(Tag::kText);
  list.text("x");
  list.tag(ValueTag::kList);
  list.number(std::uint32_t{0xffffffff});
  CHECK(refusal(list) == Code::kCorrupt);
  WireWriter deep;
  deep.tag(Tag::kText);
  deep.text("x");
  for (int i = 0; i < 1000; ++i) {
    deep.tag(ValueTag::kList);
    deep.number(std::uint32_t{1});
  }
  deep.tag(ValueTag::kNone);
  CHECK(refusal(deep) == Code::kCorrupt);
  CHECK(refusal(chunked({{5, 0}, {5, 64}})) == Code::kCorrupt);  // numbers must rise
  CHECK(refusal(contiguous(~std::uint64_t{0}, 0, 0)) == Code::kCorrupt);
}

TEST_CASE("places outside of the file or of the extents are refused") {
  const auto piece_code = [](const WireWriter& w) {
    const Report report = parse(w);
    return pieces_refusal(report.datasets.at(0), 1000);
  };
  CHECK(piece_code(contiguous(10, 960, 40)) == Code::kOk);
  CHECK(piece_code(contiguous(10, 961, 40)) == Code::kCorrupt);
  CHECK(piece_code(contiguous(10, ~std::uint64_t{0} - 3, 40)) == Code::kCorrupt);
  CHECK(piece_code(contiguous(10, 0, 39)) == Code::kCorrupt);
  CHECK(piece_code(contiguous(std::uint64_t{1} << 62, 0, 40)) == Code::kCorrupt);
  CHECK(piece_code(chunked({{5, 936}})) == Code::kOk);
  CHECK(piece_code(chunked({{5, 937}})) == Code::kCorrupt);
  CHECK(piece_code(chunked({{6, 0}})) == Code::kCorrupt);  // the grid is 3 x 2
  CHECK(piece_code(chunked({{5, 0}}, 60)) == Code::kCorrupt);
}

TEST_CASE("pieces of a chunked dataset tile it, with fill where no chunk is") {
  const Report report = parse(chunked({{1, 0}, {4, 64}}));
  const std::vector<Piece> pieces = pieces_of(report.datasets[0], DType::kFloat32, 0, 1000);
  std::vector<int> covered(60, 0);
  for (const Piece& piece : pieces)
    for (std::int64_t r = piece.box.begin(0); r < piece.box.end(0); ++r)
      for (std::int64_t c = piece.box.begin(1); c < piece.box.end(1); ++c) {
        covered[static_cast<std::size_t>(r * 6 + c)] += 1;
        const bool stored = (r < 4 && c >= 4) || (r >= 8 && c < 4);
        CHECK((piece.kind == Source::Kind::kExtent) == stored);
      }
  CHECK(covered == std::vector<int>(60, 1));
}

TEST_CASE("an edge chunk is read by its own strides, and cut inside it") {
  const Report report = parse(chunked({{1, 100}}));
  std::vector<Piece> pieces = pieces_of(report.datasets[0], DType::kFloat32, 0, 1000);
  const auto edge = std::find_if(pieces.begin(), pieces.end(), [](const Piece& piece) {
    return piece.kind == Source::Kind::kExtent;
  });
  REQUIRE(edge != pieces.end());
  CHECK(edge->box.to_string() == "[0:4,4:6]");
  CHECK(edge->strides == std::vector<std::int64_t>{4, 1});
  const Piece inner = cut(*edge, Box{{2, 5}, Shape{1, 1}}, 4);
  CHECK(inner.offset == 100 + (2 * 4 + 1) * 4);
}

TEST_CASE("filters we have no codec for are unsupported by name") {
  Report report = parse(chunked({{1, 0}}));
  report.datasets[0].filters.push_back({32001, "blosc", {}});
  CHECK(pieces_refusal(report.datasets[0], 1000) == Code::kUnsupported);
}

TEST_CASE("dtypes by fields, and by the attribute where bits are raw") {
  TypeInfo type;
  type.type_class = TypeClass::kUInt;
  type.size = 2;
  CHECK(dtype_of(type, "") == DType::kUInt16);
  CHECK(dtype_of(type, "bfloat16") == DType::kBFloat16);
  CHECK(dtype_of(type, "float32") == DType::kUInt16);  // another width: no such thing
  CHECK(dtype_of(type, "qint8") == DType::kUInt16);
  type.type_class = TypeClass::kOpaque;
  CHECK(dtype_of(type, "bfloat16") == DType::kBFloat16);
  CHECK_FALSE(dtype_of(type, ""));
  type = {TypeClass::kFloat, 2, false, 15, 7, 8, 0, 7, 127, true, ""};
  CHECK(dtype_of(type, "") == DType::kBFloat16);
  CHECK(dtype_of(type, "float16") == DType::kBFloat16);  // not raw bits
  type = {TypeClass::kFloat, 1, false, 7, 3, 4, 0, 3, 7, true, ""};
  CHECK(dtype_of(type, "") == DType::kFloat8E4M3Fn);
  type = {TypeClass::kFloat, 1, false, 7, 2, 5, 0, 2, 15, true, ""};
  CHECK(dtype_of(type, "") == DType::kFloat8E5M2);
  type = {TypeClass::kFloat, 16, false, 79, 64, 15, 0, 64, 16383, false, ""};
  CHECK_FALSE(dtype_of(type, ""));  // x87's long double
}

TEST_CASE("flipped bytes of an hdf5 report are parsed or refused") {
  std::mt19937 random(7);
  const WireWriter whole = chunked({{0, 0}, {5, 64}});
  for (int round = 0; round < 3000; ++round) {
    WireWriter flipped = whole;
    for (int flips = 0; flips < 3; ++flips)
      flipped.bytes()[random() % whole.bytes().size()] = static_cast<char>(random());
    INFO("round " << round << " of seed 7");
    try {
      const Report report = parse(flipped);
      for (const Dataset& dataset : report.datasets) pieces_of(dataset, DType::kFloat32, 0, 1000);
    } catch (const Error& error) {
      CHECK((error.code() == Code::kCorrupt || error.code() == Code::kUnsupported));
    }
  }
}

}  // namespace tessera::h5::hdf5_report_test
