#pragma once
// fairscale-fsdp: FairScale FSDP's per-rank weights and metadata, with each rank's optimizer or the
// gathered one. Stateless; thread-safe. docs/formats/fairscale-fsdp.md has the layout.
#include <tessera/format/format_driver.h>

#include <cstddef>
#include <string>

namespace tessera {

const FormatDriver& fairscale_fsdp_driver();

/// The number of rank files of the set in `directory` that `file` is one of; 0: it is no rank's.
/// Throws what reading the files throws, and kUnsupported where two sets lie there.
std::size_t fairscale_set_size(const Directory& directory, const std::string& file);

}  // namespace tessera
