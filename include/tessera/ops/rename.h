#pragma once
// Renaming of what a checkpoint holds, by FQN (state/name_map.h): a parameter's optimizer state and
// its place in the groups follow its name. Pure functions on a Manifest; no I/O.
#include <tessera/state/manifest.h>
#include <tessera/state/name_map.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

/// --map FILE: lines "old new" (blank or tab between, '#' comments), or the JSON object {"old":
/// "new"}. A name with `*` is a pattern, as in --rename. Throws kInvalidArgument, with `file`, for
/// anything else and for a name that stands there twice.
std::vector<std::pair<std::string, std::string>> parse_name_map(std::string_view text,
                                                                std::string_view file = "");

/// One kind of change, for reports.
struct AppliedTransformation {
  /// "rename", "rules", "tied", "vocabulary", "dtype", "dequantize",
  /// "quantize"; of values alone: "types" of their dicts,
  /// "values" that became one
  std::string kind;
  std::string detail;  // "megatron -> hf", "float32 -> bfloat16"
  std::uint64_t tensors = 0;
  std::vector<std::string> changes;  // "a + b -> c", one per change
  bool of_values() const { return kind == "types" || kind == "values"; }
};

/// Old to new names, without the segments `_orig_mod` that torch.compile adds: the names that the
/// model's library uses. Empty where there are none, and where two names would become one.
std::vector<std::pair<std::string, std::string>> names_before_compile(const Manifest& manifest);

/// Renames model tensors, their optimizer state and group members, and returns what it did.
/// Patterns of the map come before other renames. Throws kInvalidArgument when two names become one
/// or a rule matches nothing.
AppliedTransformation apply_renames(Manifest& manifest, const NameRules& rules);

}  // namespace tessera
