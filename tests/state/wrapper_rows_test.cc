// State in blocks of rows: what is cut at any rows that blocks allow joins to the whole again.
#include "lib/state/wrapper_rows.h"

#include <tessera/base/error.h>

#include <catch2/catch.hpp>
#include <random>

namespace wrapper_rows_test {

using namespace tessera;

namespace {

Value global(const std::string& module, const std::string& name) {
  OpaqueObject object;
  object.module = module;
  object.name = name;
  return Value::opaque(std::move(object));
}

Value tuple(ValueList items) { return Value::list(std::move(items), Value::Kind::kTuple); }

/// A wrapper of `rows` x `width` float32 whose tensors are `first` and the next ones.
Value state(const std::string& cls, std::int64_t rows, std::int64_t width, std::uint32_t first = 0,
            std::int64_t block = 256) {
  const Value type = global("torchao.optim", cls);
  const Value size = tuple({Value::integer(rows), Value::integer(width)});
  ValueDict attributes{{Value::string("codes"), Value::tensor(first)},
                       {Value::string("scale"), Value::tensor(first + 1)}};
  if (cls != "OptimStateFp8")
    attributes.emplace_back(Value::string("qmap"), Value::tensor(first + 2));
  attributes.emplace_back(Value::string("block_size"), Value::integer(block));
  if (cls == "OptimState4bit")
    attributes.emplace_back(Value::string("_shape"), Value::size({rows, width}));
  OpaqueObject object;
  object.how = OpaqueObject::How::kReduce;
  object.module = "torch._tensor";
  object.name = "_rebuild_from_type_v2";
  object.arguments = tuple({global("torch._utils", "_rebuild_wrapper_subclass"), type,
                            tuple({type, Value::dtype(DType::kFloat32), size}),
                            Value::dict(std::move(attributes))});
  return Value::opaque(std::move(object));
}

SpecOf specs(const std::string& cls, std::int64_t rows, std::int64_t width, std::int64_t block,
             std::uint32_t first = 0) {
  return [=](std::uint32_t tensor) -> TensorSpec {
    const std::int64_t numel = rows * width;
    switch (tensor - first) {
      case 0:
        if (cls == "OptimState4bit") return {DType::kUInt8, Shape{numel / 2}};
        return {DType::kUInt8, Shape{rows, width}};
      case 1:
        return {DType::kFloat32, Shape{numel / block}};
      default:
        return {DType::kFloat32, Shape{256}};
    }
  };
}

bool always(std::size_t, std::uint32_t, std::uint32_t) { return true; }

}  // namespace

TEST_CASE("rows of state in blocks join to the whole, whatever rows they were cut at") {
  std::mt19937 random(7);
  for (const std::string cls : {"OptimState8bit", "OptimState4bit", "OptimStateFp8"}) {
    for (int round = 0; round < 40; ++round) {
      const std::int64_t block = std::int64_t{1} << (random() % 4 + 4);
      const std::int64_t width = block / (std::int64_t{1} << (random() % 3));
      const std::int64_t rows = (random() % 12 + 1) * std::max<std::int64_t>(1, block / width);
      const auto whole =
          row_wrapper(state(cls, rows, width, 0, block), specs(cls, rows, width, block));
      REQUIRE(whole);
      std::vector<WrapperShard> shards;
      std::int64_t begin = 0;
      for (std::int64_t row = 1; row <= rows; ++row) {
        // Blocks alone say where a cut may go.
        CHECK(whole->can_cut({begin, row}) == (row * width % block == 0));
        if (row < rows && (row * width % block != 0 || random() % 2 == 0)) continue;
        const std::int64_t count = row - begin;
        shards.push_back(
            {{begin, row}, state(cls, count, width, 0, block), specs(cls, count, width, block)});
        begin = row;
      }
      const auto joined = join_rows(shards, {DType::kFloat32, Shape{rows, width}}, always);
      REQUIRE(joined);
      CHECK(joined->value == state(cls, rows, width, 0, block));
      for (std::uint32_t part = 0; part < joined->parts.size(); ++part)
        CHECK(joined->parts[part].spec == specs(cls, rows, width, block)(part));
    }
  }
}

TEST_CASE("shards that do not fit each other are not joined") {
  const TensorSpec whole{DType::kFloat32, Shape{8, 64}};
  const auto shard = [](std::int64_t begin, std::int64_t end, const std::string& cls,
                        std::int64_t block) {
    return WrapperShard{
        {begin, end}, state(cls, end - begin, 64, 0, block), specs(cls, end - begin, 64, block)};
  };
  const std::string cls = "OptimState8bit";
  CHECK(join_rows(std::vector{shard(0, 4, cls, 64), shard(4, 8, cls, 64)}, whole, always));
  // A hole, rows that are missing, another block, another class, another table.
  CHECK_FALSE(join_rows(std::vector{shard(0, 4, cls, 64), shard(5, 8, cls, 64)}, whole, always));
  CHECK_FALSE(join_rows(std::vector{shard(0, 4, cls, 64)}, whole, always));
  CHECK_FALSE(join_rows(std::vector{shard(0, 4, cls, 64), shard(4, 8, cls, 128)}, whole, always));
  CHECK_FALSE(join_rows(std::vector{shard(0, 4, cls, 64), shard(4, 8, "OptimStateFp8", 64)}, whole,
                        always));
  CHECK_FALSE(join_rows(std::vector{shard(0, 4, cls, 64), shard(4, 8, cls, 64)}, whole,
                        [](std::size_t, std::uint32_t, std::uint32_t) { return false; }));
  CHECK_FALSE(row_wrapper(state("Int8Tensor", 8, 64), specs("Int8Tensor", 8, 64, 64)));
}

}  // namespace wrapper_rows_test
