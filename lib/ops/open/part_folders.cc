#include "lib/ops/open/part_folders.h"

#include <fmt/format.h>
#include <tessera/base/text.h>
#include <tessera/state/aliases.h>

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

namespace tessera {
namespace {

constexpr std::string_view kModelFolder = "pytorch_model_fsdp_";
constexpr int kModelHalf = 1, kOptimizerHalf = 2;

}  // namespace

std::vector<std::string> find_part_folders(const Directory& parent) {
  constexpr std::size_t kMostDigits = 9;
  std::map<std::uint64_t, int> pairs;  // number -> which halves are there
  for (const FileInfo& info : parent.list()) {
    if (info.type != FileType::kDirectory) continue;
    for (const auto& [prefix, half] :
         {std::pair(kModelFolder, kModelHalf), std::pair(kOptimizerFolder, kOptimizerHalf)}) {
      if (!info.name.starts_with(prefix)) continue;
      const std::string number = info.name.substr(prefix.size());
      if (is_decimal(number) && number.size() <= kMostDigits &&
          number == std::to_string(std::stoull(number)))
        pairs[std::stoull(number)] |= half;
    }
  }
  std::vector<std::string> folders;
  for (const auto& [number, halves] : pairs) {
    if (halves != (kModelHalf | kOptimizerHalf)) return {};
    folders.push_back(fmt::format("{}{}", kModelFolder, number));
    folders.push_back(fmt::format("{}{}", kOptimizerFolder, number));
  }
  return folders;
}

void number_root(Manifest& part, const std::string& folder, const std::string& first) {
  const auto number_of = [](const std::string& name) { return name.substr(name.rfind('_') + 1); };
  const std::string number = number_of(folder);
  if (number == number_of(first)) return;
  const auto numbered = [&](const std::string& name) {
    const std::size_t dot = name.find('.');
    return fmt::format("{}_{}{}", name.substr(0, dot), number,
                       dot == name.npos ? "" : name.substr(dot));
  };
  const auto number_key = [&](Path& path) {
    if (!path.empty()) path[0] = key_item(path[0].text() + "_" + number);
  };
  for (StoredTensor& tensor : part.tensors) tensor.name = numbered(tensor.name);
  for (ContainerNote& note : part.state.containers) number_key(note.path);
  for (StateEntry& entry : part.state.entries) {
    number_key(entry.path);
    entry.name = numbered(entry.name);
  }
  for (Note& note : part.notes)
    if (!note.tensor.empty()) note.tensor = numbered(note.tensor);
  edit_aliases(part, [&](const Alias& alias) {
    return std::optional(Alias(numbered(alias.first), numbered(alias.second)));
  });
}

}  // namespace tessera
