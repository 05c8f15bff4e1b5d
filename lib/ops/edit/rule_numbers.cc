#include "lib/ops/edit/rule_numbers.h"

#include <fmt/format.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <charconv>
#include <limits>

namespace tessera {

RuleNumbers::RuleNumbers(const RuleSet& rules, const RulesRequest& request,
                         const std::map<std::string, Shape>& shapes, const ModelNumber& number)
    : rules_(rules), request_(request), shapes_(shapes), number_(number) {
  std::vector<std::string_view> known;
  for (const RuleParameter& parameter : rules.parameters) known.push_back(parameter.name);
  for (const auto& [name, value] : request.parameters) {
    if (std::ranges::find(known, name) != known.end()) continue;
    const std::string near = nearest(name, known);
    fail(Code::kInvalidArgument,
         fmt::format("rules {} have no parameter \"{}\"", rules.name, printable(name)),
         near.empty() ? std::string() : fmt::format("did you mean {}?", near));
  }
}

PatternNumbers RuleNumbers::of_names() const {
  PatternNumbers numbers;
  for (const RuleParameter& parameter : rules_.parameters) {
    if (parameter.first.empty() && parameter.count.empty()) continue;
    if (const auto found = known(parameter)) numbers.emplace(parameter.name, *found);
  }
  return numbers;
}

std::optional<std::int64_t> RuleNumbers::known(const RuleParameter& parameter) const {
  if (const auto given = request_.parameters.find(parameter.name);
      given != request_.parameters.end())
    return given->second;
  if (const auto found = counted(parameter)) return found;
  for (const std::string& key : parameter.keys)
    if (const auto found = number_(key); found && *found >= 1) return found;
  return std::nullopt;
}

std::optional<std::int64_t> RuleNumbers::counted(const RuleParameter& parameter) const {
  std::optional<std::int64_t> found;
  const auto look = [&](const std::string& text, bool least) {
    const NamePattern pattern(text);
    for (const auto& [fqn, shape] : shapes_) {
      const auto captures = pattern.match(fqn);
      if (!captures || captures->size() != 1) continue;
      const std::string& run = captures->begin()->second;
      std::int64_t number = 0;
      const auto [end, error] = std::from_chars(run.data(), run.data() + run.size(), number);
      if (error != std::errc() || end != run.data() + run.size() || number < 0 ||
          number == std::numeric_limits<std::int64_t>::max())
        continue;
      const std::int64_t value = least ? number : number + 1;
      if (!found || (least ? value < *found : value > *found)) found = value;
    }
  };
  for (const std::string& text : parameter.first) look(text, true);
  if (found) return found;
  for (const std::string& text : parameter.count) look(text, false);
  return found;
}

std::int64_t RuleNumbers::operand(std::string_view text, const std::string& fqn, int depth) {
  if (is_decimal(text)) {
    std::int64_t value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
  }
  const auto parameter =
      std::ranges::find_if(rules_.parameters, [&](const auto& p) { return p.name == text; });
  if (parameter == rules_.parameters.end() || depth > 8) {
    fail(Code::kInvalidArgument,
         fmt::format("rules {}: \"{}\" is no parameter", rules_.name, printable(text)));
  }
  if (const auto found = known(*parameter)) return *found;
  if (!parameter->fallback.empty()) return operand(parameter->fallback, fqn, depth + 1);
  fail(Code::kInvalidArgument,
       fmt::format(
           "the rules need the number of {} (for \"{}\"), which neither the checkpoint nor a "
           "config.json beside it says",
           parameter->about, printable(fqn)),
       fmt::format("add it: --rules {},{}=N", request_.name, parameter->name));
}

std::int64_t RuleNumbers::evaluate(const std::string& expression, const std::string& fqn) {
  std::int64_t value = 1;
  char operation = '*';
  for (std::size_t at = 0; at <= expression.size();) {
    const std::size_t end = std::min(expression.find_first_of("*/", at), expression.size());
    const std::int64_t next = operand(std::string_view(expression).substr(at, end - at), fqn, 0);
    if (operation == '/' && (next == 0 || value % next != 0)) {
      fail(Code::kInvalidArgument,
           fmt::format("rules {}: {} is no whole number for \"{}\" ({} / {})", rules_.name,
                       expression, printable(fqn), value, next));
    }
    const std::optional<std::int64_t> result =
        operation == '/' ? value / next : checked_mul(value, next);
    if (!result) fail(Code::kInvalidArgument, fmt::format("{} is too large", expression));
    value = *result;
    if (end == expression.size()) break;
    operation = expression[end];
    at = end + 1;
  }
  if (value < 1)
    fail(Code::kInvalidArgument,
         fmt::format("rules {}: {} is not positive", rules_.name, expression));
  return value;
}

}  // namespace tessera
