#pragma once
// Values: the "bytes" items of a checkpoint. Each is a torch.save archive of one object (or, from
// custom planners, the raw bytes of an io.BytesIO). They are metadata: decoded when the manifest is
// built.
#include <tessera/state/manifest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lib/format/torch_dcp/item_tensor.h"

namespace tessera::dcp {

/// A tensor inside a value.
struct EmbeddedTensor {
  TensorSpec spec;
  LocatedChunk chunk;
  bool is_parameter = false;
  bool requires_grad = false;
};

struct DecodedValue {
  Value value;  // Value::tensor(i): i in tensors
  std::vector<EmbeddedTensor> tensors;
  std::vector<GlobalUse> globals;
  bool raw = false;  // no archive: the bytes themselves
};

/// Throws kCorrupt for a damaged archive, denied globals among it, and kResourceExhausted for raw
/// bytes beyond the memory limit of `options`.
DecodedValue decode_value(const Manifest& manifest, const Item& item, const OpenItem& open,
                          const ReadOptions& options);

/// Adds a tensor that sits inside the value `name`; returns its index in Manifest::tensors.
/// `tables` are the manifest's.
std::uint32_t add_embedded(Manifest& manifest, SideTables& tables, const std::string& name,
                           EmbeddedTensor embedded);

/// A part of such a tensor, which is an item's.
struct EmbeddedPiece {
  Chunk chunk;
  LocatedChunk located;
};
/// The same for a tensor of several parts.
std::uint32_t add_embedded(Manifest& manifest, SideTables& tables, const std::string& name,
                           const TensorSpec& spec, std::vector<EmbeddedPiece> pieces);

}  // namespace tessera::dcp
