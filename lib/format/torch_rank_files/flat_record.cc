#include "lib/format/torch_rank_files/flat_record.h"

#include <fmt/format.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/json.h>

#include <algorithm>
#include <set>

#include "lib/state/fields.h"

namespace tessera::rank_files {
namespace {

constexpr std::int64_t kMostAlignment = 4096;  // elements

std::vector<std::string> names_of(const Field& list) {
  std::vector<std::string> names = list.texts();
  if (std::ranges::find(names, "") != names.end()) list.refuse("a list of names");
  return names;
}

FlatUnit unit_of(const std::string& name, const Field& value) {
  FlatUnit unit;
  unit.name = name;
  const std::vector<std::string> fqns = names_of(value.at("fqns"));
  const std::vector<Field> shapes = value.at("shapes").items();
  if (fqns.size() != shapes.size())
    value.corrupt(fmt::format("{} names and {} shapes", fqns.size(), shapes.size()));
  for (std::size_t i = 0; i < fqns.size(); ++i)
    unit.parameters.push_back({fqns[i], shapes[i].shape()});
  if (const auto alignment = value.find("alignment")) {
    unit.alignment = alignment->integer();
    if (unit.alignment < 1 || unit.alignment > kMostAlignment)
      alignment->refuse("a small number of elements");
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
  const Value parsed = parse_json(json);
  const Field root(parsed, "flat layout");
  const auto units = root.find("flat_params");
  FlatRecord out;
  std::set<std::string> names;
  for (const auto& [key, value] : (units ? *units : root).entries()) {
    if (!units && !is_flat_name(key.text())) continue;
    out.units.push_back(unit_of(key.text(), value));
    for (const FlatParameter& parameter : out.units.back().parameters)
      if (!names.insert(parameter.fqn).second)
        value.corrupt(fmt::format("\"{}\" stands in two places", printable(parameter.fqn)));
  }
  if (out.units.empty())
    fail(Code::kCorrupt, "flat layout: it names no flat parameter",
         "docs/formats/torch-rank-files.md shows its form");
  if (const auto order = root.find("parameters")) out.order = names_of(*order);
  if (const auto optimizers = root.find("optimizers"); optimizers && optimizers->value().is_dict())
    for (const auto& [key, ids] : optimizers->entries()) out.optimizers[key.text()] = names_of(ids);
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
