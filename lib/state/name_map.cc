#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/name_map.h>

#include <algorithm>
#include <map>
#include <optional>

namespace tessera {

namespace {

std::vector<std::string_view> literals_of(std::string_view pattern) {
  std::vector<std::string_view> out;
  for (;;) {
    std::size_t star = pattern.find('*');
    out.push_back(pattern.substr(0, star));
    if (star == std::string_view::npos) return out;
    pattern.remove_prefix(star + 1);
  }
}

/// What each `*` stands for, each as short as the rest allows; nullopt: no match.
std::optional<std::vector<std::string_view>> match(std::string_view pattern,
                                                   std::string_view name) {
  std::vector<std::string_view> literals = literals_of(pattern);
  if (!name.starts_with(literals.front())) return std::nullopt;
  if (literals.size() == 1) {
    if (name != literals.front()) return std::nullopt;
    return std::vector<std::string_view>{};
  }
  std::size_t tail = literals.back().size();
  std::size_t at = literals.front().size();
  if (name.size() < at + tail || !name.ends_with(literals.back())) return std::nullopt;
  std::size_t end = name.size() - tail;
  std::vector<std::string_view> stars;
  for (std::size_t i = 1; i + 1 < literals.size(); ++i) {
    std::size_t found = name.substr(0, end).find(literals[i], at);
    if (found == std::string_view::npos) return std::nullopt;
    stars.push_back(name.substr(at, found - at));
    at = found + literals[i].size();
  }
  stars.push_back(name.substr(at, end - at));
  return stars;
}

std::string fill(std::string_view pattern, const std::vector<std::string_view>& stars) {
  std::vector<std::string_view> literals = literals_of(pattern);
  std::string out(literals.front());
  for (std::size_t i = 1; i < literals.size(); ++i) {
    out += stars[i - 1];
    out += literals[i];
  }
  return out;
}

void check_rename(const std::string& from, const std::string& to) {
  auto stars = [](const std::string& s) { return std::count(s.begin(), s.end(), '*'); };
  if (from.empty() || to.empty()) {
    fail(Code::kInvalidArgument, fmt::format("rename \"{}={}\": a side is empty", from, to));
  }
  if (stars(to) > stars(from)) {
    fail(Code::kInvalidArgument,
         fmt::format("rename \"{}={}\": more * on the right than on the left", from, to));
  }
}

}  // namespace

std::pair<std::string, std::string> parse_rename(std::string_view text) {
  std::size_t equals = text.find('=');
  if (equals == std::string_view::npos) {
    fail(Code::kInvalidArgument, fmt::format("rename \"{}\": expected OLD=NEW", text),
         "for example --rename 'layers.*=h.*'");
  }
  std::pair<std::string, std::string> rule{text.substr(0, equals), text.substr(equals + 1)};
  check_rename(rule.first, rule.second);
  return rule;
}

NameMap::NameMap(NameRules rules)
    : rules_(std::move(rules)), map_used_(rules_.map.size()), rename_used_(rules_.renames.size()) {
  for (const auto& [from, to] : rules_.renames) check_rename(from, to);
  std::sort(rules_.map.begin(), rules_.map.end());
  for (std::size_t i = 1; i < rules_.map.size(); ++i) {
    if (rules_.map[i].first == rules_.map[i - 1].first) {
      fail(Code::kInvalidArgument,
           fmt::format("the name map has two entries for \"{}\"", rules_.map[i].first));
    }
  }
}

std::string NameMap::apply(const std::string& name) {
  std::string out = name;
  std::string prefix = rules_.strip_prefix;
  if (!prefix.empty() && !prefix.ends_with('.')) prefix += '.';  // whole components only
  if (!prefix.empty() && out.starts_with(prefix) && out.size() > prefix.size()) {
    out.erase(0, prefix.size());
    prefix_used_ = true;
  }
  auto exact = std::lower_bound(rules_.map.begin(), rules_.map.end(), out,
                                [](const auto& rule, const auto& key) { return rule.first < key; });
  if (exact != rules_.map.end() && exact->first == out) {
    map_used_[static_cast<std::size_t>(exact - rules_.map.begin())] = true;
    return exact->second;
  }
  for (std::size_t i = 0; i < rules_.renames.size(); ++i) {
    if (auto stars = match(rules_.renames[i].first, out)) {
      rename_used_[i] = true;
      return fill(rules_.renames[i].second, *stars);
    }
  }
  return out;
}

void NameMap::check_all_used(const Advice& advice) const {
  const auto unused = [&advice](const std::string& what, const std::string& pattern) {
    fail(Code::kInvalidArgument, what, advice ? advice(pattern) : std::string());
  };
  if (!rules_.strip_prefix.empty() && !prefix_used_) {
    unused(
        fmt::format("--strip-prefix: no name begins with \"{}\"", printable(rules_.strip_prefix)),
        rules_.strip_prefix);
  }
  for (std::size_t i = 0; i < map_used_.size(); ++i) {
    const std::string& from = rules_.map[i].first;
    if (!map_used_[i])
      unused(fmt::format("--map: there is no parameter \"{}\"", printable(from)), from);
  }
  for (std::size_t i = 0; i < rename_used_.size(); ++i) {
    const auto& [from, to] = rules_.renames[i];
    if (!rename_used_[i])
      unused(fmt::format("--rename \"{}={}\" matches no parameter", printable(from), printable(to)),
             from);
  }
}

void NameMap::check_bijection(const std::vector<std::string>& names) {
  std::map<std::string, std::string> taken;
  for (const std::string& name : names) {
    auto [slot, fresh] = taken.try_emplace(apply(name), name);
    if (slot->first.empty() && !name.empty())
      fail(Code::kInvalidArgument, fmt::format("\"{}\" would have no name left", printable(name)),
           "a * may stand for nothing: write more of the name on the right");
    if (!fresh && slot->second != name) {
      fail(Code::kInvalidArgument,
           fmt::format("both \"{}\" and \"{}\" would be named \"{}\"", printable(slot->second),
                       printable(name), printable(slot->first)),
           "rename the other too, or leave one out with --exclude");
    }
  }
}

}  // namespace tessera
