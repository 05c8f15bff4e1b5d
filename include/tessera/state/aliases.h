#pragma once
// Aliases: tied weights that a checkpoint records and does not store: a name that was left out, and
// the tensor that has its bytes. A format's reader and our own manifest (ops/seal.h) record them;
// they stand in Manifest::provenance under kAliasPrefix. Pure; not thread-safe on one manifest.
#include <tessera/state/manifest.h>
#include <tessera/state/roles.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

using Alias = std::pair<std::string, std::string>;  // name left out, name that is kept

inline constexpr std::string_view kAliasPrefix = "tessera.tied.";

void record_alias(Manifest& manifest, const std::string& name, const std::string& kept);
/// By name.
std::vector<Alias> recorded_aliases(const Manifest& manifest);
/// The tensor that `name` is recorded as.
std::optional<std::string> alias_target(const Manifest& manifest, std::string_view name);

/// For a manifest that was just read. A record follows the weights where a format has them under
/// another root than they were written from. Records of names that are stored after all go; one of
/// a tensor that is not there becomes a note (CK025, error).
void check_aliases(Manifest& manifest, const Roles& roles);

/// New (name, kept) of a record, or nullopt to forget it.
using EditAlias = std::function<std::optional<Alias>(const Alias& alias)>;
/// Records follow what happened to the entries; one whose kept tensor is gone then goes too.
void edit_aliases(Manifest& manifest, const EditAlias& edit);

}  // namespace tessera
