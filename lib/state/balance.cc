#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/balance.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace tessera {
namespace {

std::string in_words(const StateCount& count) {
  return fmt::format("{} tensors, {} values, {} tensors inside of these, {} bytes", count.tensors,
                     count.values, count.inner_tensors, count.bytes);
}

std::int64_t bytes_of(const Manifest& manifest, std::uint32_t tensor) {
  return manifest.tensors[tensor].spec.size_bytes();
}

StateCount count_entry(const Manifest& manifest, const Value& value) {
  StateCount count;
  if (value.is_tensor()) {
    count.tensors = 1;
    count.bytes = bytes_of(manifest, value.tensor_index());
    return count;
  }
  count.values = 1;
  for_each_tensor(value, [&](std::uint32_t tensor) {
    ++count.inner_tensors;
    count.bytes += bytes_of(manifest, tensor);
  });
  return count;
}

StateCount count_of(const LeftOut& entry) {
  StateCount count;
  count.tensors = entry.kind == LeftOut::Kind::kTensor;
  count.values = entry.kind == LeftOut::Kind::kValue;
  count.inner_tensors = static_cast<std::int64_t>(entry.inner_tensors);
  count.bytes = static_cast<std::int64_t>(entry.bytes);
  return count;
}

[[noreturn]] void broken(const std::string& what) {
  fail(Code::kInternal,
       fmt::format("the balance of what is written does not add up: {}; please report this", what));
}

/// Formats may keep counters of an optimizer as numbers, one for many parameters.
bool may_become_a_number(const EntryRole& role, const TensorSpec& spec) {
  return role.role == Role::kOptimState && spec.shape.numel() == 1;
}

/// Where the bytes of a tensor lie: two tensors at one place are one, under two names.
std::string place_of_bytes(const Manifest& manifest, const StoredTensor& tensor) {
  std::string place =
      fmt::format("{} {}", static_cast<int>(tensor.stored_dtype()), tensor.spec.shape.to_string());
  for (std::uint32_t c = 0; c < tensor.chunk_count; ++c) {
    const Source& source = manifest.source(tensor, c);
    place += fmt::format(" {}:{}:{}:{}", static_cast<int>(source.kind), source.file, source.offset,
                         source.side);
  }
  return place;
}

/// Which tensors of a manifest a plan stores, by their own bytes, those of a twin, or as a number.
class StoredTensors {
 public:
  StoredTensors(const Manifest& manifest, const OutputPlan& plan)
      : manifest_(manifest), stored_(manifest.tensors.size()) {
    for (const Segment& segment : plan.segments)
      if (segment.kind == Segment::Kind::kTensor) stored_[segment.tensor] = true;
    for (const std::uint32_t tensor : plan.restated) stored_[tensor] = true;
  }

  bool holds(std::uint32_t tensor, std::size_t entry) {
    const TensorSpec& spec = manifest_.tensors[tensor].spec;
    return stored_[tensor] || spec.shape.numel() == 0 || holds_twin_of(tensor) ||
           may_become_a_number(role(entry), spec);
  }

 private:
  bool holds_twin_of(std::uint32_t tensor) {
    if (places_.empty())
      for (std::size_t i = 0; i < stored_.size(); ++i)
        if (stored_[i]) places_.insert(place_of_bytes(manifest_, manifest_.tensors[i]));
    return manifest_.tensors[tensor].chunk_count > 0 &&
           places_.contains(place_of_bytes(manifest_, manifest_.tensors[tensor]));
  }
  const EntryRole& role(std::size_t entry) {
    if (!roles_) roles_ = find_roles(manifest_.state);
    return roles_->entries[entry];
  }

  const Manifest& manifest_;
  std::vector<bool> stored_;
  std::unordered_set<std::string> places_;  // of those; made when it is first asked for
  std::optional<Roles> roles_;
};

}  // namespace

StateCount& StateCount::operator+=(const StateCount& other) {
  tensors += other.tensors;
  values += other.values;
  inner_tensors += other.inner_tensors;
  bytes += other.bytes;
  return *this;
}

StateCount& StateCount::operator-=(const StateCount& other) {
  tensors -= other.tensors;
  values -= other.values;
  inner_tensors -= other.inner_tensors;
  bytes -= other.bytes;
  return *this;
}

