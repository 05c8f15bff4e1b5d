// The metadata states no version: the key "params" marks the newer form. Names hold whatever
// wrappers the training code put around the modules (_fsdp_wrapped_module, _fpw_module); both sides
// of every comparison are cleaned of them.
#include "lib/format/fairscale_fsdp/metadata.h"

#include <fmt/format.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <set>

#include "lib/state/fields.h"

namespace tessera::fairscale {
namespace {

/// names, shapes and numels describe the same parameters.
void add_parameters(Backing& backing, const Field& where, const std::vector<std::string>& names,
                    const std::vector<Field>& shapes, const std::vector<std::int64_t>& numels) {
  if (names.size() != shapes.size() || names.size() != numels.size())
    where.corrupt(fmt::format("{} names, {} shapes and {} numels", names.size(), shapes.size(),
                              numels.size()));
  for (std::size_t i = 0; i < names.size(); ++i) {
    Parameter parameter{clean_path(names[i]), shapes[i].shape()};
    const std::int64_t numel = parameter.shape.numel();
    if (numels[i] != numel)
      where.corrupt(fmt::format("\"{}\" of shape {} is said to have {} elements",
                                printable(parameter.name), parameter.shape.to_string(), numels[i]));
    const auto total = checked_add(backing.numel, numel);
    if (!total) where.corrupt("more than 2^63 - 1 elements");
    backing.numel = *total;
    backing.parameters.push_back(std::move(parameter));
  }
}

/// A backing parameter that holds exactly the parameter it is named after is not flattened.
bool is_flat(const Backing& backing) {
  return backing.parameters.size() != 1 || backing.parameters[0].name != backing.name;
}

void add_current(Wrapper& wrapper, const Field& params) {
  for (const auto& [key, info] : params.entries()) {
    Backing backing;
    backing.name = clean_path(key.text());
    add_parameters(backing, info, info.at("names").texts(), info.at("shapes").items(),
                   info.at("numels").counts());
    backing.padding = info.at("padding").count();
    backing.flat = is_flat(backing);
    wrapper.backings.push_back(std::move(backing));
  }
}

/// One flat buffer, or one backing parameter per parameter; no shared parameters yet.
void add_older(Wrapper& wrapper, const Field& info) {
  const std::vector<std::string> names = info.at("param_names").texts();
  const std::vector<Field> shapes = info.at("param_shapes").items();
  const std::vector<std::int64_t> numels = info.at("param_numels").counts();
  const std::vector<std::int64_t> padded = info.at("num_padded").counts();
  if (info.at("is_flat").flag()) {
    if (names.empty()) return;
    Backing backing{.name = "flat_param_0", .flat = true, .parameters = {}};
    add_parameters(backing, info, names, shapes, numels);
    if (padded.size() != 1) info.at("num_padded").refuse("a list of one count");
    backing.padding = padded[0];
    wrapper.backings.push_back(std::move(backing));
    return;
  }
  if (names.size() != shapes.size() || names.size() != numels.size() ||
      names.size() != padded.size())
    info.corrupt("its lists differ in length");
  for (std::size_t i = 0; i < names.size(); ++i) {
    Backing backing{.name = clean_path(names[i]), .flat = false, .parameters = {}};
    add_parameters(backing, info, {names[i]}, {shapes[i]}, {numels[i]});
    backing.padding = padded[i];
    wrapper.backings.push_back(std::move(backing));
  }
}

void add_shared(Wrapper& wrapper, const Field& info) {
  const auto pairs = info.find("shared_param_info");
  if (!pairs) return;
  for (const Field& pair : pairs->items()) {
    const std::vector<std::string> names = pair.texts();
    if (names.size() != 2) pair.refuse("a pair of names");
    wrapper.shared.emplace_back(clean_path(names[0]), clean_path(names[1]));
  }
}

Wrapper parse_wrapper(const Field& info) {
  Wrapper wrapper;
  wrapper.path = clean_path(info.at("fsdp_path").text());
  wrapper.no_broadcast = flag_in(info.value(), "no_broadcast_optim_state").value_or(false);
  if (const auto params = info.find("params"))
    add_current(wrapper, *params);
  else
    add_older(wrapper, info);
  add_shared(wrapper, info);
  return wrapper;
}

void parse_marks(const Value& value, WriterMarks& marks) {
  const Value* ours = value.find(kMarksKey);
  if (!ours) return;
  const auto set = [ours](std::string_view key, std::string& to) {
    if (const Value* found = ours->find(key); found && found->is_string()) to = found->as_string();
  };
  set("model_root", marks.model_root);
  set("optim_root", marks.optim_root);
  set("step_dtype", marks.step_dtype);
  if (const Value* maps = ours->find("maps"); maps && maps->is_dict()) {
    marks.maps = *maps;
    marks.ids_implied = true;  // of those that the files have
  }
  if (const Value* state = ours->find("state"); state && state->is_dict()) marks.state = *state;
  if (ours->find("ids_implied")) marks.ids_implied = flag_in(*ours, "ids_implied").value_or(false);
}

void check_unique(const std::vector<Wrapper>& wrappers, const Field& top) {
  std::set<std::string> keys, names;
  for (const Wrapper& wrapper : wrappers)
    for (const Backing& backing : wrapper.backings) {
      if (!keys.insert(joined(wrapper.path, backing.name)).second)
        top.corrupt(
            fmt::format("\"{}\" is there twice", printable(joined(wrapper.path, backing.name))));
      for (const Parameter& parameter : backing.parameters)
        if (!names.insert(joined(wrapper.path, parameter.name)).second)
          top.corrupt(fmt::format("the parameter \"{}\" is there twice",
                                  printable(joined(wrapper.path, parameter.name))));
    }
}

}  // namespace

std::string clean_path(std::string_view path) {
  std::string out;
  for (std::string_view segment : split(path, '.')) {
    if (segment == "_fsdp_wrapped_module" || segment == "_fpw_module") continue;
    if (!out.empty()) out += '.';
    out += segment;
  }
  return out;
}

std::string joined(std::string_view path, std::string_view name) {
  if (path.empty() || name.empty()) return std::string(path.empty() ? name : path);
  return std::string(path) + "." + std::string(name);
}

std::string_view other_spelling(std::string_view name) {
  if (name == "flat_param_0") return "flat_param";
  return name == "flat_param" ? "flat_param_0" : "";
}

bool is_metadata(const Value& value) {
  const Value* wrappers = value.find(kMetadataKey);
  if (!wrappers || !is_sequence(*wrappers)) return false;
  return std::ranges::all_of(wrappers->as_list(), [](const Value& wrapper) {
    return wrapper.find("fsdp_path") && (wrapper.find("params") || wrapper.find("is_flat"));
  });
}

RankMetadata parse_metadata(const Value& value) {
  RankMetadata out;
  const Field top(value, "shard metadata");
  for (const Field& wrapper : top.at(kMetadataKey).items())
    out.wrappers.push_back(parse_wrapper(wrapper));
  check_unique(out.wrappers, top);
  if (const auto names = top.find("buffer_names"))
    for (const std::string& name : names->texts()) out.buffers.push_back(clean_path(name));
  parse_marks(value, out.marks);
  return out;
}

std::string first_difference(const RankMetadata& a, const RankMetadata& b) {
  if (a.wrappers.size() != b.wrappers.size())
    return fmt::format("{} wrappers against {}", a.wrappers.size(), b.wrappers.size());
  for (std::size_t i = 0; i < a.wrappers.size(); ++i) {
    const Wrapper &left = a.wrappers[i], &right = b.wrappers[i];
    const std::string name = printable(left.path);
    if (left.path != right.path)
      return fmt::format("wrapper {} is \"{}\" against \"{}\"", i, name, printable(right.path));
    if (left.backings.size() != right.backings.size())
      return fmt::format("wrapper \"{}\" has {} stored parameters against {}", name,
                         left.backings.size(), right.backings.size());
    for (std::size_t k = 0; k < left.backings.size(); ++k)
      if (left.backings[k].name != right.backings[k].name ||
          left.backings[k].parameters != right.backings[k].parameters)
        return fmt::format("\"{}\" holds other parameters",
                           printable(joined(left.path, left.backings[k].name)));
    if (left.shared != right.shared || left.no_broadcast != right.no_broadcast)
      return fmt::format("wrapper \"{}\" shares or broadcasts other parameters", name);
  }
  return "";
}

}  // namespace tessera::fairscale
