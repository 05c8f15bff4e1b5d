#pragma once
// The parameters of a state grouped as FairScale stores them: wrappers, and in them backing
// parameters. A source in this format keeps its wrappers, also where their members were renamed:
// the wrapper's path follows them. Any other source gets one at the root, with all parameters in
// their order in one flat parameter. Pure.
#include <tessera/layout/flat_layout.h>
#include <tessera/state/manifest.h>
#include <tessera/state/roles.h>

#include <cstdint>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tessera::fairscale {

struct TargetParameter {
  std::string name;  // inside its wrapper
  std::string fqn;
  std::uint32_t tensor = 0;  // in the source manifest
  Shape shape;
};

struct TargetBacking {
  std::string name;
  std::string key;         // of the weights: "<path>.<name>"
  std::string stored_key;  // the source's, where its parameters have been renamed
  bool flat = true;
  DType dtype = DType::kFloat32;
  bool no_broadcast = false;  // every rank holds all of it
  std::size_t first = 0;      // of its parameters in Target::parameters
  std::size_t count = 0;
};

struct TargetWrapper {
  std::string path;
  bool no_broadcast = false;
  std::vector<std::size_t> backings;  // in Target::backings
  std::vector<std::pair<std::string, std::string>> shared;
};

/// One key of the weights: a backing parameter, or an entry of the source.
struct TargetKey {
  std::string key;
  std::size_t backing = kNone;
  std::size_t entry = kNone;  // in StateDict::entries
  static constexpr std::size_t kNone = ~std::size_t{0};
};

struct Target {
  std::vector<TargetWrapper> wrappers;
  std::vector<TargetBacking> backings;      // metadata order
  std::vector<TargetParameter> parameters;  // metadata order: the ids of a gathered optimizer
  std::vector<TargetKey> keys;              // of the weights, in the source's order
  std::vector<std::string> buffers;
  std::unordered_map<std::string, std::size_t> by_fqn;  // in `parameters`

  std::size_t backing_of(std::size_t parameter) const;
};

/// Entries of the model that stands under `model_root`. `trained`: what the optimizer lists or
/// keeps state for; where it is not empty, other floating tensors of a foreign source are buffers.
/// Throws kUnsupported naming what no flat parameter can hold (types that differ, packed or
/// quantized ones), and a wrapper whose members' new names have no path in common.
Target group_parameters(const Manifest& source, const Roles& roles, const std::string& model_root,
                        const std::set<std::string>& trained, std::vector<Note>& notes);

/// The backing parameter cut for `world_size` ranks.
FlatLayout layout_of(const Target& target, const TargetBacking& backing, std::int64_t world_size);

}  // namespace tessera::fairscale
