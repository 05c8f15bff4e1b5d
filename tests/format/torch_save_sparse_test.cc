// Sparse tensors become dense: every layout against values worked out by hand, and parts that do
// not fit together.
#include <tessera/base/error.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <string>
#include <vector>

#include "lib/format/torch_files/sparse.h"
#include "tests/support/archive_gather.h"

namespace tessera::torch_save_sparse_test {
namespace {

using Layout = ArchiveTensor::Layout;

/// An archive made of parts in memory.
struct Scene {
  std::string data;
  TorchArchive archive;

  template <class T>
  std::uint32_t part(DType dtype, Shape shape, const std::vector<T>& values) {
    ArchiveStorage storage;
    storage.offset = data.size();
    storage.size_bytes = values.size() * sizeof(T);
    storage.located = true;
    data.append(reinterpret_cast<const char*>(values.data()), storage.size_bytes);
    ArchiveTensor tensor;
    tensor.dtype = dtype;
    tensor.strides = shape.strides();
    tensor.shape = std::move(shape);
    tensor.storage = static_cast<std::uint32_t>(archive.storages.size());
    archive.storages.push_back(storage);
    archive.tensors.push_back(tensor);
    return static_cast<std::uint32_t>(archive.tensors.size() - 1);
  }
  std::uint32_t ints(Shape shape, const std::vector<std::int64_t>& v) {
    return part(DType::kInt64, std::move(shape), v);
  }
  std::uint32_t floats(Shape shape, const std::vector<float>& v) {
    return part(DType::kFloat32, std::move(shape), v);
  }

