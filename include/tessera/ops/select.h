#pragma once
// Selection: which part of a checkpoint a command looks at. Applied to the manifest, so that
// everything downstream sees only that.
//
//   root      the subtree becomes the whole: names lose the prefix
//   include   whole dotted names by glob (`*` crosses dots); exclude wins
//   only      model, optim or other, by role
//
// What matches nothing is kInvalidArgument naming the pattern and the nearest name. Pure.
#include <tessera/state/manifest.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

enum class Part : std::uint8_t { kModel, kOptim, kOther };
/// "model", "optim" (or "optimizer"), "other". Throws kInvalidArgument.
Part parse_part(std::string_view text);

struct Selection {
  std::string root;
  std::vector<std::string> include;
  std::vector<std::string> exclude;
  std::optional<Part> only;
  /// reshard and convert: a model parameter that is left out takes its optimizer state and group
  /// membership with it.
  bool state_follows = false;
  /// A quantized weight is one with its scales, zero points and tables: they stay and go with its codes,
  /// and patterns may name it as the plain weight is called. What `exclude` takes from it is a warning
  /// (CK062) among the manifest's notes.
  bool parts_follow = false;

  bool empty() const { return root.empty() && include.empty() && exclude.empty() && !only; }
};

void apply_selection(Manifest& manifest, const Selection& selection);

}  // namespace tessera
