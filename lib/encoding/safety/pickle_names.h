#pragma once
// Tables of names for pickle_safety.h. Canonical spellings (pickle_globals.h). docs/safety.md
// publishes them; a test holds the page against the tables.
#include <optional>
#include <span>
#include <string_view>
#include <utility>

namespace tessera {

using GlobalName = std::pair<std::string_view, std::string_view>;

/// The first part of `module` is a module of the standard library of some Python from 2.7 on.
bool is_standard_module(std::string_view module);

/// Dangerous whatever is done with it: a module (with its submodules), or a name.
bool is_dangerous_anyhow(std::string_view module, std::string_view name);

/// Functions, and classes of the standard library and torch, that real checkpoints call and that do
/// no harm: unknown, not dangerous.
bool is_harmless_call(std::string_view module, std::string_view name);

/// Functions that call one of their arguments: its position.
std::optional<std::size_t> called_argument(std::string_view module, std::string_view name);

/// For the page that publishes them.
std::span<const std::string_view> dangerous_modules();
std::span<const GlobalName> dangerous_names();
std::span<const GlobalName> harmless_names();

}  // namespace tessera
