#pragma once
// What a pickle's global (module, name) means to us. Nothing is ever imported or called; the
// verdict decides whether the stream may be read at all.
//
//   kKnown   decodes to a value, or is understood by a format
//   kOpaque  kept as a node, listed with a warning, copied verbatim into pickle formats
//   kDenied  modules that run code or reach outside (os, subprocess, ...), and every builtin
//   outside the table
//
// Pure functions on constant tables; thread-safe.
#include <tessera/state/manifest.h>

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

/// getattr(class, attribute) occurs in real checkpoints for two memory-format enums and for
/// ShardedTensor.ProcessGroupState. Every other pair is denied.
bool is_allowed_getattr(std::string_view class_module, std::string_view class_name,
                        std::string_view attribute);

}  // namespace tessera
