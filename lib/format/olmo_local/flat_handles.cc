#include "lib/format/olmo_local/flat_handles.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include "lib/state/fields.h"

namespace tessera::olmo_local {
namespace {

constexpr std::string_view kWrapper = "_fsdp_wrapped_module.";
constexpr std::string_view kDocument = "flat parameters";

/// Elements [begin, end) of a parameter, and where they begin in the shard.
struct Held {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t at = 0;
};

/// A named tuple is an object of its class, made of the tuple.
const Value& plain_tuple(const Value& value) {
  if (value.kind() != Value::Kind::kOpaque) return value;
  return value.as_opaque().arguments;
}

/// _ShardParamInfo: (in_shard, offset_in_shard, numel_in_shard, first, last).
Held held_by_info(const Field& info) {
  const Value& tuple = plain_tuple(info.value());
  if (!is_sequence(tuple) || tuple.as_list().size() != 5) info.refuse("a _ShardParamInfo");
  const std::vector<Field> fields = Field(tuple, kDocument, info.path()).items();
  if (!fields[0].flag()) return {};
  const Held held{fields[3].count(), fields[4].count() + 1, fields[1].count()};
  if (fields[2].count() != held.end - held.begin)
    info.corrupt("its count is not that of its elements");
  return held;
}

std::vector<Held> held_parts(const Field& handle, std::size_t parameters) {
  std::vector<Held> out(parameters);
  if (const auto infos = handle.find("flat_param._shard_param_infos")) {
    const std::vector<Field> items = infos->items();
    if (items.size() != parameters) infos->corrupt("names and shards differ in length");
    for (std::size_t p = 0; p < parameters; ++p) out[p] = held_by_info(items[p]);
    return out;
  }
  const Field indices = handle.at("flat_param._shard_indices");
  const std::vector<Field> offsets = handle.at("flat_param._shard_param_offsets").items();
  const std::vector<std::int64_t> range = indices.counts();
  if (range.size() != 2) indices.refuse("the first and the last parameter");
  if (offsets.empty()) return out;
  const auto first = static_cast<std::size_t>(range[0]);
  if (first > parameters || offsets.size() > parameters - first)
    indices.corrupt("more parameters are in the shard than have names");
  std::int64_t at = 0;
  for (std::size_t p = 0; p < offsets.size(); ++p) {
    const std::vector<std::int64_t> ends = offsets[p].counts();
    if (ends.size() != 2 || ends[0] > ends[1]) offsets[p].refuse("first and last element");
    out[first + p] = {ends[0], ends[1] + 1, at};
    at += ends[1] + 1 - ends[0];
  }
  return out;
}

void add_handle(const TorchArchive& archive, const Field& handle, const std::string& prefix,
                std::vector<ParameterRun>& out) {
  const Field data = handle.at("flat_param.data");
  const ArchiveTensor& flat = archive.tensors.at(data.tensor());
  if (flat.shape.rank() != 1) data.refuse("a tensor of one dim");
  const std::vector<std::string> names = handle.at("flat_param._fqns").texts();
  const Field shapes = handle.at("flat_param._shapes");
  const std::vector<Field> shape_of = shapes.items();
  if (shape_of.size() != names.size()) shapes.corrupt("names and shapes differ in length");
  const std::vector<Held> held = held_parts(handle, names.size());
  for (std::size_t p = 0; p < names.size(); ++p) {
    ParameterRun run{prefix + names[p], {flat.dtype, shape_of[p].shape()}, held[p].begin,
                     held[p].end,       data.value().tensor_index(),       held[p].at};
    const std::int64_t numel = run.end - run.begin;
    if (run.begin > run.end || run.end > run.spec.shape.numel())
      shape_of[p].corrupt(fmt::format("elements {} to {} of a parameter of {}", run.begin, run.end,
                                      run.spec.shape.numel()));
    if (numel > 0 &&
        (run.first_element > flat.shape.numel() || numel > flat.shape.numel() - run.first_element))
      data.corrupt(fmt::format("\"{}\" leaves the shard of {} elements", printable(names[p]),
                               flat.shape.numel()));
    out.push_back(std::move(run));
  }
}

}  // namespace

std::string without_wrappers(std::string_view name) {
  std::string out(name);
  for (std::size_t at = 0; (at = out.find(kWrapper, at)) != std::string::npos;)
    out.erase(at, kWrapper.size());
  return out;
}

std::vector<ParameterRun> parameter_runs(const TorchArchive& archive) {
  std::vector<ParameterRun> out;
  for (const Field& module : Field(archive.root, kDocument).at("modules").items()) {
    const std::string name = without_wrappers(module.at("name").text());
    for (const Field& handle : module.at("handles").items())
      add_handle(archive, handle, name.empty() ? "" : name + ".", out);
  }
  return out;
}

}  // namespace tessera::olmo_local
