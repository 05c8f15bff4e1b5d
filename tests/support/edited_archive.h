#pragma once
// A torch.save file of a sample, with some of its values changed by a test and written anew: what a
// damaged, incomplete or lying file looks like inside an intact zip.
#include <tessera/encoding/torch_archive.h>
#include <tessera/storage/file_system.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/rank_archive.h"

namespace tessera::testing {

class EditedArchive {
 public:
  EditedArchive(const Directory& directory, const std::string& file);

  /// Keys from the top: strings for string keys, numbers for integer keys and places in lists.
  using Keys = std::vector<Value>;
  /// What stands there.
  Value at(const Keys& keys) const;
  /// Replaces it, or adds the key.
  void set(const Keys& keys, Value value);
  void erase(const Keys& keys);
  /// Replaces all of it.
  void set_root(Value root) { archive_.root = std::move(root); }
  /// A new tensor, to be set somewhere.
  Value tensor(const Shape& shape, const std::vector<float>& values) {
    return tensors_.tensor(shape, values);
  }
  /// Changes the bytes of the tensor that stands there.
  void edit_bytes(const Keys& keys, const std::function<void(MutableBytes)>& edit);

  const TorchArchive& archive() const { return archive_; }
  Bytes render() const;

 private:
  TorchArchive archive_;
  RankArchive tensors_;
};

}  // namespace tessera::testing
