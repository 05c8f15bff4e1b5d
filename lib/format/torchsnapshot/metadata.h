#pragma once
// `.snapshot_metadata`: what a snapshot holds, entry by entry, as its ranks wrote it. JSON since
// 0.1.0, YAML before. Untrusted: every field is checked here; nothing below sees raw text.
#include <tessera/base/bytes.h>
#include <tessera/state/value.h>
#include <tessera/tensor/chunk.h>
#include <tessera/tensor/shape.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::snapshot {

inline constexpr std::string_view kMetadataFile = ".snapshot_metadata";

enum class Serializer : std::uint8_t { kBuffer, kTorchSave };

/// Where one run of elements lies: a whole file, or bytes [begin, end) of a slab.
struct StoredPart {
  std::string location;  // relative to the snapshot's folder
  Serializer serializer = Serializer::kBuffer;
  TensorSpec spec;
  std::optional<std::pair<std::uint64_t, std::uint64_t>> range;  // bytes
};

/// `part` is the elements of `box` of a tensor.
struct TensorPart {
  Box box;
  StoredPart part;
};

struct Entry {
  enum class Kind : std::uint8_t {
    kDict,
    kOrderedDict,
    kList,
    kTensor,   // Tensor, ChunkedTensor: all of it in `parts`
    kSharded,  // ShardedTensor, DTensor: this rank's parts of it
    kObject,   // a torch.save file
    kPrimitive,
  };
  std::int64_t rank = 0;
  std::string path;  // escaped as stored, the rank cut off: "optim/state/0/exp_avg"
  Kind kind = Kind::kPrimitive;
  bool replicated = false;
  std::vector<Value> keys;        // dicts: strings and integers, in order
  TensorSpec spec;                // kTensor
  std::vector<TensorPart> parts;  // kTensor, kSharded
  std::string location;           // kObject
  std::string class_name;         // kObject: "builtins.tuple"
  Value primitive;
};

struct Metadata {
  std::string version;
  std::int64_t world_size = 0;
  bool yaml = false;
  std::vector<Entry> entries;  // as stored
};

/// Throws kCorrupt naming the entry, kUnsupported for an entry type or serializer that is not
/// known.
Metadata parse_metadata(ByteView text);

/// One item of an escaped path: "%2F" is '/', "%25" is '%'.
std::string unescape(std::string_view item);
std::string escape(std::string_view key);

}  // namespace tessera::snapshot
