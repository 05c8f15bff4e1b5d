// hash: one digest of the contents, whatever the sharding and the format.
#include "tools/documents/documents.h"
#include "tools/failure.h"
#include "tools/inspect/inspection.h"
#include "tools/inspect/verbs.h"
#include "tools/render/render.h"

namespace tessera::tools {
Outcome run_hash(Inspection& in) {
  const HashReport report = [&] {
    OpenedCheckpoint opened = in.open();
    return hash_checkpoint(opened, in.transfer());
  }();
  return {in.in_form([&] { return hash_document(report); },
                     {{"tensors", "tensor"}, {"values", "value"}, {"notes", "note"}},
                     [&] { return render_hash(report, in.screen); }),
          report.not_compared > 0 && in.a.strict ? kExitNegative : kExitDone,
          {}};
}

}  // namespace tessera::tools
