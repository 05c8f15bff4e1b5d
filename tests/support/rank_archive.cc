#include "tests/support/rank_archive.h"

#include <tessera/storage/checksum.h>

#include <cstring>

namespace tessera::testing {
namespace {

ValueDict items_of(std::vector<std::pair<std::string, Value>> items) {
  ValueDict out;
  for (auto& [key, value] : items) out.emplace_back(Value::string(key), std::move(value));
  return out;
}

}  // namespace

Value RankArchive::add(ArchiveWriteTensor tensor, Bytes bytes) {
  tensor.storage = static_cast<std::uint32_t>(tensors_.size());
  tensors_.push_back(tensor);
  data_.push_back(std::move(bytes));
  return Value::tensor(tensor.storage);
}

Value RankArchive::tensor(const Shape& shape, const std::vector<float>& values) {
  ArchiveWriteTensor made;
  made.spec = {DType::kFloat32, shape};
  Bytes bytes(values.size() * sizeof(float));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return add(std::move(made), std::move(bytes));
}

Value RankArchive::half(const Shape& shape, const std::vector<float>& values) {
  ArchiveWriteTensor made;
  made.spec = {DType::kBFloat16, shape};
  Bytes bytes(values.size() * 2);
  for (std::size_t i = 0; i < values.size(); ++i)
    std::memcpy(bytes.data() + 2 * i, reinterpret_cast<const char*>(&values[i]) + 2, 2);
  return add(std::move(made), std::move(bytes));
}

Bytes RankArchive::render(const Value& root, const std::string& prefix) const {
  const TorchArchiveLayout layout(root, tensors_, prefix);
  const auto crc = [&](std::uint32_t storage) { return crc32(0, data_[storage]); };
  Bytes out;
  for (std::size_t p = 0; p < layout.pieces().size(); ++p) {
    const auto& piece = layout.pieces()[p];
    const Bytes part = piece.kind == TorchArchiveLayout::Piece::Kind::kStorage
                           ? data_[piece.storage]
                           : layout.render(p, crc);
    out.insert(out.end(), part.begin(), part.end());
  }
  return out;
}

Value text(std::string value) { return Value::string(std::move(value)); }
Value number(std::int64_t value) { return Value::integer(value); }
Value dict(std::vector<std::pair<std::string, Value>> items) {
  return Value::dict(items_of(std::move(items)));
}
Value argument_namespace(std::vector<std::pair<std::string, Value>> items) {
  OpaqueObject object;
  object.how = OpaqueObject::How::kNewObj;
  object.module = "argparse";
  object.name = "Namespace";
  object.arguments = Value::list({}, Value::Kind::kTuple);
  object.state = dict(std::move(items));
  object.has_state = true;
  return Value::opaque(std::move(object));
}

}  // namespace tessera::testing
