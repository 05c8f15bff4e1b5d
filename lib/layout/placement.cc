#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/layout/placement.h>

#include <charconv>

namespace tessera {
namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

[[noreturn]] void refuse(std::string_view text) {
  fail(Code::kInvalidArgument, fmt::format("\"{}\" is no placement", printable(text)),
       "write shard(DIM), strided(DIM,FACTOR), replicate or flat");
}

/// The numbers of "name(1,2)"; refuses anything else.
std::vector<std::int64_t> arguments(std::string_view text, std::string_view name) {
  std::string_view rest = text.substr(name.size());
  if (rest.size() < 2 || rest.front() != '(' || rest.back() != ')') refuse(text);
  std::vector<std::int64_t> numbers;
  for (const std::string_view part : split(rest.substr(1, rest.size() - 2), ',')) {
    const std::string_view digits = trimmed(part);
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (error != std::errc{} || end != digits.data() + digits.size() || number < 0) refuse(text);
    numbers.push_back(number);
  }
  return numbers;
}

}  // namespace

Placement Placement::parse(std::string_view whole) {
  constexpr std::int64_t kMaxDim = 63;
  const std::string_view text = trimmed(whole);
  if (text == "replicate") return replicate();
  if (text == "flat") return flat();
  if (text.starts_with("shard")) {
    const auto numbers = arguments(text, "shard");
    if (numbers.size() != 1 || numbers[0] > kMaxDim) refuse(text);
    return shard(static_cast<int>(numbers[0]));
  }
  if (text.starts_with("strided")) {
    const auto numbers = arguments(text, "strided");
    if (numbers.size() != 2 || numbers[0] > kMaxDim || numbers[1] < 1) refuse(text);
    return strided_shard(static_cast<int>(numbers[0]), numbers[1]);
  }
  refuse(text);
}

std::vector<Placement> Placement::parse_list(std::string_view text) {
  std::vector<Placement> placements;
  std::size_t begin = 0;
  int depth = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && text[i] == '(') ++depth;
    if (i < text.size() && text[i] == ')') --depth;
    if (i < text.size() && (text[i] != ',' || depth > 0)) continue;
    placements.push_back(parse(text.substr(begin, i - begin)));
    begin = i + 1;
  }
  return placements;
}

std::string Placement::to_string() const {
  switch (kind) {
    case Kind::kReplicate:
      return "replicate";
    case Kind::kShard:
      return fmt::format("shard({})", dim);
    case Kind::kStridedShard:
      return fmt::format("strided({},{})", dim, split_factor);
    case Kind::kFlat:
      return "flat";
    case Kind::kPartial:
      return "partial";
  }
  TESSERA_CHECK(!"a placement kind");
  return {};
}

}  // namespace tessera
