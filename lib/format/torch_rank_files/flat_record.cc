#include "lib/format/torch_rank_files/flat_record.h"

#include <fmt/format.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/json.h>

#include <algorithm>
#include <set>

namespace tessera::rank_files {
namespace {

[[noreturn]] void bad_record(const std::string& what) {
  fail(Code::kCorrupt, "flat layout: " + what, "docs/formats/torch-rank-files.md shows its form");
}

const ValueList& list_of(const Value& object, std::string_view key, std::string_view where) {
  const Value* found = object.find(key);
  if (!found || found->kind() != Value::Kind::kList)
    bad_record(fmt::format("{} has no list \"{}\"", printable(where), key));
  return found->as_list();
}

std::vector<std::string> strings(const ValueList& items, std::string_view where) {
  std::vector<std::string> out;
  for (const Value& item : items) {
    if (!item.is_string() || item.as_string().empty())
      bad_record(fmt::format("{} lists something that is no name", printable(where)));
    out.push_back(item.as_string());
  }
  return out;
}

Shape shape_of(const Value& value) {
  if (value.kind() != Value::Kind::kList) bad_record("a shape that is no list");
  std::vector<std::int64_t> extents;
  for (const Value& extent : value.as_list()) {
    if (!extent.is_int()) bad_record("a shape that is no list of integers");
    extents.push_back(extent.as_int());
  }
  return Shape::checked(extents);
}

FlatUnit unit_of(const std::string& name, const Value& value) {
  FlatUnit unit;
  unit.name = name;
  const std::vector<std::string> fqns = strings(list_of(value, "fqns", name), name);
  const ValueList& shapes = list_of(value, "shapes", name);
  if (fqns.size() != shapes.size())
    bad_record(
        fmt::format("{} has {} names and {} shapes", printable(name), fqns.size(), shapes.size()));
  for (std::size_t i = 0; i < fqns.size(); ++i)
    unit.parameters.push_back({fqns[i], shape_of(shapes[i])});
  if (const Value* alignment = value.find("alignment")) {
    if (!alignment->is_int() || alignment->as_int() < 1 || alignment->as_int() > 4096)
      bad_record("an alignment that is no small number of elements");
    unit.alignment = alignment->as_int();
  }
  return unit;
}

Value list_value(const std::vector<std::string>& items) {
  ValueList out;
  for (const std::string& item : items) out.push_back(Value::string(item));
  return Value::list(std::move(out));
}

}  // namespace

const FlatUnit* FlatRecord::find(std::string_view name) const {
  const auto found = std::ranges::find(units, name, &FlatUnit::name);
  return found == units.end() ? nullptr : &*found;
}

FlatRecord parse_flat_record(ByteView json) {
  const Value root = parse_json(json);
  const Value* units = root.find("flat_params");
  if (!units) units = &root;
  if (!units->is_dict() || units->as_dict().empty()) bad_record("it names no flat parameter");
  FlatRecord out;
  std::set<std::string> names;
  for (const auto& [key, value] : units->as_dict()) {
    if (units == &root && !is_flat_name(key.as_string())) continue;
    out.units.push_back(unit_of(key.as_string(), value));
    for (const FlatParameter& parameter : out.units.back().parameters)
      if (!names.insert(parameter.fqn).second)
        bad_record(fmt::format("\"{}\" stands in two places", printable(parameter.fqn)));
  }
  if (out.units.empty()) bad_record("it names no flat parameter");
  if (root.find("parameters")) out.order = strings(list_of(root, "parameters", "it"), "it");
  if (const Value* optimizers = root.find("optimizers"); optimizers && optimizers->is_dict())
    for (const auto& [key, value] : optimizers->as_dict()) {
      if (value.kind() != Value::Kind::kList) bad_record("an optimizer whose ids are no list");
      out.optimizers[key.as_string()] = strings(value.as_list(), key.as_string());
    }
  return out;
}

std::string dump_flat_record(const FlatRecord& record) {
  ValueDict units;
  for (const FlatUnit& unit : record.units) {
    std::vector<std::string> fqns;
    ValueList shapes;
    for (const FlatParameter& parameter : unit.parameters) {
      fqns.push_back(parameter.fqn);
      ValueList extents;
      for (const std::int64_t extent : parameter.shape.extents())
        extents.push_back(Value::integer(extent));
      shapes.push_back(Value::list(std::move(extents)));
    }
    ValueDict fields = {{Value::string("fqns"), list_value(fqns)},
                        {Value::string("shapes"), Value::list(std::move(shapes))}};
    if (unit.alignment > 0)
      fields.emplace_back(Value::string("alignment"), Value::integer(unit.alignment));
    units.emplace_back(Value::string(unit.name), Value::dict(std::move(fields)));
  }
  ValueDict root = {{Value::string("flat_params"), Value::dict(std::move(units))}};
  if (!record.order.empty())
    root.emplace_back(Value::string("parameters"), list_value(record.order));
  if (!record.optimizers.empty()) {
    ValueDict optimizers;
    for (const auto& [name, ids] : record.optimizers)
      optimizers.emplace_back(Value::string(name), list_value(ids));
    root.emplace_back(Value::string("optimizers"), Value::dict(std::move(optimizers)));
  }
  return dump_json(Value::dict(std::move(root)), 1) + "\n";
}

bool is_flat_name(std::string_view key) {
  const std::string_view last = key.substr(key.rfind('.') + 1);
  return last == "_flat_param" || last == "flat_param";
}

FittedUnit fit_unit(const FlatUnit& unit, std::int64_t stored_numel, std::int64_t world_size,
                    DType dtype) {
  const std::int64_t natural = 16 / std::max<std::int64_t>(1, element_bytes(dtype));
  // Without padding first; then what the stored type, or a lower compute precision, aligns to.
  std::vector<std::int64_t> tried = {1, natural, 4, 8, 2, 16};
  if (unit.alignment > 0) tried = {unit.alignment};
  for (const std::int64_t alignment : tried) {
    FlatLayout layout(unit.parameters, world_size, alignment);
    const std::int64_t total = layout.unpadded_numel();
    if (total == stored_numel) return {std::move(layout), alignment, false};
    const auto whole = checked_mul(ceil_div(total, world_size), world_size);
    if (alignment > 1 && whole == stored_numel) return {std::move(layout), alignment, true};
  }
  FlatLayout bare(unit.parameters, world_size, 1);
  const auto whole = checked_mul(ceil_div(bare.unpadded_numel(), world_size), world_size);
  if (whole == stored_numel) return {std::move(bare), 1, true};
  fail(Code::kCorrupt,
       fmt::format("the flat layout gives \"{}\" {} parameters of {} elements, but {} are stored",
                   printable(unit.name), unit.parameters.size(), bare.unpadded_numel(),
                   stored_numel),
       "it is the layout of another model");
}

}  // namespace tessera::rank_files