StateCount count_state(const Manifest& manifest) {
  StateCount count;
  for (const StateEntry& entry : manifest.state.entries)
    count += count_entry(manifest, entry.value);
  return count;
}

void Balance::add(const LeftOut& entry, std::string_view reason) {
  const std::string why(entry.reason.empty() ? reason : std::string_view(entry.reason));
  if (why.empty())
    broken(fmt::format("nothing says why \"{}\" is left out", printable(entry.name)));
  auto group = std::ranges::find(groups_, why, &LeftOutGroup::reason);
  if (group == groups_.end()) group = groups_.insert(group, {why, {}, {}, {}});
  group->count += count_of(entry);
  const bool is_tensor = entry.kind == LeftOut::Kind::kTensor;
  (is_tensor ? group->tensors : group->values).push_back(entry.name);
}

/// Books what was left out since the last step.
StateCount Balance::take(Manifest& manifest, std::string_view reason) {
  StateCount gone;
  for (const LeftOut& entry : manifest.left_out) {
    add(entry, reason);
    gone += count_of(entry);
  }
  manifest.left_out.clear();
  return gone;
}

void Balance::open(Manifest& manifest) {
  current_ = source_ = count_state(manifest);
  source_ += take(manifest, "");
}

void Balance::add_unread(std::string name, std::string reason) {
  const LeftOut entry{LeftOut::Kind::kValue, std::move(name), std::move(reason)};
  add(entry, "");
  source_ += count_of(entry);
}

void Balance::leave_out(Manifest& manifest, std::string_view reason) {
  current_ -= take(manifest, reason);
  const StateCount now = count_state(manifest);
  if (!(now == current_))
    broken(fmt::format("{} are there where {} should be ({})", in_words(now), in_words(current_),
                       reason));
}

void Balance::restate(Manifest& manifest, std::string_view step, std::string_view reason) {
  current_ -= take(manifest, reason);
  StateCount change = count_state(manifest);
  change -= current_;
  current_ += change;
  if (!change.is_zero()) restated_.push_back({std::string(step), change});
}

void Balance::close(const Manifest& manifest, const OutputPlan& plan) {
  if (!(count_state(manifest) == current_)) broken("a step was not booked");
  std::unordered_map<std::string_view, const StateEntry*> entries;
  if (!plan.left_out.empty())
    for (const StateEntry& entry : manifest.state.entries) entries.emplace(entry.name, &entry);
  std::unordered_set<std::string_view> gone;
  written_ = current_;
  for (LeftOut left : plan.left_out) {
    const auto found = entries.find(left.name);
    if (left.kind != LeftOut::Kind::kAttribute) {
      if (found == entries.end() || !gone.insert(found->first).second) continue;
      const StateCount count = count_entry(manifest, found->second->value);
      left.kind = count.tensors ? LeftOut::Kind::kTensor : LeftOut::Kind::kValue;
      left.inner_tensors = static_cast<std::uint64_t>(count.inner_tensors);
      left.bytes = static_cast<std::uint64_t>(count.bytes);
      written_ -= count;
    }
    add(left, "");
  }
  StoredTensors stored(manifest, plan);
  for (std::size_t i = 0; i < manifest.state.entries.size(); ++i) {
    const StateEntry& entry = manifest.state.entries[i];
    if (gone.contains(entry.name)) continue;
    for_each_tensor(entry.value, [&](std::uint32_t tensor) {
      if (stored.holds(tensor, i)) return;
      broken(fmt::format("no file holds \"{}\", and nothing says why", printable(entry.name)));
    });
  }
  check();
}

StateCount Balance::accounted() const {
  StateCount count = written_;
  for (const LeftOutGroup& group : groups_) count += group.count;
  for (const RestatedStep& step : restated_) count -= step.change;
  return count;
}

void Balance::check() const {
  if (const StateCount count = accounted(); !(count == source_))
    broken(fmt::format("the source holds {}, written and left out are {}", in_words(source_),
                       in_words(count)));
}

Balance Balance::recorded(StateCount source, StateCount written, std::vector<RestatedStep> restated,
                          std::vector<LeftOutGroup> left_out) {
  Balance balance;
  balance.source_ = source;
  balance.written_ = balance.current_ = written;
  balance.restated_ = std::move(restated);
  balance.groups_ = std::move(left_out);
  if (!(balance.accounted() == source)) fail(Code::kCorrupt, "its balance does not add up");
  return balance;
}

}  // namespace tessera
