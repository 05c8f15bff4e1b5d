#include "lib/format/fairscale_fsdp/parts.h"

#include <algorithm>

namespace tessera::fairscale {
namespace {

constexpr int kSearchDepth = 3;

PathItem item_of(const Value& key) {
  if (key.is_int()) return int_key_item(key.as_int());
  return key_item(key.is_string() ? key.as_string() : "?");
}

const Value* search_metadata(const Value& value, int depth) {
  if (is_metadata(value)) return &value;
  if (depth == 0 || !value.is_dict() || is_optimizer(value)) return nullptr;
  for (const auto& [key, child] : value.as_dict())
    if (const Value* found = search_metadata(child, depth - 1)) return found;
  return nullptr;
}

class PartFinder {
 public:
  PartFinder(std::uint32_t file, const std::vector<std::string>& keys, RankParts& parts)
      : file_(file), keys_(keys), parts_(parts) {}

  /// Takes parts at and below `value`; false when there is none.
  bool take(const Value& value, const Path& path, int depth) {
    const Part part{&value, file_, path};
    if (is_metadata(value)) return set(parts_.metadata, part);
    if (is_optimizer(value))
      return set(is_consolidated(value) ? parts_.consolidated : parts_.optimizer, part);
    if (!value.is_dict()) return false;
    if (holds_weights(value)) return set(parts_.weights, part);
    return depth > 0 && take_children(value, path, depth);
  }

 private:
  bool take_children(const Value& value, const Path& path, int depth) {
    std::vector<Part> rest;
    bool any = false;
    for (const auto& [key, child] : value.as_dict()) {
      Path below = path;
      below.push_back(item_of(key));
      if (take(child, below, depth - 1))
        any = true;
      else
        rest.push_back({&child, file_, std::move(below)});
    }
    if (any || path.empty()) parts_.extras.insert(parts_.extras.end(), rest.begin(), rest.end());
    return any;
  }
  /// The first of a kind is the part; a second one stays with the extras.
  static bool set(Part& slot, const Part& part) {
    if (slot) return false;
    slot = part;
    return true;
  }
  bool holds_weights(const Value& value) const {
    return std::ranges::any_of(value.as_dict(), [&](const auto& entry) {
      return entry.first.is_string() && entry.second.is_tensor() &&
             std::ranges::binary_search(keys_, clean_path(entry.first.as_string()));
    });
  }

  std::uint32_t file_;
  const std::vector<std::string>& keys_;
  RankParts& parts_;
};

}  // namespace

const Value* find_metadata(const Value& root) { return search_metadata(root, kSearchDepth); }

bool is_optimizer(const Value& value) {
  const Value* state = value.find("state");
  const Value* groups = value.find("param_groups");
  return state && state->is_dict() && groups && groups->kind() == Value::Kind::kList;
}

bool is_consolidated(const Value& optimizer) { return optimizer.find("param_id_map") != nullptr; }

void find_parts(const Value& root, std::uint32_t file, const std::vector<std::string>& keys,
                RankParts& parts) {
  PartFinder(file, keys, parts).take(root, {}, kSearchDepth);
}

std::vector<std::string> weight_keys(const RankMetadata& metadata) {
  std::vector<std::string> keys;
  for (const Wrapper& wrapper : metadata.wrappers)
    for (const Backing& backing : wrapper.backings) {
      keys.push_back(joined(wrapper.path, backing.name));
      if (const std::string_view older = other_spelling(backing.name); !older.empty())
        keys.push_back(joined(wrapper.path, older));
    }
  std::ranges::sort(keys);
  return keys;
}

std::vector<std::string> full_keys(const RankMetadata& metadata) {
  std::vector<std::string> keys = metadata.buffers;
  for (const Wrapper& wrapper : metadata.wrappers)
    for (const Backing& backing : wrapper.backings)
      for (const Parameter& parameter : backing.parameters)
        keys.push_back(joined(wrapper.path, parameter.name));
  std::ranges::sort(keys);
  return keys;
}

}  // namespace tessera::fairscale
