#pragma once
// NameMap: renames FQNs by rules, and checks that no two names become one. Pure data.
//
//   strip_prefix first, then `map`, else the first of `renames` that matches the whole name; a `*`
//   on the left is any run (dots included), the n-th `*` on the right stands for what the n-th on
//   the left matched
//
// "module.layers.0.w" --strip module.--> "layers.0.w" --layers.*=h.*--> "h.0.w"
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

struct NameRules {
  std::string strip_prefix;                                  // "module." or "module": components
  std::vector<std::pair<std::string, std::string>> map;      // exact old -> new
  std::vector<std::pair<std::string, std::string>> renames;  // "layers.*" -> "h.*"
  bool empty() const { return strip_prefix.empty() && map.empty() && renames.empty(); }
};

/// "OLD=NEW". Throws kInvalidArgument: no '=', an empty side, more `*` on the right than on the
/// left.
std::pair<std::string, std::string> parse_rename(std::string_view text);

class NameMap {
 public:
  /// Throws kInvalidArgument for rules that contradict themselves.
  explicit NameMap(NameRules rules);
  /// The new name. Not thread-safe: remembers which rules were used.
  std::string apply(const std::string& name);
  /// Throws kInvalidArgument naming the first rule that matched no name, with the hint that
  /// `advice` returns for the rule's name or pattern.
  using Advice = std::function<std::string(const std::string& pattern)>;
  void check_all_used(const Advice& advice = {}) const;
  /// Throws kInvalidArgument when two of `names` get one new name, naming all three, and when one
  /// would have none.
  void check_bijection(const std::vector<std::string>& names);

 private:
  NameRules rules_;
  bool prefix_used_ = false;
  std::vector<bool> map_used_;
  std::vector<bool> rename_used_;
};

}  // namespace tessera
