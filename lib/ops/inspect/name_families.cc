#include "lib/ops/inspect/name_families.h"

#include <tessera/base/text.h>

#include <algorithm>

namespace tessera {

std::string layer_of(std::string_view fqn) {
  for (std::size_t begin = 0; begin < fqn.size();) {
    const std::size_t end = std::min(fqn.find('.', begin), fqn.size());
    if (std::ranges::any_of(fqn.substr(begin, end - begin), is_digit) && end < fqn.size())
      return std::string(fqn.substr(0, end));
    begin = end + 1;
  }
  const std::size_t dot = fqn.rfind('.');
  return std::string(dot == std::string_view::npos ? fqn : fqn.substr(0, dot));
}

std::string kind_of(std::string_view fqn) {
  std::string kind;
  for (const char c : fqn) {
    if (!is_digit(c)) kind += c;
    if (is_digit(c) && !kind.ends_with('#')) kind += '#';
  }
  return kind;
}

}  // namespace tessera
