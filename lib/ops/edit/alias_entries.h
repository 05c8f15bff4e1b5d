#pragma once
// Weights that the source of a conversion records as tied and does not store (state/aliases.h), as
// entries of their own while its names and parts are edited, so that renames and rules reach them
// as they reach all others. No byte is copied: they have the chunks of the tensor they are tied to.
#include <tessera/state/aliases.h>
#include <tessera/state/manifest.h>
#include <tessera/state/roles.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tessera {

/// Adds the entry `name` beside entry `kept`, which has this role, with the chunks of its tensor.
/// Returns its tensor; kNoTensor: `name` is not below the root of `kept`.
std::uint32_t add_twin_entry(Manifest& manifest, std::size_t kept, const EntryRole& role,
                             const std::string& name);

class AliasEntries {
 public:
  /// Adds them to a located manifest, which no longer records them then.
  explicit AliasEntries(Manifest& manifest);
  /// Those that are still there, by their present names.
  std::vector<Alias> present(const Manifest& manifest) const;

 private:
  /// Maps the first chunk of the entry to the first chunk of the tensor that it is tied to: first
  /// chunks identify tensors even after they are renamed and renumbered.
  std::map<std::uint64_t, std::uint64_t> tied_;
};

}  // namespace tessera
