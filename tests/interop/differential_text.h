#pragma once
// What differential_reader says of a value: a text in which everything that Python tells apart
// differs, the same that differential_oracle.py makes of what PyTorch read.
#include <tessera/state/value.h>

#include <cstdint>
#include <functional>
#include <string>

namespace tessera::test {

constexpr std::size_t kMostText = std::size_t{1} << 20;
constexpr std::int64_t kMostElements = 1 << 16;

/// Thrown where a file is too large to be compared.
struct TooLarge {};

class ValueText {
 public:
  using TensorText = std::function<std::string(std::uint32_t)>;
  /// `tensor`: what to say of one, by its index.
  explicit ValueText(TensorText tensor) : tensor_(std::move(tensor)) {}

  std::string of(const Value& value);

  static std::string real(double value);
  static std::string bytes(char kind, const std::string& text);

 private:
  std::string items(const ValueList& list, bool sorted);
  std::string pairs(const ValueDict& dict);
  std::string checked(std::string text);

  TensorText tensor_;
  std::size_t length_ = 0;
};

}  // namespace tessera::test
