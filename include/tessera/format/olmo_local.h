#pragma once
// OLMo's local sharded checkpoints: FSDP1's flat parameters as each rank holds them, with the names
// and shapes of what is in them. Read only. Stateless; thread-safe. docs/formats/olmo-local.md has
// the layout.
#include <tessera/format/format_driver.h>

namespace tessera {

const FormatDriver& olmo_local_driver();

}  // namespace tessera
