#pragma once
// The parts of the kit that one process plays.
#include <c10/core/Device.h>

#include <filesystem>

#include "tests/gpu_kit/report.h"

namespace tessera::gpu_kit {

/// Host time and GPU idle time of 100 small units, peak memory of a schedule, tokens/s of a GPT;
/// peer_fsdp2.py measures the same in Python. Small on the CPU.
void measure_speed(Report& report, c10::Device device);

/// Save, load and save in the background of some GB on the device, in `scratch`.
void measure_state(Report& report, c10::Device device, const std::filesystem::path& scratch);

}  // namespace tessera::gpu_kit
