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

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

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

namespace {

struct Claim {
  const FormatDriver* driver = nullptr;
  ProbeResult result;
};

/// Another format knows the same files better.
bool is_outdone(const Claim& claim, const std::vector<Claim>& claims) {
  return std::ranges::any_of(claims, [&](const Claim& other) {
    return !claim.result.about.empty() && other.result.about == claim.result.about &&
           other.result.knows > claim.result.knows;
  });
}

}  // namespace

Detection detect_format(const Place& place) {
  using Answer = ProbeResult::Answer;
  std::vector<Claim> claims;
  for (const FormatDriver* driver : all_formats()) {
    ProbeResult result = probe_place(*driver, place);
    if (result.answer != Answer::kNo) claims.push_back({driver, std::move(result)});
  }
  Detection out;
  std::vector<const FormatDriver*> sure, maybe, containers;
  for (const Claim& claim : claims) {
    if (is_outdone(claim, claims)) continue;
    const bool container = claim.result.knows == ProbeResult::Knows::kContainer;
    auto& rank = claim.result.answer == Answer::kMaybe ? maybe : container ? containers : sure;
    rank.push_back(claim.driver);
    out.candidates.emplace_back(claim.driver->id(), claim.result.reason);
  }
  // A container gives way to who knows what is inside; a guess, to who is sure.
  for (const auto* rank : {&sure, &containers, &maybe}) {
    if (rank->empty()) continue;
    if (rank->size() == 1) out.driver = rank->front();
    break;
  }
  return out;
}

}  // namespace tessera
