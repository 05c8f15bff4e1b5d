#include "lib/ops/open/part_folders.h"

#include <tessera/base/text.h>
#include <tessera/state/roles.h>

#include <map>
#include <utility>

namespace tessera {
namespace {

constexpr std::string_view kModelFolder = "pytorch_model_fsdp_";

}  // namespace

std::vector<std::string> find_part_folders(const Directory& parent) {
  std::map<std::string, int> pairs;  // number -> which halves are there
  for (const FileInfo& info : parent.list()) {
    if (info.type != FileType::kDirectory) continue;
    for (const auto& [prefix, half] : {std::pair(kModelFolder, 1), std::pair(kOptimizerFolder, 2)})
      if (info.name.starts_with(prefix) && is_decimal(info.name.substr(prefix.size())))
        pairs[info.name.substr(prefix.size())] |= half;
  }
  if (pairs.size() != 1 || pairs.begin()->second != 3) return {};
  const std::string& number = pairs.begin()->first;
  return {std::string(kModelFolder) + number, std::string(kOptimizerFolder) + number};
}

}  // namespace tessera
