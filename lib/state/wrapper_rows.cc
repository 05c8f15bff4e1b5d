#include "lib/state/wrapper_rows.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>

#include "lib/state/tensor_wrapper.h"

namespace tessera {
namespace {

struct RowClass {
  std::string_view name;  // the class's own, whatever module it is in
  std::array<std::string_view, 3> parts;
  std::string_view table;  // which of them all rows share; "" = none
};
constexpr std::array<RowClass, 3> kClasses = {
    {{"OptimState8bit", {"codes", "scale", "qmap"}, "qmap"},
     {"OptimState4bit", {"codes", "scale", "qmap"}, "qmap"},
     {"OptimStateFp8", {"codes", "scale"}, ""}}};

const RowClass* class_of(const Value& value) {
  const std::string name = wrapper_class(value);
  const std::string_view own = std::string_view(name).substr(name.rfind('.') + 1);
  const auto found = std::ranges::find(kClasses, own, &RowClass::name);
  return name.empty() || found == kClasses.end() ? nullptr : &*found;
}

/// A size with another first extent, in the form that it had.
Value with_first(const Value& size, std::int64_t rows) {
  if (size.kind() == Value::Kind::kSize) {
    std::vector<std::int64_t> extents = size.as_size();
    if (!extents.empty()) extents[0] = rows;
    return Value::size(std::move(extents));
  }
  ValueList extents = size.as_list();
  if (!extents.empty()) extents[0] = Value::integer(rows);
  return Value::list(std::move(extents), size.kind());
}

bool is_size_of(const Value& value, const Shape& shape) {
  const auto extents = shape.extents();
  if (value.kind() == Value::Kind::kSize) return std::ranges::equal(value.as_size(), extents);
  if (value.kind() != Value::Kind::kTuple && value.kind() != Value::Kind::kList) return false;
  return std::ranges::equal(value.as_list(), extents, [](const Value& v, std::int64_t extent) {
    return v.is_int() && v.as_int() == extent;
  });
}

/// Attributes, of which one may repeat the size.
Value with_sizes(const Value& attributes, const Shape& old, std::int64_t rows) {
  if (!attributes.is_dict()) return attributes;
  ValueDict kept = attributes.as_dict();
  for (auto& [key, value] : kept)
    if (is_size_of(value, old)) value = with_first(value, rows);
  return Value::dict_of(attributes.kind(), std::move(kept), attributes.attributes());
}

/// Shape of several rows of `part`.
Shape rows_of(const Shape& part, RowRange rows) {
  Shape out = part;
  out[0] = rows.end - rows.begin;
  return out;
}

}  // namespace

std::optional<RowRange> RowPart::rows(const Shape& whole, RowRange of) const {
  const std::int64_t all = spec.shape[0];
  if (is_table) return RowRange{0, all};
  const std::int64_t common = std::gcd(all, whole[0]);
  const std::int64_t block = whole[0] / common;  // rows, that are all / common of the part's
  const auto at = [&](std::int64_t row) -> std::optional<std::int64_t> {
    if (row % block != 0) return std::nullopt;
    return row / block * (all / common);
  };
  const auto begin = at(of.begin), end = at(of.end);
  if (!begin || !end) return std::nullopt;
  return RowRange{*begin, *end};
}

bool RowWrapper::can_cut(RowRange range) const {
  return std::ranges::all_of(
      parts, [&](const RowPart& part) { return part.rows(spec.shape, range).has_value(); });
}

std::optional<RowWrapper> row_wrapper(const Value& value, const SpecOf& spec_of) {
  const RowClass* known = class_of(value);
  const auto spec = wrapper_spec(value);
  if (known == nullptr || !spec || spec->shape.rank() == 0 || spec->shape.numel() == 0)
    return std::nullopt;
  RowWrapper out{*spec, {}};
  for (const auto& [name, tensor] : wrapper_parts(value)) {
    if (std::ranges::find(known->parts, name) == known->parts.end()) return std::nullopt;
    RowPart part{name, tensor, spec_of(tensor), name == known->table};
    const std::int64_t numel = part.spec.shape.numel();
    if (part.spec.shape.rank() == 0 || numel == 0) return std::nullopt;
    if (!part.is_table && spec->shape.numel() % numel != 0) return std::nullopt;
    out.parts.push_back(std::move(part));
  }
  const std::size_t wanted = known->table.empty() ? 2 : 3;
  if (out.parts.size() != wanted) return std::nullopt;
  return out;
}

Value with_rows(const Value& value, std::int64_t rows,
                const std::vector<std::uint32_t>& new_index) {
  const Value numbered = remap_tensors(value, new_index);
  const Shape old = wrapper_spec(numbered)->shape;
  OpaqueObject object = numbered.as_opaque();
  ValueList arguments = object.arguments.as_list();
  ValueList wrapper = arguments[2].as_list();
  wrapper[2] = with_first(wrapper[2], rows);
  arguments[2] = Value::list(std::move(wrapper), Value::Kind::kTuple);
  if (arguments[3].kind() == Value::Kind::kTuple) {
    ValueList state = arguments[3].as_list();
    for (Value& attributes : state) attributes = with_sizes(attributes, old, rows);
    arguments[3] = Value::list(std::move(state), Value::Kind::kTuple);
  } else {
    arguments[3] = with_sizes(arguments[3], old, rows);
  }
  object.arguments = Value::list(std::move(arguments), Value::Kind::kTuple);
  return Value::opaque(std::move(object));
}

void refuse_rows(std::string_view name, const Value& value, bool is_run, RowRange rows) {
  const std::string what = fmt::format("\"{}\" is an object of class {}", printable(name),
                                       printable(wrapper_class(value)));
  const std::int64_t all = wrapper_spec(value)->shape[0];
  if (!is_run || rows.begin == rows.end)
    fail(Code::kUnsupported, what + ", of which every rank holds some rows, whole ones",
         "--replicate keeps it whole; --only model leaves the optimizer out");
  fail(Code::kUnsupported,
       fmt::format("{}, and rows {} to {} of its {} begin or end within one of its blocks", what,
                   rows.begin, rows.end, all),
       "another world size may cut between blocks; --replicate keeps it whole; --only model leaves "
       "the optimizer out");
}

std::optional<JoinedWrapper> join_rows(
    std::span<const WrapperShard> shards, const TensorSpec& spec,
    const std::function<bool(std::size_t, std::uint32_t, std::uint32_t)>& same_table) {
  JoinedWrapper out;
  std::optional<RowWrapper> first;
  std::int64_t row = 0;
  for (std::size_t s = 0; s < shards.size(); ++s) {
    const WrapperShard& shard = shards[s];
    const auto wrapper = row_wrapper(shard.value, shard.spec_of);
    if (!wrapper || shard.rows.begin != row || wrapper->spec.dtype != spec.dtype ||
        wrapper->spec.shape != rows_of(spec.shape, shard.rows))
      return std::nullopt;
    row = shard.rows.end;
    if (!first) {
      first = wrapper;
      out.parts.resize(first->parts.size());
    }
    if (wrapper->parts.size() != first->parts.size()) return std::nullopt;
    std::vector<std::uint32_t> numbers;
    for (std::size_t p = 0; p < out.parts.size(); ++p) {
      const RowPart &part = wrapper->parts[p], &model = first->parts[p];
      JoinedWrapper::Part& joined = out.parts[p];
      if (part.name != model.name || part.spec.dtype != model.spec.dtype) return std::nullopt;
      if (numbers.size() <= part.tensor) numbers.resize(part.tensor + 1, kNoTensor);
      numbers[part.tensor] = static_cast<std::uint32_t>(p);
      if (part.is_table) {
        if (s > 0 && (part.spec != model.spec || !same_table(s, part.tensor, model.tensor)))
          return std::nullopt;
        if (s == 0) joined = {part.spec, {{0, part.tensor, 0}}};
        continue;
      }
      const std::int64_t at = s == 0 ? 0 : joined.spec.shape[0];
      if (s == 0) joined.spec = {part.spec.dtype, rows_of(part.spec.shape, {0, 0})};
      if (rows_of(part.spec.shape, {0, 0}) != rows_of(joined.spec.shape, {0, 0}))
        return std::nullopt;
      // Blocks of one size everywhere.
      if (part.spec.shape.numel() * first->spec.shape.numel() !=
          model.spec.shape.numel() * wrapper->spec.shape.numel())
        return std::nullopt;
      joined.pieces.push_back({s, part.tensor, at});
      joined.spec.shape[0] += part.spec.shape[0];
    }
    // What is no tensor, as block sizes are, must be equal.
    const Value whole = with_rows(shard.value, spec.shape[0], numbers);
    if (s > 0 && !(whole == out.value)) return std::nullopt;
    out.value = whole;
  }
  if (shards.empty() || row != spec.shape[0]) return std::nullopt;
  return out;
}

}  // namespace tessera
