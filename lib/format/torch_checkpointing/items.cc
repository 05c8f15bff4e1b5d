#include "lib/format/torch_checkpointing/items.h"

#include <algorithm>

#include "lib/state/role_names.h"

namespace tessera::checkpointing {

bool is_item_name(std::string_view name) {
  return !name.empty() && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  });
}

std::optional<ItemFile> parse_item_file(std::string_view name, std::string_view suffix) {
  constexpr std::size_t kMostDigits = 7;
  if (!name.ends_with(suffix)) return std::nullopt;
  name.remove_suffix(suffix.size());
  const std::size_t at = name.rfind('_');
  if (at == name.npos || at == 0) return std::nullopt;
  const std::string_view digits = name.substr(at + 1);
  const bool padded = digits.size() > 1 && digits.front() == '0';
  const auto rank = digits.size() <= kMostDigits && !padded ? decimal_number(digits) : std::nullopt;
  if (!rank || !is_item_name(name.substr(0, at))) return std::nullopt;
  return ItemFile{std::string(name.substr(0, at)), *rank};
}

ItemFiles find_item_files(const Directory& directory, std::string_view suffix) {
  ItemFiles out;
  for (const FileInfo& info : directory.list())
    if (const auto file = parse_item_file(info.name, suffix);
        file && info.type == FileType::kRegular)
      out[file->item][file->rank] = info.name;
  return out;
}

}  // namespace tessera::checkpointing
