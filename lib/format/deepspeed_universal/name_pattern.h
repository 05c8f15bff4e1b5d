#pragma once
// Patterns of parameters' names, as clients of DeepSpeed write them: regular expressions of Python
// that re.match() would try.
//
//   understood   literals, `.`, `\d`, `\w`, escaped punctuation; `*` `+` `?` behind one of them
//                (lazy ones too); `^` in front, `$` at the end
//   not          groups, alternatives, classes, counts, look-around
//
// A match takes time by the product of both lengths, whatever the pattern. Pure.
#include <bitset>
#include <optional>
#include <string_view>
#include <vector>

namespace tessera::deepspeed {

class NamePattern {
 public:
  /// nullopt: not understood.
  static std::optional<NamePattern> parse(std::string_view text);
  /// From the name's beginning, and to its end only where the pattern says so.
  bool matches(std::string_view name) const;

 private:
  using Bytes = std::bitset<256>;
  struct Element {
    Bytes bytes;
    bool may_lack = false;
    bool may_repeat = false;
  };
  static std::optional<Bytes> single(std::string_view& text);
  static bool take_count(std::string_view& text, Element& element);
  /// With every place that is reached without a byte.
  void reach(std::vector<bool>& places, std::size_t place) const;

  std::vector<Element> elements_;
  bool whole_ = false;
};

}  // namespace tessera::deepspeed
