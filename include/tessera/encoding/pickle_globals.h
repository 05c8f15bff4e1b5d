#pragma once
// The verdict on a global (module, name) of a pickle. Nothing is ever imported or called; the
// verdict decides whether the stream may be read at all.
//
//   kKnown   decodes to a value, or is understood by a format
//   kOpaque  kept as a node, listed with a warning, copied verbatim into pickle formats
//   kDenied  modules that run code or reach outside (os, subprocess, ...), also where another
//            module holds them (random._os.system), and every builtin outside the table
//
// Pure functions on constant tables; thread-safe.
#include <tessera/state/manifest.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

namespace tessera {

/// Python 2 spellings and moved modules under their present names: __builtin__.unicode is
/// builtins.str, copy_reg is copyreg, torch.tensor._rebuild_from_type_v2 is torch._tensor's.
std::pair<std::string_view, std::string_view> canonical_global(std::string_view module,
                                                               std::string_view name);

/// The verdict on a canonical global. builtins.getattr is kKnown here: its arguments decide, see
/// below.
GlobalUse::Verdict classify_global(std::string_view module, std::string_view name);

/// Whether a table has exactly this name. In some modules every name is known (kKnown), including
/// names that those modules imported themselves.
bool is_known_by_name(std::string_view module, std::string_view name);

/// getattr(class, attribute) that formats decode, and that may stand where a class stands: two
/// memory-format enums and ShardedTensor.ProcessGroupState.
bool is_allowed_getattr(std::string_view class_module, std::string_view class_name,
                        std::string_view attribute);

/// Whether getattr(class, attribute) may be kept as an opaque value, never called and never built
/// on: that is how Python 3.11.0 to 3.11.3 pickle a member of an enum. The class has one plain name
/// that begins with a capital letter, after underscores, outside of builtins and of modules that
/// are denied; the attribute is a plain identifier without a leading double underscore. Classes
/// inside of classes and unnamed members of a Flag ("A|B") are not among them. Source:
/// Enum.__reduce_ex__ of those releases (Lib/enum.py).
bool is_enum_member(std::string_view class_module, std::string_view class_name,
                    std::string_view attribute);

/// The number of a member of an enum whose numbers are known: the value that the call of the class
/// takes which every other Python writes in its place. Nullopt for all other classes.
std::optional<std::int64_t> known_enum_number(std::string_view class_module,
                                              std::string_view class_name,
                                              std::string_view attribute);

}  // namespace tessera
