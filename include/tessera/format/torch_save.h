#pragma once
// torch-save: one file that torch.save wrote, zip or legacy. Stateless; thread-safe.
// docs/formats/torch-save.md has the bytes.
#include <tessera/format/format_driver.h>

namespace tessera {

const FormatDriver& torch_save_driver();

}  // namespace tessera
