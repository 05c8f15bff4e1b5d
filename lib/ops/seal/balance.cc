// The account of a run as JSON: in the seal, and in the reports of reshard and convert.
#include <fmt/format.h>
#include <tessera/ops/seal.h>

#include "lib/ops/seal/json.h"

namespace tessera {

using namespace seal_json;

namespace {

// So that no sum of them overflows.
constexpr std::int64_t kMostCount = std::int64_t{1} << 50;
constexpr std::size_t kMostTerms = std::size_t{1} << 12;

ValueDict encode_count(const StateCount& count) {
  return {{text("tensors"), Value::integer(count.tensors)},
          {text("values"), Value::integer(count.values)},
          {text("inner_tensors"), Value::integer(count.inner_tensors)},
          {text("bytes"), Value::integer(count.bytes)}};
}

Value with_count(ValueDict object, const StateCount& count) {
  for (auto& entry : encode_count(count)) object.push_back(std::move(entry));
  return Value::dict(std::move(object));
}

Value encode_group(const LeftOutGroup& group) {
  Value counted = with_count({{text("reason"), text(group.reason)}}, group.count);
  ValueDict object = counted.as_dict();
  object.emplace_back(text("tensor_names"), strings(group.tensors));
  object.emplace_back(text("value_names"), strings(group.values));
  return Value::dict(std::move(object));
}

StateCount decode_count(const Field& object) {
  StateCount count{object.at("tensors").integer(), object.at("values").integer(),
                   object.at("inner_tensors").integer(), object.at("bytes").integer()};
  for (const std::int64_t n : {count.tensors, count.values, count.inner_tensors, count.bytes})
    if (n > kMostCount || n < -kMostCount) object.corrupt("a count is out of range");
  return count;
}

}  // namespace

Value encode_balance(const Balance& balance) {
  ValueList restated, groups, behind;
  for (const RestatedStep& step : balance.restated())
    restated.push_back(with_count({{text("step"), text(step.step)}}, step.change));
  for (const LeftOutGroup& group : balance.left_out()) groups.push_back(encode_group(group));
  for (const LeftBehind& file : balance.left_behind)
    behind.push_back(Value::dict({{text("path"), text(file.path)},
                                  {text("what"), text(file.what)},
                                  {text("bytes"), number(file.bytes)}}));
  return Value::dict({{text("source"), Value::dict(encode_count(balance.source()))},
                      {text("restated"), Value::list(std::move(restated))},
                      {text("written"), Value::dict(encode_count(balance.written()))},
                      {text("left_out"), Value::list(std::move(groups))},
                      {text("left_behind"), Value::list(std::move(behind))}});
}

Balance decode_balance(const Field& object) {
  std::vector<RestatedStep> restated;
  for (const Field& step : object.at("restated").items())
    restated.push_back({step.at("step").text(), decode_count(step)});
  std::vector<LeftOutGroup> groups;
  for (const Field& group : object.at("left_out").items())
    groups.push_back({group.at("reason").text(), decode_count(group),
                      group.at("tensor_names").texts(), group.at("value_names").texts()});
  if (restated.size() + groups.size() > kMostTerms) object.corrupt("too many groups");
  Balance balance =
      Balance::recorded(decode_count(object.at("source")), decode_count(object.at("written")),
                        std::move(restated), std::move(groups));
  for (const Field& file : object.at("left_behind").items())
    balance.left_behind.push_back({file.at("path").text(), file.at("what").text(),
                                   static_cast<std::uint64_t>(file.at("bytes").count())});
  return balance;
}

std::uint64_t balance_size_bound(const Balance& balance) {
  constexpr std::uint64_t kPerObject = 640;  // keys, indentation, four numbers
  std::uint64_t bytes = 4 * kPerObject;
  for (const RestatedStep& step : balance.restated()) bytes += kPerObject + 6 * step.step.size();
  for (const LeftOutGroup& group : balance.left_out()) {
    bytes += kPerObject + 6 * group.reason.size();
    for (const auto* names : {&group.tensors, &group.values})
      for (const std::string& name : *names) bytes += 16 + 6 * name.size();
  }
  for (const LeftBehind& file : balance.left_behind)
    bytes += kPerObject + 6 * (file.path.size() + file.what.size());
  return bytes;
}

}  // namespace tessera
