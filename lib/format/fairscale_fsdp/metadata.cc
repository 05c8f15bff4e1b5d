#include "lib/format/fairscale_fsdp/metadata.h"

#include <fmt/format.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <set>

namespace tessera::fairscale {
namespace {

[[noreturn]] void corrupt(const std::string& where, std::string_view what) {
  fail(Code::kCorrupt, fmt::format("shard metadata, {}: {}", where, what));
}

const Value& field(const Value& of, std::string_view key, const std::string& where) {
  const Value* found = of.find(key);
  if (!found) corrupt(where, fmt::format("\"{}\" is missing", key));
  return *found;
}

bool is_sequence(const Value& value) {
  return value.kind() == Value::Kind::kList || value.kind() == Value::Kind::kTuple;
}

const ValueList& list_field(const Value& of, std::string_view key, const std::string& where) {
  const Value& list = field(of, key, where);
  if (!is_sequence(list)) corrupt(where, fmt::format("\"{}\" is no list", key));
  return list.as_list();
}

const std::string& text_of(const Value& value, const std::string& where) {
  if (!value.is_string()) corrupt(where, "a name is no string");
  return value.as_string();
}

std::int64_t count_of(const Value& value, const std::string& where, std::string_view what) {
  if (!value.is_int() || value.as_int() < 0) corrupt(where, fmt::format("{} is no count", what));
  return value.as_int();
}

Shape shape_of(const Value& value, const std::string& where) {
  if (value.kind() == Value::Kind::kSize) return Shape::checked(value.as_size());
  if (!is_sequence(value)) corrupt(where, "a shape is no torch.Size");
  std::vector<std::int64_t> extents;
  for (const Value& extent : value.as_list())
    extents.push_back(count_of(extent, where, "an extent"));
  return Shape::checked(extents);
}

/// names, shapes and numels describe the same parameters.
void add_parameters(Backing& backing, const ValueList& names, const ValueList& shapes,
                    const ValueList& numels, const std::string& where) {
  if (names.size() != shapes.size() || names.size() != numels.size())
    corrupt(where, fmt::format("{} names, {} shapes and {} numels", names.size(), shapes.size(),
                               numels.size()));
  for (std::size_t i = 0; i < names.size(); ++i) {
    Parameter parameter{clean_path(text_of(names[i], where)), shape_of(shapes[i], where)};
    const std::int64_t numel = parameter.shape.numel();
    if (count_of(numels[i], where, "a numel") != numel)
      corrupt(where, fmt::format("\"{}\" of shape {} is said to have {} elements",
                                 printable(parameter.name), parameter.shape.to_string(),
                                 numels[i].as_int()));
    const auto total = checked_add(backing.numel, numel);
    if (!total) corrupt(where, "more than 2^63 - 1 elements");
    backing.numel = *total;
    backing.parameters.push_back(std::move(parameter));
  }
}

/// A backing parameter that holds exactly the parameter it is named after is not flattened.
bool is_flat(const Backing& backing) {
  return backing.parameters.size() != 1 || backing.parameters[0].name != backing.name;
}

void add_current(Wrapper& wrapper, const Value& params, const std::string& where) {
  if (!params.is_dict()) corrupt(where, "\"params\" is no dict");
  for (const auto& [key, info] : params.as_dict()) {
    Backing backing;
    backing.name = clean_path(text_of(key, where));
    const std::string here = fmt::format("{} \"{}\"", where, printable(backing.name));
    add_parameters(backing, list_field(info, "names", here), list_field(info, "shapes", here),
                   list_field(info, "numels", here), here);
    backing.padding = count_of(field(info, "padding", here), here, "padding");
    backing.flat = is_flat(backing);
    wrapper.backings.push_back(std::move(backing));
  }
}

/// One flat buffer, or one backing parameter per parameter; no shared parameters yet.
void add_older(Wrapper& wrapper, const Value& info, const std::string& where) {
  const ValueList& names = list_field(info, "param_names", where);
  const ValueList& shapes = list_field(info, "param_shapes", where);
  const ValueList& numels = list_field(info, "param_numels", where);
  const ValueList& padded = list_field(info, "num_padded", where);
  const Value& flat = field(info, "is_flat", where);
  if (flat.kind() != Value::Kind::kBool) corrupt(where, "\"is_flat\" is no bool");
  if (flat.as_bool()) {
    if (names.empty()) return;
    Backing backing{.name = "flat_param_0", .flat = true, .parameters = {}};
    add_parameters(backing, names, shapes, numels, where);
    if (padded.size() != 1) corrupt(where, "\"num_padded\" has not one entry");
    backing.padding = count_of(padded[0], where, "padding");
    wrapper.backings.push_back(std::move(backing));
    return;
  }
  if (names.size() != shapes.size() || names.size() != numels.size() ||
      names.size() != padded.size())
    corrupt(where, "its lists differ in length");
  for (std::size_t i = 0; i < names.size(); ++i) {
    Backing backing{.name = clean_path(text_of(names[i], where)), .flat = false, .parameters = {}};
    add_parameters(backing, {names[i]}, {shapes[i]}, {numels[i]}, where);
    backing.padding = count_of(padded[i], where, "padding");
    wrapper.backings.push_back(std::move(backing));
  }
}

void add_shared(Wrapper& wrapper, const Value& info, const std::string& where) {
  const Value* pairs = info.find("shared_param_info");
  if (!pairs) return;
  if (!is_sequence(*pairs)) corrupt(where, "\"shared_param_info\" is no list");
  for (const Value& pair : pairs->as_list()) {
    if (!is_sequence(pair) || pair.as_list().size() != 2)
      corrupt(where, "\"shared_param_info\" holds something else than pairs");
    wrapper.shared.emplace_back(clean_path(text_of(pair.as_list()[0], where)),
                                clean_path(text_of(pair.as_list()[1], where)));
  }
}

Wrapper parse_wrapper(const Value& info, std::size_t index) {
  std::string where = fmt::format("wrapper {}", index);
  Wrapper wrapper;
  wrapper.path = clean_path(text_of(field(info, "fsdp_path", where), where));
  if (!wrapper.path.empty()) where = fmt::format("wrapper \"{}\"", printable(wrapper.path));
  if (const Value* flag = info.find("no_broadcast_optim_state"))
    wrapper.no_broadcast = flag->kind() == Value::Kind::kBool && flag->as_bool();
  if (const Value* params = info.find("params"))
    add_current(wrapper, *params, where);
  else
    add_older(wrapper, info, where);
  add_shared(wrapper, info, where);
  return wrapper;
}

void parse_marks(const Value& value, WriterMarks& marks) {
  const Value* ours = value.find(kMarksKey);
  if (!ours) return;
  if (const Value* root = ours->find("model_root"); root && root->is_string())
    marks.model_root = root->as_string();
  if (const Value* root = ours->find("optim_root"); root && root->is_string())
    marks.optim_root = root->as_string();
  if (const Value* dtype = ours->find("step_dtype"); dtype && dtype->is_string())
    marks.step_dtype = dtype->as_string();
  if (const Value* maps = ours->find("maps"); maps && maps->is_dict()) {
    marks.maps = *maps;
    marks.ids_implied = true;  // of those that the files have
  }
  if (const Value* state = ours->find("state"); state && state->is_dict()) marks.state = *state;
  if (const Value* implied = ours->find("ids_implied"))
    marks.ids_implied = implied->kind() == Value::Kind::kBool && implied->as_bool();
}

void check_unique(const std::vector<Wrapper>& wrappers) {
  std::set<std::string> keys, names;
  for (const Wrapper& wrapper : wrappers)
    for (const Backing& backing : wrapper.backings) {
      if (!keys.insert(joined(wrapper.path, backing.name)).second)
        corrupt("all wrappers", fmt::format("\"{}\" is there twice",
                                            printable(joined(wrapper.path, backing.name))));
      for (const Parameter& parameter : backing.parameters)
        if (!names.insert(joined(wrapper.path, parameter.name)).second)
          corrupt("all wrappers", fmt::format("the parameter \"{}\" is there twice",
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
  const Value* wrappers = value.find("param_metadata");
  if (!wrappers || !is_sequence(*wrappers)) return false;
  return std::ranges::all_of(wrappers->as_list(), [](const Value& wrapper) {
    return wrapper.find("fsdp_path") && (wrapper.find("params") || wrapper.find("is_flat"));
  });
}

RankMetadata parse_metadata(const Value& value) {
  RankMetadata out;
  const ValueList& wrappers = list_field(value, "param_metadata", "top");
  for (std::size_t i = 0; i < wrappers.size(); ++i)
    out.wrappers.push_back(parse_wrapper(wrappers[i], i));
  check_unique(out.wrappers);
  if (value.find("buffer_names"))
    for (const Value& name : list_field(value, "buffer_names", "top"))
      out.buffers.push_back(clean_path(text_of(name, "buffer_names")));
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
