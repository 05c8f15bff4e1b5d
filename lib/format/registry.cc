#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/format/deepspeed_universal.h>
#include <tessera/format/deepspeed_zero.h>
#include <tessera/format/fairscale_fsdp.h>
#include <tessera/format/hdf5.h>
#include <tessera/format/hf_trainer.h>
#include <tessera/format/megatron_dist.h>
#include <tessera/format/megatron_torch.h>
#include <tessera/format/nanotron.h>
#include <tessera/format/olmo_local.h>
#include <tessera/format/registry.h>
#include <tessera/format/safetensors.h>
#include <tessera/format/torch_checkpointing.h>
#include <tessera/format/torch_dcp.h>
#include <tessera/format/torch_rank_files.h>
#include <tessera/format/torch_save.h>
#include <tessera/format/torchsnapshot.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "lib/format/added_format.h"
#include "lib/format/probe_errors.h"

namespace tessera {

namespace {

std::vector<const FormatDriver*>& table() {
  // One line per format. The order is the one in which detection lists candidates.
  // clang-format off
  static std::vector<const FormatDriver*> formats = {
      &torch_dcp_driver(),
      &megatron_dist_driver(),
      &megatron_torch_driver(),
      &torch_rank_files_driver(),
      &torch_save_driver(),
      &safetensors_driver(),
      &hdf5_driver(),
      &fairscale_fsdp_driver(),
      &deepspeed_zero_driver(),
      &deepspeed_universal_driver(),
      &torchsnapshot_driver(),
      &nanotron_driver(),
      &olmo_local_driver(),
      &torch_checkpointing_driver(),
      &hf_trainer_driver(),
  };
  // clang-format on
  return formats;
}

OptionList options_of(const FormatDriver& driver, bool to_write) {
  const Capabilities can = driver.capabilities();
  return to_write ? can.writes_with : can.reads_with;
}

using Ids = std::vector<std::string_view>;

/// Formats that take the option, on either side.
Ids takers_of(const FormatOption& option) {
  Ids ids;
  for (const FormatDriver* driver : all_formats())
    if (takes(options_of(*driver, true), option) || takes(options_of(*driver, false), option))
      ids.push_back(driver->id());
  return ids;
}

/// "deepspeed-zero and deepspeed-universal"
std::string listed_ids(Ids ids) {
  if (ids.size() < 2) return ids.empty() ? "no format" : std::string(ids[0]);
  const std::string_view last = ids.back();
  ids.pop_back();
  return fmt::format("{} and {}", fmt::join(ids, ", "), last);
}

/// "--flat-layout is for reading torch-rank-files, not for torch-dcp": one that takes it on the other
/// side is no format that does not.
std::string not_taken(const FormatOption& option, std::span<const std::string_view> at_hand) {
  const Ids takers = takers_of(option);
  Ids others;
  for (const std::string_view id : at_hand)
    if (std::ranges::find(takers, id) == takers.end()) others.push_back(id);
  const bool is_read = takes(format_options(/*to_write=*/false), option);
  const std::string side = others.size() == at_hand.size() ? "" : is_read ? "reading " : "writing ";
  return fmt::format("{} is for {}{}, not for {}", option.flag, side, listed_ids(takers),
                     others.empty() ? is_read ? "writing" : "reading"
                                    : fmt::format("{}", fmt::join(others, " or ")));
}

}  // namespace

std::span<const FormatDriver* const> all_formats() { return table(); }

AddedFormat::AddedFormat(const FormatDriver& driver) { table().push_back(&driver); }
AddedFormat::~AddedFormat() { table().pop_back(); }

const FormatDriver* find_format(std::string_view id) {
  for (const FormatDriver* driver : all_formats())
    if (driver->id() == id) return driver;
  return nullptr;
}

const FormatDriver* find_preset(std::string_view name) {
  if (name.empty()) return nullptr;
  for (const FormatDriver* driver : all_formats())
    if (driver->capabilities().preset == name) return driver;
  return nullptr;
}

const FormatDriver* find_result_format(std::string_view destination) {
  for (const FormatDriver* driver : all_formats()) {
    const std::string_view suffix = driver->capabilities().result_suffix;
    if (!suffix.empty() && destination.ends_with(suffix)) return driver;
  }
  return nullptr;
}

bool is_one_file(const FormatDriver& driver, std::string_view destination) {
  const auto ends = [&](std::string_view suffix) { return destination.ends_with(suffix); };
  return find_result_format(destination) == &driver ||
         std::ranges::any_of(driver.capabilities().more_result_suffixes, ends);
}

Capabilities capabilities_of(std::string_view id) {
  const FormatDriver* driver = find_format(id);
  return driver != nullptr ? driver->capabilities() : Capabilities{};
}

std::vector<const FormatOption*> format_options(bool to_write) {
  std::vector<const FormatOption*> out;
  for (const FormatDriver* driver : all_formats())
    for (const FormatOption* option : options_of(*driver, to_write))
      if (option->kind != FormatOption::Kind::kHanded && !takes(out, *option))
        out.push_back(option);
  return out;
}

bool takes(OptionList options, const FormatOption& option) {
  return std::ranges::any_of(options,
                             [&](const FormatOption* each) { return each->flag == option.flag; });
}

std::vector<const FormatOption*> options_in(const TargetRequest& request) {
  std::vector<const FormatOption*> out;
  if (request.world_size) out.push_back(&kWorldSizeFlag);
  if (request.mesh) out.push_back(&kMeshFlag);
  if (!request.placements.empty()) out.push_back(&kPlacementsFlag);
  if (!request.replicate.empty()) out.push_back(&kReplicateFlag);
  for (const FormatOption* option : request.own.given()) out.push_back(option);
  return out;
}

void require_taken(std::span<const FormatOption* const> given, std::span<const OptionList> lists,
                   std::span<const std::string_view> at_hand) {
  for (const FormatOption* option : given) {
    if (std::ranges::any_of(lists, [&](OptionList list) { return takes(list, *option); })) continue;
    fail(Code::kInvalidArgument, not_taken(*option, at_hand),
         option->flag == kWorldSizeFlag.flag ? "use --mesh, for example --mesh tp=2,dp=2"
                                             : "leave it out");
  }
}

bool has_checkpoint_suffix(std::string_view name) {
  return std::ranges::any_of(all_formats(), [name](const FormatDriver* driver) {
    return std::ranges::any_of(driver->capabilities().suffixes,
                               [name](std::string_view suffix) { return name.ends_with(suffix); });
  });
}

bool is_part_of_folder(std::string_view name) {
  return std::ranges::any_of(all_formats(), [name](const FormatDriver* driver) {
    return std::ranges::any_of(driver->capabilities().folder_files,
                               [name](std::string_view glob) { return glob_match(glob, name); });
  });
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
    const bool container = claim.driver->capabilities().is_container;
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
