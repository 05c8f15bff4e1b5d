#pragma once
// deepspeed-zero: what DeepSpeed's engine saves under stages 0 to 3, as one logical state. Layout,
// names and what is refused: docs/formats/deepspeed-zero.md.
#include <tessera/format/format_driver.h>

namespace tessera {

const FormatDriver& deepspeed_zero_driver();

}  // namespace tessera
