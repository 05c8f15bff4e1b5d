#include "lib/ops/open/step_name.h"

#include <tessera/base/text.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <ranges>
#include <string>
#include <vector>

namespace tessera {
namespace {

constexpr std::array<std::string_view, 4> kWords = {"step", "checkpoint", "iteration", "iter"};

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/// "1000" at the start of `text`, behind at most one of "_-=".
std::optional<std::int64_t> leading_number(std::string_view text) {
  if (!text.empty() && (text[0] == '_' || text[0] == '-' || text[0] == '=')) text.remove_prefix(1);
  if (text.empty() || text[0] < '0' || text[0] > '9') return std::nullopt;
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  return number;
}

std::optional<std::int64_t> step_of_component(std::string_view name) {
  for (std::string_view word : kWords) {
    for (std::size_t at = name.rfind(word); at != std::string_view::npos;
         at = at == 0 ? std::string_view::npos : name.rfind(word, at - 1)) {
      if (at > 0 && is_letter(name[at - 1])) continue;  // "footstep7"
      if (const auto step = leading_number(name.substr(at + word.size()))) return step;
    }
  }
  return std::nullopt;
}

/// "fp16", "bf16", "int8", "version_0", "v2", "rank0", "tp1", "part-0": of a type, a release, a rank
/// or a part.
bool is_no_counter(std::string_view before) {
  if (before.ends_with('_') || before.ends_with('-')) before.remove_suffix(1);
  std::size_t begin = before.size();
  while (begin > 0 && is_letter(before[begin - 1])) --begin;
  constexpr std::array<std::string_view, 13> kOthers = {
      "fp", "bf", "int", "uint", "version", "v", "rank", "part", "shard", "tp", "pp", "mp", "dp"};
  return std::ranges::find(kOthers, before.substr(begin)) != kOthers.end();
}

}  // namespace

std::optional<std::int64_t> step_of_path(std::string_view path) {
  const auto parts = split(path, '/');
  for (const auto& part : parts | std::views::reverse)
    if (const auto step = step_of_component(part)) return step;
  return std::nullopt;
}

std::optional<std::int64_t> step_of_run_name(std::string_view name) {
  if (const auto step = step_of_path(name)) return step;
  for (std::string_view part : split(name, '/')) {
    // The last one that counts: 3 of "ep1-ba3-rank0.pt".
    std::size_t end = part.find_last_of("0123456789");
    while (end != std::string_view::npos) {
      std::size_t begin = end;
      while (begin > 0 && is_digit(part[begin - 1])) --begin;
      if (!is_no_counter(part.substr(0, begin)))
        return leading_number(part.substr(begin, end - begin + 1));
      end = begin == 0 ? std::string_view::npos : part.find_last_of("0123456789", begin - 1);
    }
  }
  return std::nullopt;
}

}  // namespace tessera
