// Layouts against PyTorch's own shards: data/dtensor_shards.txt, written by
// data/make_dtensor_shards.py.
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/layout/coverage.h>
#include <tessera/layout/layout.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <numeric>
#include <sstream>
#include <string>

namespace layout_test {

using namespace tessera;

namespace {

using Indices = std::vector<std::int64_t>;

Indices numbers(const std::string& text, char separator = ',') {
  Indices out;
  if (text == "-") return out;
  for (const std::string_view part : split(text, separator))
    out.push_back(std::stoll(std::string(part)));
  return out;
}

Indices indices_of_runs(const std::string& text) {
  Indices out;
  if (text == "-") return out;
  for (const std::string_view part : split(text, ',')) {
    const Indices run = numbers(std::string(part), ':');
    for (std::int64_t i = run[0]; i < run[1]; ++i) out.push_back(i);
  }
  return out;
}

/// Flat numbers of the tensor's elements that a rank holds, in the order of its chunks.
Indices held_elements(const std::vector<Chunk>& chunks, const Shape& shape) {
  const auto strides = shape.strides();
  Indices out;
  for (const Chunk& chunk : chunks) {
    for (const ChunkPiece& piece : decompose(chunk)) {
      Indices ids = {0};
      for (int d = 0; d < shape.rank(); ++d) {
        Indices next;
        for (const std::int64_t base : ids)
          for (std::int64_t x = piece.box.begin(d); x < piece.box.end(d); ++x)
            next.push_back(base + x * strides[static_cast<std::size_t>(d)]);
        ids = std::move(next);
      }
      out.insert(out.end(), ids.begin(), ids.end());
    }
  }
  return out;
}

/// The same from the per-dim index lists of the table.
Indices expected_elements(const std::vector<Indices>& rows, const Shape& shape) {
  const auto strides = shape.strides();
  Indices ids = {0};
  for (std::size_t d = 0; d < rows.size(); ++d) {
    Indices next;
    for (const std::int64_t base : ids)
      for (const std::int64_t x : rows[d]) next.push_back(base + x * strides[d]);
    ids = std::move(next);
  }
  return ids;
}

Mesh mesh_of(const Indices& sizes) {
  std::vector<MeshDim> dims;
  for (std::size_t d = 0; d < sizes.size(); ++d)
    dims.push_back({"m" + std::to_string(d), sizes[d]});
  return Mesh(dims);
}

std::vector<Chunk> all_chunks(const Layout& layout, const Shape& shape) {
  std::vector<Chunk> all;
  for (std::int64_t rank = 0; rank < layout.mesh().world_size(); ++rank)
    for (Chunk& chunk : layout.chunks_of(rank, shape)) all.push_back(std::move(chunk));
  return all;
}

void check_refused(Code code, const char* mesh, const char* placements, const Shape& shape) {
  INFO(placements << " on " << mesh);
  try {
    Layout(Mesh::parse(mesh), Placement::parse_list(placements)).chunks_of(0, shape);
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.code() == code);
  }
}

}  // namespace

TEST_CASE("every rank holds what PyTorch's DTensor gives it") {
  std::ifstream in(TESSERA_SOURCE_DIR "/tests/layout/data/dtensor_shards.txt");
  REQUIRE(in);
  int cases = 0;
  int split_shards = 0;
  std::string heading;
  Shape shape;
  Layout layout;
  std::int64_t rank = 0;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("#")) continue;
    std::istringstream words(line);
    std::string first, offset_text;
    words >> first;
    if (first == "case") {
      std::string extents, mesh, placements;
      words >> extents >> mesh >> placements;
      REQUIRE(rank == (cases == 0 ? 0 : layout.mesh().world_size()));
      heading = line;
      shape = Shape(numbers(extents));
      layout = Layout(mesh_of(numbers(mesh)), Placement::parse_list(placements));
      rank = 0;
      ++cases;
      continue;
    }
    INFO(heading << ", rank " << rank << ": " << line);
    words >> offset_text;
    std::vector<Indices> rows;
    for (std::string runs; words >> runs;) rows.push_back(indices_of_runs(runs));
    const Indices local_shape = numbers(first);
    const std::vector<Chunk> chunks = layout.chunks_of(rank, shape);
    REQUIRE_FALSE(chunks.empty());
    REQUIRE(chunks[0].box.origin == numbers(offset_text));
    REQUIRE(held_elements(chunks, shape) == expected_elements(rows, shape));
    if (chunks.size() == 1) {
      REQUIRE(chunks[0].box.shape == Shape(local_shape));
    } else {
      ++split_shards;
    }
    ++rank;
  }
  CHECK(cases > 400);
  CHECK(split_shards > 0);
}

