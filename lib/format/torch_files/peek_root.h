#pragma once
// A look at the value of a torch.save file, for probes: what reading would refuse is let through.
#include <tessera/state/value.h>
#include <tessera/storage/file_system.h>

#include <cstdint>
#include <optional>
#include <string>

namespace tessera {

/// nullopt where the file does not start like one of torch.save's, or holds more small objects than
/// a look may take: who reads it may have been granted more. Throws as open_torch_archive() does.
/// `pickle_limit_bytes`: as ReadOptions has it.
std::optional<Value> peek_archive_root(const Directory& directory, const std::string& name,
                                       std::uint64_t pickle_limit_bytes);

}  // namespace tessera
