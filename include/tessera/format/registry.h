#pragma once
// The table of formats, and detection by content over it.
#include <tessera/format/format_driver.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Every driver, in the order in which detection asks them.
std::span<const FormatDriver* const> all_formats();
/// nullptr when no format has this id.
const FormatDriver* find_format(std::string_view id);
/// The format that has a preset of this name (--to hf); nullptr for other words.
const FormatDriver* find_preset(std::string_view name);
/// The format of which a result of this name is one file, by its suffix; nullptr: a folder.
const FormatDriver* find_result_format(std::string_view destination);
/// Whether a result of this name, in this format, is one file.
bool is_one_file(const FormatDriver& driver, std::string_view destination);
/// What the format with this id is like; defaults for any other text.
Capabilities capabilities_of(std::string_view id);

/// Every format's own options (FormatOption::Kind other than kHanded), each once, in the order of
/// the table. `to_write`: writes_with, else reads_with.
std::vector<const FormatOption*> format_options(bool to_write);
/// Whether a driver takes an option.
bool takes(OptionList options, const FormatOption& option);
/// Common options that the request sets (kMeshFlag and the like), and the formats' own in it.
std::vector<const FormatOption*> options_in(const TargetRequest& request);
/// Throws kInvalidArgument for the first of `given` that none of `lists` has, naming its flag, the
/// formats that take it, and those at hand that do not. `at_hand`: their ids.
void require_taken(std::span<const FormatOption* const> given, std::span<const OptionList> lists,
                   std::span<const std::string_view> at_hand);

/// Whether a file of this name may be a checkpoint, by the suffix: ".pt", ".safetensors", ...
bool has_checkpoint_suffix(std::string_view name);
/// Whether a file of this name is part of a folder that is a checkpoint: ".metadata", ...
bool is_part_of_folder(std::string_view name);

/// What the driver says of a place. Content that it cannot read is somebody else's: kNo. A disk that fails, memory that runs
/// out and a run that is stopped are no answers: they throw.
ProbeResult probe_place(const FormatDriver& driver, const Place& place);

struct Detection {
  /// Set when exactly one says kYes, or none does and exactly one says kMaybe. An answer about a
  /// container does not count where another one says kYes.
  const FormatDriver* driver = nullptr;
  /// Id and reason of every format that did not say kNo, but for those that know less than another
  /// of the same files (ProbeResult::about).
  std::vector<std::pair<std::string, std::string>> candidates;
};
Detection detect_format(const Place& place);

}  // namespace tessera
