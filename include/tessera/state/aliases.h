#pragma once
// Aliases: tied weights that a checkpoint records but does not store: a name that was left out, and
// the tensor that has its bytes. A format's reader and our own manifest (ops/seal.h) record them,
// in Manifest::provenance under kAliasPrefix. Pure; not thread-safe on one manifest.
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

/// Checks the records of a manifest that was just read. If a format has the weights under another
/// root than they were written from, the records follow. Records of names that are stored are
/// removed; a record of a tensor that is not there becomes a note (CK025, error).
void check_aliases(Manifest& manifest, const Roles& roles);

/// New (name, kept) of a record, or nullopt to forget it.
using EditAlias = std::function<std::optional<Alias>(const Alias& alias)>;
/// Applies to the records what happened to the entries. A record whose kept tensor is gone is
/// removed.
void edit_aliases(Manifest& manifest, const EditAlias& edit);

}  // namespace tessera
