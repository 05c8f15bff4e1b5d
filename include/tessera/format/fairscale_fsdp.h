#pragma once
// fairscale-fsdp: FairScale FSDP's per-rank weights and metadata, with each rank's optimizer or the
// gathered one. Stateless; thread-safe. docs/formats/fairscale-fsdp.md has the layout.
#include <tessera/format/format_driver.h>

namespace tessera {

const FormatDriver& fairscale_fsdp_driver();

}  // namespace tessera
