#pragma once
// YAML as PyYAML's dump writes it, and no more: snapshots before torchsnapshot 0.1.0.
//
//   block mappings and sequences (a sequence stands at its key's own column), `[]` and `{}`
//   scalars on one line or folded over several: plain, 'single', "double" quoted
//   keys longer than 128 characters: "? key" and ": value"
//
// Plain scalars are typed as YAML 1.1 does for what json knows: null, booleans, integers, floats;
// all else is text. Untrusted input: depth is limited, duplicate keys, tags, anchors, aliases,
// comments, documents and tabs are refused. Pure; thread-safe.
#include <tessera/state/value.h>

#include <string_view>

namespace tessera::snapshot {

/// Throws kCorrupt naming the line.
Value parse_yaml(std::string_view text);

}  // namespace tessera::snapshot
