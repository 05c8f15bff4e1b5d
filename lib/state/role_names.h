#pragma once
// What roles.cc and the edits of state dicts share.
#include <tessera/base/error.h>
#include <tessera/state/roles.h>
#include <tessera/state/value.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera {

/// True for a flattened optimizer key: "state.<fqn>.<leaf>" or "param_groups.<fqn>.<option>" in one
/// path item.
bool starts_with_root(std::string_view key);

/// True where state stands under other keys than "state.<fqn>.<leaf>": under ids, or under the leaf
/// before the name. Formats that hold state by name alone write other names then.
bool keyed_otherwise(OptimDialect dialect);

/// nullopt for what is no number, or one of more digits than fit.
std::optional<std::int64_t> decimal_number(std::string_view text);

/// The number that an optimizer's id says; the caller has checked that it is one.
Value id_value(const std::string& id);

/// How messages name the optimizer at `root`.
std::string optimizer_text(const std::string& root);

/// Throws `code`, naming the entry, when an edit gave two entries one name.
void check_unique(const StateDict& state, Code code, const std::string& advice = {});

}  // namespace tessera
