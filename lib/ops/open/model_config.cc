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

namespace {

Value config_or_none(const Directory& directory) {
  try {
    return read_config(directory);
  } catch (const Error& error) {
    if (error.code() != Code::kCorrupt) throw;
    return {};
  }
}

}  // namespace

bool says_untied(const Directory& directory) {
  const Value config = config_or_none(directory);
  for (const Value* of : {&config, config.find("text_config")}) {
    const Value* said = of == nullptr ? nullptr : of->find("tie_word_embeddings");
    if (said != nullptr && said->kind() == Value::Kind::kBool) return !said->as_bool();
  }
  return false;
}

QuantFacts quant_facts_beside(const Directory& directory) {
  return quant_facts(config_or_none(directory));
}

}  // namespace tessera
