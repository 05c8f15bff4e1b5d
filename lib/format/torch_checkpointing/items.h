#pragma once
// Items by their files: <item>_<rank>.pt. An item's own name may end in _<digits>: the last number is
// the rank's.
#include <tessera/storage/file_system.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::checkpointing {

/// Letters, digits, "_" and "-", at least one.
bool is_item_name(std::string_view name);

struct ItemFile {
  std::string item;
  std::int64_t rank = 0;
};
/// nullopt for a name of another kind.
std::optional<ItemFile> parse_item_file(std::string_view name, std::string_view suffix = ".pt");

/// By item and rank: the files of a folder. Links and the like are left out.
using ItemFiles = std::map<std::string, std::map<std::int64_t, std::string>>;
ItemFiles find_item_files(const Directory& directory, std::string_view suffix = ".pt");

}  // namespace tessera::checkpointing