TEST_CASE("rows split by torch.chunk's rule") {
  for (std::int64_t extent = 0; extent <= 40; ++extent) {
    for (std::int64_t parts = 1; parts <= 17; ++parts) {
      std::int64_t at = 0;
      const std::int64_t rows = (extent + parts - 1) / parts;
      for (std::int64_t index = 0; index < parts; ++index) {
        const RowRange range = chunk_rows(extent, parts, index);
        INFO(extent << " rows in " << parts << ", part " << index);
        REQUIRE(range.begin == at);
        REQUIRE(range.end == std::min(extent, at + rows));
        at = range.end;
      }
      REQUIRE(at == extent);
    }
  }
  const std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  CHECK(chunk_rows(huge, huge, huge - 1).end == huge);
  CHECK(chunk_rows(huge - 1, 2, 1).end == huge - 1);
  CHECK(chunk_rows(3, huge, huge - 1).begin == 3);
}

TEST_CASE("all ranks together cover the tensor, and owners cover it once") {
  for (const char* placements : {"shard(0),shard(1)", "strided(0,3),shard(0)", "replicate,shard(1)",
                                 "shard(1),replicate", "flat,replicate", "flat,flat",
                                 "shard(0),flat", "replicate,replicate", "shard(1),shard(1)"}) {
    for (const Shape& shape : {Shape{7, 5}, Shape{1, 1}, Shape{0, 3}, Shape{12, 6}}) {
      INFO(placements << " of " << shape.to_string());
      const Layout layout(Mesh::parse("a=2,b=3"), Placement::parse_list(placements));
      const CoverageReport all = check_coverage(shape, all_chunks(layout, shape));
      CHECK(all.complete);
      std::int64_t owned = 0;
      for (std::int64_t rank = 0; rank < 6; ++rank) {
        if (!layout.is_owner(rank)) continue;
        for (const Chunk& chunk : layout.chunks_of(rank, shape)) owned += chunk.numel();
      }
      CHECK(owned == shape.numel());
    }
  }
}

TEST_CASE("zero-size shards stand at the end of the dim") {
  const Layout layout(Mesh::one_dim(7), {Placement::shard(0)});
  CHECK(layout.chunks_of(1, {2}) == std::vector{Chunk::whole_of({{1}, {1}})});
  for (std::int64_t rank = 2; rank < 7; ++rank)
    CHECK(layout.chunks_of(rank, {2}) == std::vector{Chunk::whole_of({{2}, {0}})});
}

TEST_CASE("flat splits the ravel") {
  const Layout layout(Mesh::one_dim(4), {Placement::flat()});
  CHECK(layout.chunks_of(1, {3, 3}) == std::vector{Chunk{{{0, 0}, {3, 3}}, 3, 6}});
  CHECK(layout.chunks_of(3, {3, 3}) == std::vector{Chunk{{{0, 0}, {3, 3}}, 9, 9}});
}

TEST_CASE("layouts that mean nothing are refused") {
  check_refused(Code::kInvalidArgument, "a=2", "shard(1)", {4});
  check_refused(Code::kInvalidArgument, "a=2", "shard(0)", {});
  check_refused(Code::kInvalidArgument, "a=2", "shard(0),shard(0)", {4});
  check_refused(Code::kUnsupported, "a=2,b=3", "strided(0,2),shard(0)", {4});
  check_refused(Code::kUnsupported, "a=2,b=3", "strided(0,3),shard(1)", {4, 4});
  check_refused(Code::kUnsupported, "a=2", "strided(0,2)", {4});
  check_refused(Code::kUnsupported, "a=2,b=3", "flat,shard(0)", {4});
  CHECK_THROWS_AS(Layout(Mesh::one_dim(2), {Placement{Placement::Kind::kPartial}}), Error);
}

}  // namespace layout_test
