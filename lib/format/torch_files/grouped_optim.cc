#include "lib/format/torch_files/grouped_optim.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include "lib/state/same_bytes.h"

namespace tessera {
namespace {

using Form = GroupedLeaf::Form;

/// Numbers that optimizers keep as tensors without dims whatever their parameter's shape.
constexpr std::array<std::string_view, 4> kCounters = {"step", "mu_product", "eta", "mu"};

}  // namespace

std::size_t GroupedOptimizer::add_parameter(std::string name, Shape shape) {
  parameters_.push_back({std::move(name), std::move(shape), {}, -1});
  return parameters_.size() - 1;
}

Form GroupedOptimizer::form_of(std::size_t parameter, std::string_view name,
                               const Value& value) const {
  if (value.is_tensor()) {
    const Shape& shape = source_->tensors[value.tensor_index()].spec.shape;
    const bool counter = std::ranges::find(kCounters, name) != kCounters.end();
    if (shape == parameters_[parameter].shape && !(shape.rank() == 0 && counter))
      return Form::kSharded;
    return shape.rank() == 0 ? Form::kScalar : Form::kTensor;
  }
  const bool list = value.kind() == Value::Kind::kList && !value.as_list().empty() &&
                    std::ranges::all_of(value.as_list(), &Value::is_tensor);
  return list ? Form::kList : Form::kValue;
}

void GroupedOptimizer::add_leaf(std::size_t parameter, std::string name, const Value& value) {
  const Form form = form_of(parameter, name, value);
  add_leaf(parameter, {std::move(name), form, {}, value});
}

void GroupedOptimizer::add_leaf(std::size_t parameter, GroupedLeaf leaf) {
  if (leaf.value.is_tensor()) leaf.tensors = {leaf.value.tensor_index()};
  if (leaf.form == Form::kList)
    for (const Value& item : leaf.value.as_list()) leaf.tensors.push_back(item.tensor_index());
  parameters_[parameter].state.push_back(std::move(leaf));
}

void GroupedOptimizer::add_item(std::size_t parameter, const std::string& name,
                                const Value& value) {
  if (!value.is_tensor())
    fail(Code::kUnsupported, fmt::format("optimizer state \"{}\" is a list of tensors and other "
                                         "values",
                                         printable(name)));
  GroupedState& state = parameters_[parameter].state;
  auto known = std::ranges::find(state, name, &GroupedLeaf::name);
  if (known == state.end()) known = state.insert(known, {name, Form::kList, {}, {}});
  known->tensors.push_back(value.tensor_index());
}

void GroupedOptimizer::add_group(OptimizerGroup group) {
  for (const std::size_t member : group.members)
    parameters_[member].group = static_cast<std::int64_t>(groups_.size());
  groups_.push_back(std::move(group));
}

std::optional<double> GroupedOptimizer::number_of(std::uint32_t tensor) const {
  const auto found =
      std::ranges::lower_bound(steps_, tensor, {}, &std::pair<std::uint32_t, double>::first);
  if (found == steps_.end() || found->first != tensor) return std::nullopt;
  return found->second;
}

bool GroupedOptimizer::is_same(const GroupedLeaf& a, const GroupedLeaf& b) const {
  if (a.form != b.form) return false;
  if (a.form == Form::kValue) return a.value == b.value;
  return std::ranges::equal(a.tensors, b.tensors, [&](std::uint32_t x, std::uint32_t y) {
    if (same_bytes(*source_, x, y)) return true;
    const auto one = number_of(x), other = number_of(y);
    return one && other && *one == *other && source_->tensors[x].spec == source_->tensors[y].spec;
  });
}

/// What keeps two leaves out of one buffer, whatever they hold.
std::string GroupedOptimizer::difference(const GroupedLeaf& a, const GroupedLeaf& b) const {
  const bool sharded = a.form == Form::kSharded;
  if (sharded != (b.form == Form::kSharded))
    return fmt::format("\"{}\" has its parameter's shape in one of them alone", printable(a.name));
  if (!sharded) return "";
  const DType one = source_->tensors[a.tensors[0]].spec.dtype,
              other = source_->tensors[b.tensors[0]].spec.dtype;
  if (one == other) return "";
  return fmt::format("\"{}\" is {} in one and {} in the other", printable(a.name), torch_name(one),
                     torch_name(other));
}

/// Brings the leaves of `other` in the order of `first`; why they are not the same ones, or "".
std::string GroupedOptimizer::arrange(const GroupedState& first, GroupedState& other) const {
  std::map<std::string_view, std::size_t> known;
  for (std::size_t i = 0; i < other.size(); ++i) known.emplace(other[i].name, i);
  std::vector<std::size_t> order;
  for (const GroupedLeaf& leaf : first) {
    const auto found = known.find(leaf.name);
    if (found == known.end())
      return fmt::format("only one of them has \"{}\"", printable(leaf.name));
    order.push_back(found->second);
    known.erase(found);
  }
  if (order.size() != other.size())
    return fmt::format("only one of them has \"{}\"",
                       known.empty() ? "" : printable(known.begin()->first));
  GroupedState arranged;
  for (const std::size_t i : order) arranged.push_back(std::move(other[i]));
  other = std::move(arranged);
  return "";
}

std::optional<GroupedOptimizer::Apart> GroupedOptimizer::unite(std::span<const std::size_t> members,
                                                               bool equal_numbers) {
  for (std::size_t m = 1; m < members.size(); ++m) {
    const Parameter& first = parameters_[members[0]];
    Parameter& other = parameters_[members[m]];
    const auto apart = [&](std::string_view what, bool number) {
      return Apart{fmt::format("\"{}\" and \"{}\" share a flat buffer, but {}",
                               printable(first.name), printable(other.name), what),
                   number};
    };
    if (const std::string what = arrange(first.state, other.state); !what.empty())
      return apart(what, false);
    for (std::size_t i = 0; i < first.state.size(); ++i) {
      const GroupedLeaf &a = first.state[i], &b = other.state[i];
      if (const std::string what = difference(a, b); !what.empty()) return apart(what, false);
      if (equal_numbers && a.form != Form::kSharded && !is_same(a, b))
        return apart(fmt::format("\"{}\" is not the same in both", printable(a.name)), true);
    }
    if (first.group != other.group) return apart("they are in two groups", false);
  }
  return std::nullopt;
}

void refuse_second_optimizer(std::string_view one, std::string_view other,
                             std::string_view holder) {
  fail(Code::kUnsupported,
       fmt::format("there are several optimizers (\"{}\", \"{}\"); {} holds one", printable(one),
                   printable(other), holder),
       fmt::format("leave one out: --exclude '{}.*'", other.empty() ? "state" : printable(other)));
}

void refuse_unknown_parameter(std::string_view name) {
  fail(Code::kUnsupported,
       fmt::format("the optimizer keeps \"{}\", which no parameter of the model is called",
                   printable(name)),
       fmt::format("take the model along, or leave it out with --exclude '*{}*' or --only model; "
                   "where the model has flat parameters, --flat-layout FILE names their weights",
                   printable(name)));
}

void refuse_unlisted_parameter(std::string_view name) {
  fail(Code::kUnsupported,
       fmt::format("the optimizer keeps state of \"{}\", which no group lists", printable(name)),
       fmt::format("leave it out: --exclude '*{}*'", printable(name)));
}

Value param_groups_value(const std::vector<OptimizerGroup>& groups, std::vector<ValueList> params,
                         const std::function<Value(const Value&)>& take) {
  ValueList out;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    ValueDict group;
    for (const auto& [key, value] : groups[g].options) group.emplace_back(key, take(value));
    group.emplace_back(Value::string("params"), Value::list(std::move(params[g])));
    out.push_back(Value::dict(std::move(group)));
  }
  return Value::list(std::move(out));
}

}  // namespace tessera
