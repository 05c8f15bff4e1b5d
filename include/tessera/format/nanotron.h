#pragma once
// nanotron: folders of one safetensors file for each parameter and rank. Read only: the model.
// Stateless; thread-safe. docs/formats/nanotron.md has the layout.
#include <tessera/format/format_driver.h>

namespace tessera {

const FormatDriver& nanotron_driver();

}  // namespace tessera
