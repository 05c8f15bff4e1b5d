#include "lib/format/megatron_dist/config.h"

#include <tessera/base/error.h>
#include <tessera/encoding/json.h>

#include "lib/format/probe_errors.h"

namespace tessera::megatron_dist {
namespace {

constexpr std::uint64_t kMostBytes = 4096;

}  // namespace

std::optional<Config> read_config(const Directory& directory) {
  try {
    const auto info = directory.stat(kConfigFile);
    if (!info || info->type != FileType::kRegular || info->size_bytes > kMostBytes)
      return std::nullopt;
    Bytes text(info->size_bytes);
    directory.open(kConfigFile)->read_at(0, text);
    const Value json = parse_json(text);
    const Value* backend = json.find("sharded_backend");
    if (!backend || !backend->is_string()) return std::nullopt;
    Config config{backend->as_string(), 1};
    if (const Value* version = json.find("sharded_backend_version"); version && version->is_int())
      config.version = version->as_int();
    return config;
  } catch (const Error& error) {
    rethrow_unless_of_content(error);
    return std::nullopt;  // somebody else's metadata.json
  }
}

}  // namespace tessera::megatron_dist
