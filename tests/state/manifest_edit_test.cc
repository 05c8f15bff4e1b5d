// Derived tensors against brute force: every element of a new tensor must be the element of the
// source that the pieces say, whatever chunks and sources the source tensor has. Elements are
// numbers; a chunk's sources are read by a few lines that know only what manifest.h says of them.
#include <tessera/base/error.h>
#include <tessera/state/manifest_edit.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <random>

namespace manifest_edit_test {

using namespace tessera;

namespace {

using Number = std::uint32_t;
using Numbers = std::vector<Number>;

/// A manifest over one imaginary file of Numbers; coded items are stored as they decode.
struct World {
  Manifest manifest;
  Bytes file;
  std::mt19937 random{1};

  std::int64_t pick(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  }
};

std::vector<std::int64_t> unravel(std::int64_t at, const Shape& shape) {
  std::vector<std::int64_t> index(static_cast<std::size_t>(shape.rank()));
  for (int d = shape.rank(); d-- > 0;) {
    index[static_cast<std::size_t>(d)] = at % shape[d];
    at /= shape[d];
  }
  return index;
}

std::int64_t ravel(const std::vector<std::int64_t>& index, const Shape& shape) {
  std::int64_t at = 0;
  for (int d = 0; d < shape.rank(); ++d) at = at * shape[d] + index[static_cast<std::size_t>(d)];
  return at;
}

Number at_byte(const Bytes& bytes, std::uint64_t offset) {
  REQUIRE(offset + sizeof(Number) <= bytes.size());
  return load_le<Number>(bytes.data() + offset);
}

/// Element number `at` of the chunk's own ravel (its range's), by its source.
Number read_element(const World& world, const Chunk& chunk, const Source& source, std::int64_t at) {
  const Manifest& m = world.manifest;
  const std::vector<std::int64_t>* strides = nullptr;
  std::uint64_t base = source.offset;
  std::uint64_t limit = source.offset + source.length;
  const Bytes* bytes = &world.file;
  if (source.kind == Source::Kind::kExtent && source.side != 0)
    strides = &m.strides[source.side - 1];
  if (source.kind == Source::Kind::kCoded && source.view != 0) {
    const CodedView& view = m.views.at(source.side);
    base += static_cast<std::uint64_t>(view.first_element) * sizeof(Number);
    if (!view.strides.empty()) strides = &view.strides;
  }
  if (source.kind == Source::Kind::kInline) {
    bytes = &m.inline_bytes.at(source.side);
    base = 0;
    limit = bytes->size();
  }
  if (source.kind == Source::Kind::kFill) return at_byte(m.inline_bytes.at(source.side), 0);
  std::int64_t element = at;
  if (strides != nullptr) {
    const auto index = unravel(at, chunk.box.shape);
    element = std::inner_product(index.begin(), index.end(), strides->begin(), std::int64_t{0});
  }
  const std::uint64_t offset = base + static_cast<std::uint64_t>(element) * sizeof(Number);
  REQUIRE(offset + sizeof(Number) <= limit);
  return at_byte(*bytes, offset);
}

/// All elements; each must be held at least once, and replicas must agree.
Numbers read_tensor(const World& world, std::uint32_t index) {
  const StoredTensor& tensor = world.manifest.tensors[index];
  const Shape& shape = tensor.spec.shape;
  Numbers values(static_cast<std::size_t>(shape.numel()));
  std::vector<bool> seen(values.size());
  for (std::uint32_t c = 0; c < tensor.chunk_count; ++c) {
    const Chunk chunk = world.manifest.chunk(tensor, c);
    for (std::int64_t at = 0; at < chunk.numel(); ++at) {
      auto place = unravel(at + chunk.flat_begin, chunk.box.shape);
      for (std::size_t d = 0; d < place.size(); ++d) place[d] += chunk.box.origin[d];
      const auto to = static_cast<std::size_t>(ravel(place, shape));
      const Number value = read_element(world, chunk, world.manifest.source(tensor, c), at);
      if (seen[to]) REQUIRE(values[to] == value);
      values[to] = value;
      seen[to] = true;
    }
  }
  REQUIRE(std::all_of(seen.begin(), seen.end(), [](bool s) { return s; }));
  return values;
}

void append(Bytes& file, Number value) {
  file.resize(file.size() + sizeof value);
  store_le(file.data() + file.size() - sizeof value, value);
}

/// Stores one chunk of `values` (the tensor's ravel) by a source of a random kind.
void store_chunk(World& world, const Chunk& chunk, const Shape& shape, const Numbers& values) {
  Numbers mine;
  for (std::int64_t at = chunk.flat_begin; at < chunk.flat_end; ++at) {
    auto place = unravel(at, chunk.box.shape);
    for (std::size_t d = 0; d < place.size(); ++d) place[d] += chunk.box.origin[d];
    mine.push_back(values[static_cast<std::size_t>(ravel(place, shape))]);
  }
  Source source;
  const std::int64_t kind = world.pick(0, 3);
  if (kind == 0 && chunk.is_whole_box() && chunk.box.rank() >= 1) {  // column-major extent
    std::vector<std::int64_t> strides(static_cast<std::size_t>(chunk.box.rank()));
    std::int64_t step = 1;
    for (std::size_t d = 0; d < strides.size(); ++d) {
      strides[d] = step;
      step *= chunk.box.shape[static_cast<int>(d)];
    }
    Numbers turned(mine.size());
    for (std::size_t i = 0; i < mine.size(); ++i) {
      const auto index = unravel(static_cast<std::int64_t>(i), chunk.box.shape);
      turned[static_cast<std::size_t>(std::inner_product(
          index.begin(), index.end(), strides.begin(), std::int64_t{0}))] = mine[i];
    }
    mine = turned;
    source.kind = Source::Kind::kExtent;
    world.manifest.strides.push_back(strides);
    source.side = static_cast<std::uint32_t>(world.manifest.strides.size());
  } else if (kind == 1) {
    source.kind = Source::Kind::kInline;
    Bytes bytes;
    for (const Number value : mine) append(bytes, value);
    source.side = static_cast<std::uint32_t>(world.manifest.inline_bytes.size());
    world.manifest.inline_bytes.push_back(bytes);
  } else if (kind == 2) {
    source.kind = Source::Kind::kCoded;
  } else {
    source.kind = Source::Kind::kExtent;
  }
  if (source.kind != Source::Kind::kInline) {
    append(world.file, 0xdeadbeef);  // what lies around it must never be read
    source.offset = world.file.size();
    source.length = mine.size() * sizeof(Number);
    for (const Number value : mine) append(world.file, value);
  }
  world.manifest.chunks.add(chunk, source);
}

/// Random chunks: row blocks, a grid along the last dim, or flat ranges; some stored twice.
std::vector<Chunk> random_chunks(World& world, const Shape& shape) {
  const Box whole = Box::whole(shape);
  std::vector<Chunk> chunks;
  const std::int64_t way = shape.rank() == 0 ? 3 : world.pick(0, 3);
  if (way == 2) {  // flat ranges
    std::int64_t at = 0;
    while (at < shape.numel()) {
      const std::int64_t end = std::min(shape.numel(), at + world.pick(1, shape.numel()));
      chunks.push_back({whole, at, end});
      at = end;
    }
  } else if (way < 2) {
    const int dim = way == 0 ? 0 : shape.rank() - 1;
    for (std::int64_t at = 0; at < shape[dim];) {
      Box box = whole;
      box.origin[static_cast<std::size_t>(dim)] = at;
      box.shape[dim] = std::min(shape[dim] - at, world.pick(1, shape[dim]));
      at += box.shape[dim];
      chunks.push_back(Chunk::whole_of(box));
    }
  } else {
    chunks.push_back(Chunk::whole_of(whole));
  }
  if (world.pick(0, 3) == 0) chunks.push_back(chunks.front());
  return chunks;
}

std::uint32_t random_tensor(World& world, const Shape& shape, const std::string& name) {
  Numbers values(static_cast<std::size_t>(shape.numel()));
  for (Number& value : values) value = static_cast<Number>(world.random());
  StoredTensor tensor;
  tensor.name = name;
  tensor.spec = {DType::kFloat32, shape};
  tensor.first_chunk = world.manifest.chunks.size();
  for (const Chunk& chunk : random_chunks(world, shape)) {
    store_chunk(world, chunk, shape, values);
    ++tensor.chunk_count;
  }
  world.manifest.tensors.push_back(tensor);
  const auto index = static_cast<std::uint32_t>(world.manifest.tensors.size() - 1);
  REQUIRE(read_tensor(world, index) == values);
  return index;
}

/// What the pieces mean, element by element.
Numbers by_hand(const World& world, const Shape& shape, const std::vector<TensorPiece>& pieces) {
  Numbers out(static_cast<std::size_t>(shape.numel()), 0xabababab);
  for (const TensorPiece& piece : pieces) {
    if (piece.source == kNoTensor) {
      for (std::int64_t i = 0; i < piece.box.numel(); ++i) {
        auto to = unravel(i, piece.box.shape);
        for (std::size_t d = 0; d < to.size(); ++d) to[d] += piece.origin[d];
        out[static_cast<std::size_t>(ravel(to, shape))] = 0;
      }
      continue;
    }
    const Numbers source = read_tensor(world, piece.source);
    const Shape& from_shape = world.manifest.tensors[piece.source].spec.shape;
    for (std::int64_t i = 0; i < piece.box.numel(); ++i) {
      const auto number = unravel(i, piece.box.shape);
      std::vector<std::int64_t> from(number.size());
      for (std::size_t d = 0; d < number.size(); ++d)
        from[d] = piece.box.origin[d] + number[d] * (piece.steps.empty() ? 1 : piece.steps[d]);
      std::vector<std::int64_t> to(piece.origin);
      for (std::size_t d = 0; d < to.size(); ++d) {
        const int dim = piece.dims.empty() ? static_cast<int>(d) : piece.dims[d];
        if (dim >= 0) to[d] += number[static_cast<std::size_t>(dim)];
      }
      out[static_cast<std::size_t>(ravel(to, shape))] =
          source[static_cast<std::size_t>(ravel(from, from_shape))];
    }
  }
  return out;
}

void check_equal(World& world, const Shape& shape, const std::vector<TensorPiece>& pieces) {
  const Numbers expected = by_hand(world, shape, pieces);
  const std::uint32_t made = build_tensor(world.manifest, "made", shape, pieces);
  CHECK(world.manifest.tensors[made].spec.shape == shape);
  CHECK(read_tensor(world, made) == expected);
}

TensorPiece rows(std::uint32_t source, const Manifest& manifest, std::int64_t begin,
                 std::int64_t count, std::int64_t to, std::int64_t step = 1) {
  TensorPiece piece = whole_piece(manifest, source);
  const auto rank = static_cast<std::size_t>(piece.box.rank());
  piece.box.origin[0] = begin;
  piece.box.shape[0] = count;
  piece.origin.assign(rank, 0);
  piece.origin[0] = to;
  piece.steps.assign(rank, 1);
  piece.steps[0] = step;
  return piece;
}

}  // namespace

TEST_CASE("rows of several tensors joined and cut again are what brute force says") {
  for (unsigned seed = 0; seed < 150; ++seed) {
    INFO("seed " << seed);
    World world;
    world.random.seed(seed);
    const std::int64_t columns = world.pick(1, 5);
    const std::int64_t a_rows = world.pick(1, 7);
    const std::int64_t b_rows = world.pick(1, 7);
    const std::uint32_t a = random_tensor(world, {a_rows, columns}, "a");
    const std::uint32_t b = random_tensor(world, {b_rows, columns}, "b");
    const std::int64_t zeros = world.pick(0, 3);
    std::vector<TensorPiece> joined{rows(b, world.manifest, 0, b_rows, 0),
                                    rows(a, world.manifest, 0, a_rows, b_rows)};
    TensorPiece padding;
    padding.box = Box::whole({zeros, columns});
    padding.origin = {a_rows + b_rows, 0};
    joined.push_back(padding);
    const Shape shape{a_rows + b_rows + zeros, columns};
    check_equal(world, shape, joined);
    const auto fused = static_cast<std::uint32_t>(world.manifest.tensors.size() - 1);
    // Derived from a derived one, with a step: every second row.
    const std::int64_t begin = world.pick(0, shape[0] - 1);
    const std::int64_t count = world.pick(1, (shape[0] - begin + 1) / 2);
    check_equal(world, {count, columns}, {rows(fused, world.manifest, begin, count, 0, 2)});
  }
}

TEST_CASE("boxes with steps and turned dims are what brute force says") {
  for (unsigned seed = 0; seed < 150; ++seed) {
    INFO("seed " << seed);
    World world;
    world.random.seed(1000 + seed);
    const Shape shape{world.pick(1, 5), world.pick(1, 5), world.pick(1, 5)};
    const std::uint32_t source = random_tensor(world, shape, "source");
    TensorPiece piece = whole_piece(world.manifest, source);
    for (int d = 0; d < 3; ++d) {
      const auto i = static_cast<std::size_t>(d);
      piece.box.origin[i] = world.pick(0, shape[d] - 1);
      piece.steps.push_back(world.pick(1, 3));
      const std::int64_t most = (shape[d] - 1 - piece.box.origin[i]) / piece.steps[i] + 1;
      piece.box.shape[d] = world.pick(1, most);
    }
    piece.dims = {0, 1, 2};
    std::shuffle(piece.dims.begin(), piece.dims.end(), world.random);
    piece.dims.insert(piece.dims.begin() + world.pick(0, 3), -1);
    std::vector<std::int64_t> extents;
    for (const int d : piece.dims) extents.push_back(d < 0 ? 1 : piece.box.shape[d]);
    piece.origin.assign(4, 0);
    check_equal(world, Shape(extents), {piece});
  }
}

TEST_CASE("matrices stacked along a new dim come apart as they went in") {
  for (unsigned seed = 0; seed < 40; ++seed) {
    INFO("seed " << seed);
    World world;
    world.random.seed(2000 + seed);
    const Shape shape{world.pick(1, 4), world.pick(1, 4)};
    std::vector<TensorPiece> pieces;
    std::vector<std::uint32_t> experts;
    for (std::int64_t e = 0; e < 3; ++e) {
      experts.push_back(random_tensor(world, shape, "expert"));
      TensorPiece piece = whole_piece(world.manifest, experts.back());
      piece.dims = {-1, 0, 1};
      piece.origin = {e, 0, 0};
      pieces.push_back(piece);
    }
    check_equal(world, {3, shape[0], shape[1]}, pieces);
    const auto stacked = static_cast<std::uint32_t>(world.manifest.tensors.size() - 1);
    for (std::int64_t e = 0; e < 3; ++e) {
      TensorPiece piece = whole_piece(world.manifest, stacked);
      piece.box.origin[0] = e;
      piece.box.shape[0] = 1;
      piece.dims = {1, 2};
      const std::uint32_t apart = build_tensor(world.manifest, "apart", shape, {{piece}});
      CHECK(read_tensor(world, apart) == read_tensor(world, experts[static_cast<std::size_t>(e)]));
    }
  }
}

TEST_CASE("a tensor taken whole keeps its chunks as they are") {
  World world;
  Manifest& m = world.manifest;
  StoredTensor packed;
  packed.name = "packed";
  packed.spec = {DType::kFloat4, {3, 4}};
  packed.first_chunk = 0;
  packed.chunk_count = 1;
  Source pending;
  pending.length = 6;
  m.chunks.add(Chunk::whole_of(Box::whole({3, 4})), pending);
  m.tensors.push_back(packed);
  const std::uint32_t made = build_tensor(m, "other", {3, 4}, {{whole_piece(m, 0)}});
  CHECK(m.source(m.tensors[made], 0).kind == Source::Kind::kPending);
  CHECK(m.tensors[made].spec.dtype == DType::kFloat4);
}

TEST_CASE("what cannot be cut or joined is refused by name") {
  World world;
  Manifest& m = world.manifest;
  const auto add = [&m](const std::string& name, DType dtype, const Shape& shape) {
    StoredTensor tensor;
    tensor.name = name;
    tensor.spec = {dtype, shape};
    tensor.first_chunk = m.chunks.size();
    tensor.chunk_count = 1;
    Source source;
    source.kind = Source::Kind::kExtent;
    source.length = static_cast<std::uint64_t>(tensor.spec.size_bytes());
    m.chunks.add(Chunk::whole_of(Box::whole(shape)), source);
    m.tensors.push_back(tensor);
    return static_cast<std::uint32_t>(m.tensors.size() - 1);
  };
  const auto code_of = [&m](const Shape& shape, const std::vector<TensorPiece>& pieces,
                            const std::string& word) {
    try {
      build_tensor(m, "made", shape, pieces);
    } catch (const Error& error) {
      CHECK_THAT(error.what(), Catch::Contains(word));
      return error.code();
    }
    FAIL("nothing was thrown");
    return Code::kInternal;
  };
  const std::uint32_t packed = add("w.packed", DType::kFloat4, {4, 4});
  CHECK(code_of({2, 4}, {rows(packed, m, 0, 2, 0)}, "w.packed") == Code::kUnsupported);
  const std::uint32_t quantized = add("w.quantized", DType::kQInt8, {4, 4});
  CHECK(code_of({2, 4}, {rows(quantized, m, 0, 2, 0)}, "w.quantized") == Code::kUnsupported);
  const std::uint32_t single = add("w.single", DType::kFloat32, {4, 4});
  const std::uint32_t half = add("w.half", DType::kFloat16, {4, 4});
  CHECK(code_of({8, 4}, {rows(single, m, 0, 4, 0), rows(half, m, 0, 4, 4)}, "w.half") ==
        Code::kInvalidArgument);
  CHECK(code_of({4, 4}, {rows(single, m, 1, 4, 0)}, "cannot take") == Code::kInvalidArgument);
  CHECK(code_of({3, 4}, {rows(single, m, 0, 4, 0)}, "cannot take") == Code::kInvalidArgument);
  CHECK(code_of({4, 4}, {rows(single, m, 0, 4, 1)}, "cannot take") == Code::kInvalidArgument);
}

}  // namespace manifest_edit_test
