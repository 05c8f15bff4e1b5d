#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/optim_state.h>

#include <algorithm>

#include "lib/state/role_names.h"

namespace tessera {
namespace {

/// The reader knows better than shapes do why ids have no names.
void fail_with_note(const Manifest& manifest, const std::string& hint) {
  const auto note = std::ranges::find(manifest.notes, Finding::kUnnamedState, &Note::code);
  if (note == manifest.notes.end()) return;
  in_file(note->file, [&] { fail(Code::kUnsupported, note->message, hint); });
}

}  // namespace

std::string optimizer_text(const std::string& root) {
  return root.empty() ? "the optimizer" : fmt::format("optimizer \"{}\"", printable(root));
}

void require_names(const Manifest& manifest, const OptimState& optim, const std::string& hint) {
  if (optim.dialect != OptimDialect::kById) return;
  const std::string which = optimizer_text(optim.root);
  const bool any_weight = std::ranges::any_of(optim.parameters, &OptimParameter::inferred);
  for (const OptimParameter& p : optim.parameters) {
    if (!p.inferred) {
      fail_with_note(manifest, hint);
      for (const OptimIssue& issue : optim.issues)
        if (issue.code == Finding::kAmbiguousIds)
          fail(Code::kUnsupported, fmt::format("{}: {}", which, issue.message), hint);
      fail(Code::kUnsupported,
           any_weight ? fmt::format("{}: id {} fits no parameter of the model by order and shape",
                                    which, p.stored_key)
                      : fmt::format("{}: the checkpoint has no model weights, so integer optimizer "
                                    "ids cannot be mapped to names",
                                    which),
           hint);
    }
    if (!p.certain)
      fail(Code::kUnsupported,
           fmt::format("{}: by order and shape its ids could mean other parameters too, and its "
                       "groups do not record names",
                       which),
           hint);
  }
}

}  // namespace tessera
