#include <tessera/format/deepspeed_universal.h>
#include <tessera/format/deepspeed_zero.h>
#include <tessera/format/fairscale_fsdp.h>
#include <tessera/format/hdf5.h>
#include <tessera/format/megatron_dist.h>
#include <tessera/format/megatron_torch.h>
#include <tessera/format/registry.h>
#include <tessera/format/safetensors.h>
#include <tessera/format/torch_dcp.h>
#include <tessera/format/torch_rank_files.h>
#include <tessera/format/torch_save.h>
#include <tessera/format/torchsnapshot.h>

#include <array>

#include "lib/format/probe_errors.h"

namespace tessera {

std::span<const FormatDriver* const> all_formats() {
  // One line per format. The order is the one in which detection lists candidates.
  static const std::array formats = {
      &torch_dcp_driver(),      &megatron_dist_driver(),
      &megatron_torch_driver(), &torch_rank_files_driver(),
      &torch_save_driver(),     &safetensors_driver(),
      &hdf5_driver(),           &fairscale_fsdp_driver(),
      &deepspeed_zero_driver(), &deepspeed_universal_driver(),
      &torchsnapshot_driver(),
  };
  return formats;
}

const FormatDriver* find_format(std::string_view id) {
  for (const FormatDriver* driver : all_formats())
    if (driver->id() == id) return driver;
  return nullptr;
}

ProbeResult probe_place(const FormatDriver& driver, const Place& place) {
  try {
    return driver.probe(place);
  } catch (const Error& error) {
    rethrow_unless_of_content(error);
    return {};  // something else, or cannot be opened: whoever reads it will say why
  }
}

Detection detect_format(const Place& place) {
  using Answer = ProbeResult::Answer;
  Detection out;
  const FormatDriver* sure = nullptr;
  const FormatDriver* maybe = nullptr;
  const FormatDriver* container = nullptr;  // torch-save: gives way to who knows what is inside
  int sure_count = 0, maybe_count = 0;
  for (const FormatDriver* driver : all_formats()) {
    ProbeResult result = probe_place(*driver, place);
    if (result.answer == Answer::kNo) continue;
    if (result.answer == Answer::kYes && driver == &torch_save_driver()) {
      container = driver;
    } else if (result.answer == Answer::kYes) {
      sure = driver;
      ++sure_count;
    } else {
      maybe = driver;
      ++maybe_count;
    }
    out.candidates.emplace_back(driver->id(), std::move(result.reason));
  }
  if (sure_count == 1)
    out.driver = sure;
  else if (sure_count == 0 && container)
    out.driver = container;
  else if (sure_count == 0 && maybe_count == 1)
    out.driver = maybe;
  return out;
}

}  // namespace tessera
