#pragma once
// Names with captures: "layers.{layer}.w1.{expert}": each {x} is a run of characters without a dot.
// A capture may count from a number of the model:
//
//   {layer<layers}   numbers below it only (any run while it is not known)
//   {mtp+layers}     numbers from it on, captured as what they are more: with 61 layers "61" is "0"
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

using Captures = std::map<std::string, std::string>;
/// What captures count from, as far as it is known.
using PatternNumbers = std::map<std::string, std::int64_t>;

class NamePattern {
 public:
  /// Throws kInvalidArgument for an unclosed or empty {}, or two captures side by side.
  explicit NamePattern(std::string_view pattern, const PatternNumbers& numbers = {});
  std::optional<Captures> match(std::string_view name) const;
  /// Throws kInvalidArgument when a capture has no value.
  std::string fill(const Captures& captures) const;
  /// Names of all captures.
  std::set<std::string> captures() const;
  /// Names of the numbers that captures count from.
  std::set<std::string> numbers() const;
  std::string text() const;

 private:
  struct Piece {
    bool capture = false;
    std::string text;
    char count = 0;  // '<' or '+': as above
    std::string number = {};
    std::optional<std::int64_t> value = {};  // of `number`
  };
  static Piece capture_of(std::string_view inside, const PatternNumbers& numbers);
  static std::optional<std::string> value_of(const Piece& piece, std::string_view run);
  bool match_from(std::size_t piece, std::string_view rest, Captures& captures) const;
  std::vector<Piece> pieces_;
};

}  // namespace tessera
