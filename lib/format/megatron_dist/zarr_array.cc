// numpy has no bfloat16, so zarr stores Megatron's weights as "V2": two bytes of no type. Anything
// else than what Megatron-core writes (compressors, order F) is refused instead of half read.
#include "lib/format/megatron_dist/zarr_array.h"

#include <fmt/format.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/json.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <utility>

#include "lib/state/fields.h"

namespace tessera::megatron_dist {
namespace {

struct DtypeName {
  std::string_view code;  // after the byte order
  DType dtype;
};
constexpr std::array kDtypes = {
    DtypeName{"f2", DType::kFloat16},   DtypeName{"f4", DType::kFloat32},
    DtypeName{"f8", DType::kFloat64},   DtypeName{"i1", DType::kInt8},
    DtypeName{"i2", DType::kInt16},     DtypeName{"i4", DType::kInt32},
    DtypeName{"i8", DType::kInt64},     DtypeName{"u1", DType::kUInt8},
    DtypeName{"u2", DType::kUInt16},    DtypeName{"u4", DType::kUInt32},
    DtypeName{"u8", DType::kUInt64},    DtypeName{"b1", DType::kBool},
    DtypeName{"c8", DType::kComplex64}, DtypeName{"c16", DType::kComplex128},
    DtypeName{"V2", DType::kBFloat16},
};

void set_dtype(std::string_view text, ZarrArray& out) {
  if (text == "bfloat16") {
    out.spec.dtype = DType::kBFloat16;
    return;
  }
  const bool ordered = !text.empty() && std::string_view("<>|").find(text[0]) != text.npos;
  const auto found = std::ranges::find(kDtypes, ordered ? text.substr(1) : text, &DtypeName::code);
  if (!ordered || found == kDtypes.end())
    fail(Code::kUnsupported, fmt::format("zarr dtype \"{}\"", printable(text)));
  out.spec.dtype = found->dtype;
  out.byte_swap = text[0] == '>' && swap_unit_bytes(found->dtype) > 1;
  out.raw_dtype = found->code == "V2";
}

void require_plain(const Value& json) {
  if (const Value* format = json.find("zarr_format"); format && *format != Value::integer(2))
    fail(Code::kUnsupported, "zarr of another format than 2");
  for (const std::string_view name : {"compressor", "filters"}) {
    const Value* value = json.find(name);
    if (value && !value->is_none())
      fail(Code::kUnsupported,
           fmt::format("a zarr array with a {}: Megatron-core writes plain chunks", name));
  }
  if (const Value* order = json.find("order"); order && *order != Value::string("C"))
    fail(Code::kUnsupported, "a zarr array in another order than C");
  if (const Value* dot = json.find("dimension_separator"); dot && *dot != Value::string("."))
    fail(Code::kUnsupported, "a zarr array with another dimension separator than \".\"");
}

/// Chunks along dim d.
std::int64_t grid(const ZarrArray& array, int d) {
  return ceil_div(array.spec.shape[d], array.chunk[d]);
}

}  // namespace

std::int64_t ZarrArray::chunk_count() const {
  std::vector<std::int64_t> counts;
  for (int d = 0; d < chunk.rank(); ++d) counts.push_back(grid(*this, d));
  return Shape::checked(counts).numel();
}

std::uint64_t ZarrArray::chunk_bytes() const {
  return static_cast<std::uint64_t>(TensorSpec{spec.dtype, chunk}.size_bytes());
}

ZarrArray parse_zarray(ByteView text) {
  const Value json = parse_json(text);
  const Field root(json);
  root.dict();
  require_plain(json);
  ZarrArray array;
  const Value& dtype = root.at("dtype").value();
  if (!dtype.is_string()) fail(Code::kUnsupported, "a zarr array of structured dtype");
  set_dtype(dtype.as_string(), array);
  array.spec.shape = root.at("shape").shape();
  array.chunk = root.at("chunks").shape();
  if (array.chunk.rank() != array.spec.shape.rank())
    fail(Code::kCorrupt, fmt::format("its chunks {} and its shape {} have different ranks",
                                     array.chunk.to_string(), array.spec.shape.to_string()));
  for (const std::int64_t extent : array.chunk.extents())
    if (extent < 1) fail(Code::kCorrupt, "a chunk extent of zero");
  array.spec.size_bytes();  // throws on overflow
  array.chunk_bytes();
  return array;
}

std::optional<Box> zarr_chunk_box(const ZarrArray& array, std::string_view name) {
  Box box;
  const int rank = array.chunk.rank();
  if (rank == 0) return name == "0" ? std::optional(Box{}) : std::nullopt;
  const auto parts = split(name, '.');
  if (parts.size() != static_cast<std::size_t>(rank)) return std::nullopt;
  std::vector<std::int64_t> sizes;
  for (int d = 0; d < rank; ++d) {
    const std::string_view part = parts[static_cast<std::size_t>(d)];
    std::int64_t at = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), at);
    const bool leading_zero = part.size() > 1 && part[0] == '0';  // another name for a chunk: none
    if (part.empty() || part[0] == '-' || leading_zero || end != part.data() + part.size())
      return std::nullopt;
    if (error != std::errc() || at >= grid(array, d))
      fail(Code::kCorrupt, fmt::format("chunk {} leaves the array of shape {}", printable(name),
                                       array.spec.shape.to_string()));
    box.origin.push_back(at * array.chunk[d]);
    sizes.push_back(std::min(array.chunk[d], array.spec.shape[d] - box.origin.back()));
  }
  box.shape = Shape(std::move(sizes));
  return box;
}

std::string first_missing_chunk(const ZarrArray& array, const std::vector<std::string>& names) {
  const std::int64_t count = array.chunk_count();
  const int rank = array.chunk.rank();
  // Among names.size() + 1 chunks at least one is not there, so that the search is short.
  for (std::int64_t i = 0; i < count; ++i) {
    std::string name;
    std::int64_t rest = i;
    for (int d = rank - 1; d >= 0; --d) {
      name = fmt::format("{}{}{}", rest % grid(array, d), name.empty() ? "" : ".", name);
      rest /= grid(array, d);
    }
    if (rank == 0) name = "0";
    if (!std::ranges::binary_search(names, name)) return name;
  }
  return {};
}

}  // namespace tessera::megatron_dist
