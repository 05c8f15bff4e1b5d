#include "lib/format/fairscale_fsdp/wrappers.h"

#include <tessera/base/error.h>
#include <tessera/encoding/json.h>

#include "lib/state/fields.h"

namespace tessera::fairscale {
namespace {

Value encoded(const GroupedBacking& backing) {
  ValueList names;
  for (const std::string& name : backing.parameters) names.push_back(text(name));
  ValueDict out;
  out.emplace_back(text("name"), text(backing.name));
  out.emplace_back(text("flat"), Value::boolean(backing.flat));
  out.emplace_back(text("params"), Value::list(std::move(names)));
  return Value::dict(std::move(out));
}

Value encoded(const GroupedWrapper& wrapper) {
  ValueList backings, shared;
  for (const GroupedBacking& backing : wrapper.backings) backings.push_back(encoded(backing));
  for (const auto& [source, destination] : wrapper.shared)
    shared.push_back(Value::list({text(source), text(destination)}));
  ValueDict out;
  out.emplace_back(text("path"), text(wrapper.path));
  out.emplace_back(text("no_broadcast"), Value::boolean(wrapper.no_broadcast));
  out.emplace_back(text("stored"), Value::list(std::move(backings)));
  out.emplace_back(text("shared"), Value::list(std::move(shared)));
  return Value::dict(std::move(out));
}

GroupedWrapper decoded(const Value& value) {
  GroupedWrapper wrapper{.path = text_in(value, "path"),
                         .no_broadcast = flag_in(value, "no_broadcast").value_or(false),
                         .backings = {},
                         .shared = {}};
  for (const Value& stored : list_in(value, "stored")) {
    GroupedBacking backing{.name = text_in(stored, "name"),
                           .flat = flag_in(stored, "flat").value_or(false),
                           .parameters = {}};
    for (const Value& name : list_in(stored, "params"))
      if (name.is_string()) backing.parameters.push_back(name.as_string());
    wrapper.backings.push_back(std::move(backing));
  }
  for (const Value& pair : list_in(value, "shared"))
    if (pair.kind() == Value::Kind::kList && pair.as_list().size() == 2 &&
        pair.as_list()[0].is_string() && pair.as_list()[1].is_string())
      wrapper.shared.emplace_back(pair.as_list()[0].as_string(), pair.as_list()[1].as_string());
  return wrapper;
}

}  // namespace

std::vector<GroupedWrapper> wrappers_of(const RankMetadata& metadata) {
  std::vector<GroupedWrapper> out;
  for (const Wrapper& wrapper : metadata.wrappers) {
    GroupedWrapper grouped{wrapper.path, wrapper.no_broadcast, {}, wrapper.shared};
    for (const Backing& backing : wrapper.backings) {
      GroupedBacking stored{backing.name, backing.flat, {}};
      for (const Parameter& parameter : backing.parameters)
        stored.parameters.push_back(parameter.name);
      grouped.backings.push_back(std::move(stored));
    }
    out.push_back(std::move(grouped));
  }
  return out;
}

std::string encode_wrappers(const std::vector<GroupedWrapper>& wrappers) {
  ValueList list;
  for (const GroupedWrapper& wrapper : wrappers) list.push_back(encoded(wrapper));
  return dump_json(Value::list(std::move(list)));
}

std::vector<GroupedWrapper> decode_wrappers(std::string_view json) {
  std::vector<GroupedWrapper> out;
  try {
    const Value list = parse_json(as_bytes(json));
    if (list.kind() != Value::Kind::kList) return out;
    for (const Value& wrapper : list.as_list()) out.push_back(decoded(wrapper));
  } catch (const Error&) {
    return {};
  }
  return out;
}

}  // namespace tessera::fairscale
