#pragma once
// show: one tensor (metadata, chunk table, values of a slice, .npy bytes) or one value by its
// dotted path.
#include <tessera/ops/ls.h>
#include <tessera/ops/open.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// A half-open range of one dim. Python's rules: negative counts from the end, out of range is
/// clipped; an index keeps no dim.
struct SliceRange {
  std::optional<std::int64_t> begin;
  std::optional<std::int64_t> end;
  bool is_index = false;  // "3": one element, the dim disappears; begin holds it
};
/// "0:4,:8", "3,::": comma separated; steps other than 1 are kInvalidArgument.
std::vector<SliceRange> parse_slice(std::string_view text);

struct ShowOptions {
  std::optional<std::vector<SliceRange>> slice;  // nullopt: edge items of the whole
  std::int64_t edge_items = 3;                   // per dim, on both sides, when no slice is given
  bool values = true;                            // false: metadata and chunk table only
  bool facts = true;         // fill ShowReport::facts, which looks at all other tensors
  bool npy = false;          // fill ShowReport::npy
  bool dequantized = false;  // quantized weights as what their codes mean
  TransferOptions transfer;
};

struct ShowReport {
  enum class What : std::uint8_t { kTensor, kValue };
  What what = What::kTensor;
  std::string path;
  std::string format;
  std::string name;

  // kTensor
  LsTensor tensor;  // with its chunk table
  std::vector<std::pair<std::string, std::string>>
      facts;  // quantization scheme, requires_grad, storage shared with, ...
  std::vector<std::int64_t> slice_origin;  // of the block below
  std::vector<std::int64_t> slice_shape;   // rank of the result; indexed dims are gone
  bool elided = false;  // edge items only: `values` holds the corners, row-major of `shown`
  std::vector<std::vector<std::int64_t>>
      shown;  // per dim: which indices (relative to the tensor) are in `values`
  std::vector<std::string> values;     // formatted elements, row-major over `shown`
  bool element_text_is_number = true;  // false: bit patterns in hex (types without arithmetic here)
  Bytes npy;                           // a whole .npy file of the slice
  std::string npy_note;                // "bfloat16 stored as uint16 bit patterns"

  // kValue
  Value value;  // JSON form of the leaf, or a dict of what lies below the path
  std::vector<std::string> children;  // names directly below, for a trailing dot or an inner node
};

/// `name`: a tensor's or value's dotted name, an inner node (lists children), or a path into a
/// value (dict keys, list indices). Throws kInvalidArgument with the nearest name when nothing is
/// called so.
ShowReport show(OpenedCheckpoint& checkpoint, const std::string& name, const ShowOptions& options);

}  // namespace tessera
