#pragma once
// hash: the content of a checkpoint as SHA-256, independent of sharding, container and file order.
//
//   tensor       SHA-256 of the logical, unpadded, row-major, little-endian bytes
//   root         SHA-256 over lines  name \t dtype \t shape \t sha256 \n , fields escaped as jq's
//                @tsv, shape as "8,3", sorted bytewise
//   values_root  SHA-256 of the RFC 8785 form of `values` as ls prints them
#include <tessera/ops/open.h>
#include <tessera/reshard/tensor_reader.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

struct HashedTensor {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::string sha256;  // hex
};

struct HashReport {
  std::string path;
  std::string format;
  std::string root;
  std::string values_root;
  std::vector<HashedTensor> tensors;                  // in stored order
  std::uint64_t bytes = 0;                            // hashed
  std::vector<std::pair<std::string, Value>> values;  // as ls prints them
  std::vector<Note> notes;
};

/// Streams every leaf tensor once.
HashReport hash_checkpoint(OpenedCheckpoint& checkpoint, const TransferOptions& transfer = {});

/// SHA-256 (hex) of each of `tensors` (located leaves or embedded ones), in their order.
std::vector<std::string> hash_tensors(const Manifest& manifest, const Directory& directory,
                                      const std::vector<std::uint32_t>& tensors,
                                      const TransferOptions& transfer);

/// Root over hashed tensors; pure.
std::string content_root(const std::vector<HashedTensor>& tensors);
/// Root over JSON-ready values; pure.
std::string values_root(const std::vector<std::pair<std::string, Value>>& values);

}  // namespace tessera
