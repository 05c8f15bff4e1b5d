#include <fmt/format.h>
#include <tessera/base/error.h>

#include <algorithm>

#include "lib/format/fairscale_fsdp/reader.h"
#include "lib/state/fields.h"

namespace tessera::fairscale {
namespace {

std::string rank_key(std::size_t rank) { return fmt::format("rank_{}", rank); }

}  // namespace

void add_shared_value(Checkpoint& checkpoint, const Path& path,
                      const std::vector<std::optional<Part>>& values) {
  const auto first = std::ranges::find_if(values, [](const auto& v) { return v.has_value(); });
  if (first == values.end()) return;
  const bool one = std::ranges::all_of(values, [&](const auto& value) {
    return !value || checkpoint.bytes.same((*first)->file, *(*first)->value, value->file,
                                           *value->value) == ArchiveBytes::Answer::kEqual;
  });
  if (one) return checkpoint.builder.add_state((*first)->file, *(*first)->value, path);
  for (std::size_t r = 0; r < values.size(); ++r)
    if (values[r])
      checkpoint.builder.add_state(values[r]->file, *values[r]->value, below(path, rank_key(r)),
                                   static_cast<std::int64_t>(r));
}

void read_extras(Checkpoint& checkpoint) {
  std::vector<Path> order;
  std::map<std::string, std::vector<std::optional<Part>>> by_path;
  for (std::size_t r = 0; r < checkpoint.ranks.size(); ++r)
    for (const Part& part : checkpoint.ranks[r].parts.extras) {
      auto& values = by_path[dotted(part.path)];
      if (values.empty()) order.push_back(part.path);
      values.resize(checkpoint.ranks.size());
      values[r] = part;
    }
  for (const Path& path : order) add_shared_value(checkpoint, path, by_path[dotted(path)]);
  for (auto& [rank, own] : checkpoint.own) {
    ValueDict value;
    value.emplace_back(Value::string("weights"), Value::dict(own.weights));
    value.emplace_back(Value::string("state"), Value::dict(own.optimizer));
    const std::string name = own_state_name(rank);
    checkpoint.builder.manifest().state.entries.push_back(
        {name, root_path(name), Value::dict(std::move(value)), static_cast<std::int64_t>(rank)});
  }
}

}  // namespace tessera::fairscale