  std::vector<float> dense(Layout layout, Shape shape, std::vector<std::uint32_t> parts,
                           std::uint64_t limit = 1 << 20) {
    ArchiveTensor tensor;
    tensor.layout = layout;
    tensor.dtype = archive.tensors[parts.back()].dtype;
    tensor.shape = std::move(shape);
    tensor.parts = std::move(parts);
    archive.tensors.push_back(tensor);
    const test::ByteFile file(data);
    const Bytes bytes =
        densify(ByteWindow::whole(file), archive,
                static_cast<std::uint32_t>(archive.tensors.size() - 1), limit, true);
    std::vector<float> out(bytes.size() / sizeof(float));
    if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }
};

using Floats = std::vector<float>;

template <class F>
Code code_of(F&& f) {
  return test::code_of(f);
}

}  // namespace

TEST_CASE("coo: entries land at their indices, repeated ones add up") {
  Scene s;
  CHECK(s.dense(Layout::kSparseCoo, Shape{2, 3},
                {s.ints({2, 3}, {0, 1, 1, 2, 0, 0}), s.floats({3}, {3, 4, 5})}) ==
        Floats{0, 0, 3, 9, 0, 0});
  CHECK(s.dense(Layout::kSparseCoo, Shape{3, 2},
                {s.ints({1, 2}, {2, 0}), s.floats({2, 2}, {1, 2, 3, 4})}) ==
        Floats{3, 4, 0, 0, 1, 2});  // one sparse, one dense dim
  CHECK(s.dense(Layout::kSparseCoo, Shape{}, {s.ints({0, 2}, {}), s.floats({2}, {1, 2})}) ==
        Floats{3});
  CHECK(s.dense(Layout::kSparseCoo, Shape{2, 0}, {s.ints({1, 1}, {1}), s.floats({1, 0}, {})})
            .empty());
  CHECK(s.dense(Layout::kSparseCoo, Shape{2}, {s.ints({1, 0}, {}), s.floats({0}, {})}) ==
        Floats{0, 0});
}

TEST_CASE("csr and csc: rows or columns are compressed, batches follow each other") {
  Scene s;
  const auto starts = s.ints({3}, {0, 1, 3}), plain = s.ints({3}, {2, 0, 1}),
             values = s.floats({3}, {1, 2, 3});
  CHECK(s.dense(Layout::kSparseCsr, Shape{2, 3}, {starts, plain, values}) ==
        Floats{0, 0, 1, 2, 3, 0});
  CHECK(s.dense(Layout::kSparseCsc, Shape{3, 2}, {starts, plain, values}) ==
        Floats{0, 2, 0, 3, 1, 0});
  CHECK(s.dense(Layout::kSparseCsr, Shape{2, 1, 2},
                {s.ints({2, 2}, {0, 1, 0, 1}), s.ints({2, 1}, {1, 0}), s.floats({2, 1}, {7, 8})}) ==
        Floats{0, 7, 8, 0});
  const auto narrow = s.part<std::int32_t>(DType::kInt32, {2}, {0, 1});
  const auto where = s.part<std::int32_t>(DType::kInt32, {1}, {1});
  CHECK(s.dense(Layout::kSparseCsr, Shape{1, 2, 2}, {narrow, where, s.floats({1, 2}, {5, 6})}) ==
        Floats{0, 0, 5, 6});
}

TEST_CASE("bsr and bsc: blocks of values") {
  Scene s;
  const auto values = s.floats({2, 1, 2}, {1, 2, 3, 4});
  CHECK(s.dense(Layout::kSparseBsr, Shape{2, 4},
                {s.ints({3}, {0, 1, 2}), s.ints({2}, {1, 0}), values}) ==
        Floats{0, 0, 1, 2, 3, 4, 0, 0});
  CHECK(s.dense(Layout::kSparseBsc, Shape{2, 4},
                {s.ints({3}, {0, 1, 2}), s.ints({2}, {1, 0}), values}) ==
        Floats{0, 0, 3, 4, 1, 2, 0, 0});
}

TEST_CASE("parts that do not fit together are corrupt") {
  Scene s;
  const auto values = s.floats({2}, {1, 2});
  const auto coo = [&](Shape shape, std::uint32_t indices) {
    return code_of([&] { s.dense(Layout::kSparseCoo, shape, {indices, values}); });
  };
  CHECK(coo({3}, s.ints({1, 2}, {0, 3})) == Code::kCorrupt);
  CHECK(coo({3}, s.ints({1, 2}, {0, -1})) == Code::kCorrupt);
  CHECK(coo({3}, s.ints({1, 3}, {0, 1, 2})) == Code::kCorrupt);
  CHECK(coo({3}, s.ints({2, 2}, {0, 1, 0, 1})) == Code::kCorrupt);
  CHECK(coo({3, 2}, s.ints({1, 2}, {0, 1})) == Code::kCorrupt);
  CHECK(coo({3}, s.floats({1, 2}, {0, 1})) == Code::kCorrupt);
  const auto csr = [&](const std::vector<std::int64_t>& starts,
                       const std::vector<std::int64_t>& plain) {
    const auto a = s.ints({static_cast<std::int64_t>(starts.size())}, starts);
    const auto b = s.ints({static_cast<std::int64_t>(plain.size())}, plain);
    return code_of([&] { s.dense(Layout::kSparseCsr, Shape{2, 2}, {a, b, values}); });
  };
  CHECK(csr({0, 1, 2}, {0, 1}) == Code::kOk);
  CHECK(csr({0, 2, 1}, {0, 1}) == Code::kCorrupt);
  CHECK(csr({0, 1, 3}, {0, 1}) == Code::kCorrupt);
  CHECK(csr({-1, 1, 2}, {0, 1}) == Code::kCorrupt);
  CHECK(csr({0, 2}, {0, 1}) == Code::kCorrupt);
  CHECK(csr({0, 1, 2}, {0, 2}) == Code::kCorrupt);
  CHECK(csr({0, 1, 2}, {0}) == Code::kCorrupt);
}

TEST_CASE("the dense form is bounded before it is made") {
  Scene s;
  const auto indices = s.ints({1, 1}, {0});
  const auto values = s.floats({1}, {1});
  CHECK(code_of([&] {
          s.dense(Layout::kSparseCoo, Shape{INT64_C(1) << 40}, {indices, values});
        }) == Code::kResourceExhausted);
  CHECK(code_of([&] {
          s.dense(Layout::kSparseCoo, Shape{4}, {indices, values}, 15);
        }) == Code::kResourceExhausted);
  CHECK(code_of([&] {
          s.dense(Layout::kSparseCoo, Shape{4}, {indices, values}, 16);
        }) == Code::kOk);
}

}  // namespace tessera::torch_save_sparse_test
