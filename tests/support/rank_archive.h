#pragma once
// torch.save files put together by a test: a tree of values whose tensors it fills itself.
#include <tessera/base/bytes.h>
#include <tessera/encoding/torch_archive_writer.h>
#include <tessera/state/value.h>

#include <string>
#include <vector>

namespace tessera::testing {

class RankArchive {
 public:
  /// A float32 tensor; values.size() == shape.numel().
  Value tensor(const Shape& shape, const std::vector<float>& values);
  /// bfloat16, values cut to their upper halves.
  Value half(const Shape& shape, const std::vector<float>& values);
  /// Any tensor with these bytes; its storage gets a number here.
  Value add(ArchiveWriteTensor tensor, Bytes bytes);
  const ArchiveWriteTensor& written(std::uint32_t index) const { return tensors_.at(index); }
  Bytes& data(std::uint32_t index) { return data_.at(index); }
  const Bytes& data(std::uint32_t index) const { return data_.at(index); }
  /// The file's bytes.
  Bytes render(const Value& root, const std::string& prefix = "archive") const;

 private:
  std::vector<ArchiveWriteTensor> tensors_;
  std::vector<Bytes> data_;
};

/// Shorter ways to build trees.
Value text(std::string value);
Value number(std::int64_t value);
Value dict(std::vector<std::pair<std::string, Value>> items);
/// argparse.Namespace with these attributes.
Value argument_namespace(std::vector<std::pair<std::string, Value>> items);

}  // namespace tessera::testing
