#pragma once
// Names with captures: "layers.{layer}.w1.{expert}": each {x} is a run of characters without a dot.
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

using Captures = std::map<std::string, std::string>;

class NamePattern {
 public:
  /// Throws kInvalidArgument for an unclosed or empty {}, or two captures side by side.
  explicit NamePattern(std::string_view pattern);
  std::optional<Captures> match(std::string_view name) const;
  /// Throws kInvalidArgument when a capture has no value.
  std::string fill(const Captures& captures) const;
  bool has(std::string_view capture) const;
  std::string text() const;

 private:
  struct Piece {
    bool capture = false;
    std::string text;
  };
  bool match_from(std::size_t piece, std::string_view rest, Captures& captures) const;
  std::vector<Piece> pieces_;
};

}  // namespace tessera
