#pragma once
// hash: the content of a checkpoint as SHA-256, independent of sharding, container and file order.
//
//   tensor       SHA-256 of the logical, unpadded, row-major, little-endian bytes
//   root         SHA-256 over lines  name \t dtype \t shape \t sha256 \n , fields escaped as jq's
//                @tsv, shape as "8,3", sorted bytewise; the line of a quantized tensor has its
//                quantizer as a fifth field
//   values_root  SHA-256 over lines  "value" or "dict" \t name \t sha256 \n , the SHA-256 of each
//                value's canonical text (encoding/canonical_value.h), escaped and sorted likewise;
//                a "dict" is one of another kind than the plain one that holds values alone
//   *_v1         as tessera.hash/1 had them: no quantizers, and values as ls prints them (their
//                RFC 8785 form), where objects are but their class
#include <tessera/ops/hashed_tensor.h>
#include <tessera/ops/open.h>
#include <tessera/reshard/tensor_reader.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

/// A value, or the kind of a dict that is not a plain dict and holds only values.
struct HashedValue {
  std::string name;
  std::string sha256;  // hex, of the canonical text
  bool whole = true;   // false: part of it could not be followed, and is not compared
  bool is_dict = false;
};

struct HashReport {
  std::string path;
  std::string format;
  std::string root;
  std::string values_root;
  std::string root_v1;
  std::string values_root_v1;
  std::vector<HashedTensor> tensors;                  // in stored order
  std::vector<HashedValue> value_digests;             // in stored order
  std::uint64_t bytes = 0;                            // hashed
  std::uint64_t not_compared = 0;                     // values that are not whole
  std::vector<std::pair<std::string, Value>> values;  // as ls prints them
  std::vector<Note> notes;
};

/// Streams every leaf tensor once.
HashReport hash_checkpoint(OpenedCheckpoint& checkpoint, const TransferOptions& transfer = {});

/// Root over hashed values; pure.
std::string values_root(const std::vector<HashedValue>& values);
/// Root over JSON-ready values; pure.
std::string values_root_v1(const std::vector<std::pair<std::string, Value>>& values);

}  // namespace tessera
