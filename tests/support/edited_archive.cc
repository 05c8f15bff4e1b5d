#include "tests/support/edited_archive.h"

#include <tessera/base/error.h>

#include <algorithm>

#include "lib/state/edit/tensor_remapper.h"

namespace tessera::testing {
namespace {

using Change = std::function<void(ValueDict&, const Value& key)>;

/// The tree with `change` made in the dict that holds the last key.
Value changed(const Value& value, std::span<const Value> keys, const Change& change) {
  if (value.kind() == Value::Kind::kList) {
    ValueList items = value.as_list();
    Value& item = items.at(static_cast<std::size_t>(keys[0].as_int()));
    item = changed(item, keys.subspan(1), change);
    return Value::list(std::move(items));
  }
  TESSERA_CHECK(value.is_dict());
  ValueDict entries = value.as_dict();
  if (keys.size() == 1) {
    change(entries, keys[0]);
  } else {
    for (auto& [key, item] : entries)
      if (key == keys[0]) item = changed(item, keys.subspan(1), change);
  }
  return value.kind() == Value::Kind::kOrderedDict
             ? Value::ordered_dict(std::move(entries), value.attributes())
             : Value::dict(std::move(entries));
}

}  // namespace

EditedArchive::EditedArchive(const Directory& directory, const std::string& name) {
  const auto file = directory.open(name);
  const ByteWindow window = ByteWindow::whole(*file);
  archive_ = open_torch_archive(window);
  locate_storages(window, archive_);
  for (const ArchiveTensor& tensor : archive_.tensors) {
    ArchiveWriteTensor copy;
    copy.spec = {tensor.dtype, tensor.shape};
    copy.is_parameter = tensor.is_parameter;
    copy.requires_grad = tensor.requires_grad;
    const auto item = static_cast<std::uint64_t>(element_bytes(tensor.dtype));
    tensors_.add(copy, window.read(archive_.storages[tensor.storage].offset +
                                       static_cast<std::uint64_t>(tensor.storage_offset) * item,
                                   static_cast<std::uint64_t>(copy.spec.size_bytes())));
  }
}

Value EditedArchive::at(const Keys& keys) const {
  Value value = archive_.root;
  for (const Value& key : keys) {
    if (value.kind() == Value::Kind::kList) {
      value = Value(value.as_list().at(static_cast<std::size_t>(key.as_int())));
      continue;
    }
    const Value* found = nullptr;
    for (const auto& [name, item] : value.as_dict())
      if (name == key) found = &item;
    TESSERA_CHECK(found);
    value = Value(*found);
  }
  return value;
}

void EditedArchive::set(const Keys& keys, Value value) {
  archive_.root = changed(archive_.root, keys, [&](ValueDict& entries, const Value& key) {
    for (auto& [name, item] : entries)
      if (name == key) {
        item = value;
        return;
      }
    entries.emplace_back(key, value);
  });
}

void EditedArchive::erase(const Keys& keys) {
  archive_.root = changed(archive_.root, keys, [](ValueDict& entries, const Value& key) {
    TESSERA_CHECK(std::erase_if(entries, [&](const auto& entry) { return entry.first == key; }));
  });
}

void EditedArchive::edit_bytes(const Keys& keys, const std::function<void(MutableBytes)>& edit) {
  edit(tensors_.data(at(keys).tensor_index()));
}

Bytes EditedArchive::render() const {
  RankArchive used;  // those that the tree still holds, in its order
  std::vector<std::uint32_t> from;
  TensorRemapper in_order([&](std::uint32_t index) {
    const auto known = std::ranges::find(from, index);
    const auto number = static_cast<std::uint32_t>(known - from.begin());
    if (known != from.end()) return number;
    from.push_back(index);
    used.add(tensors_.written(index), tensors_.data(index));
    return number;
  });
  const Value root = in_order(archive_.root);
  return used.render(root, archive_.prefix);
}

}  // namespace tessera::testing
