#include "lib/ops/open/model_config.h"

#include <tessera/base/error.h>
#include <tessera/encoding/json.h>

namespace tessera {
namespace {

constexpr std::uint64_t kMostConfigBytes = std::uint64_t{16} << 20;

}  // namespace

Value read_config(const Directory& directory) {
  const std::optional<FileInfo> info = directory.stat("config.json");
  if (!info || info->type != FileType::kRegular || info->size_bytes > kMostConfigBytes) return {};
  return in_file("config.json", [&] {
    const std::unique_ptr<ReadFile> file = directory.open("config.json");
    Bytes text(static_cast<std::size_t>(file->size_bytes()));
    file->read_at(0, text);
    return parse_json(text);
  });
}

QuantFacts quant_facts_beside(const Directory& directory) {
  try {
    return quant_facts(read_config(directory));
  } catch (const Error& error) {
    if (error.code() != Code::kCorrupt) throw;
    return {};
  }
}

}  // namespace tessera
