#pragma once
// deepspeed-universal: DeepSpeed's Universal Checkpoint, a folder of one file per parameter and
// state that an engine of any data-parallel size loads. docs/formats/deepspeed-universal.md.
#include <tessera/format/format_driver.h>

namespace tessera {

const FormatDriver& deepspeed_universal_driver();

}  // namespace tessera
