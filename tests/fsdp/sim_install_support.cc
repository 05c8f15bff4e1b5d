// Registers the simulated accelerator before main, as a plugin of LibTorch would when it is loaded.
#include "tests/fsdp/sim/device.h"

namespace {

[[maybe_unused]] const bool installed = (tessera::sim::install(), true);

}  // namespace
