// stat: numbers about the elements of every tensor.
#include "tools/documents/documents.h"
#include "tools/failure.h"
#include "tools/inspect/inspection.h"
#include "tools/inspect/verbs.h"
#include "tools/render/render.h"

namespace tessera::tools {
Outcome run_stat(Inspection& in) {
  StatOptions options = in.a.stat;
  options.transfer = in.transfer();
  const StatReport report = [&] {
    OpenedCheckpoint opened = in.open();
    return stat_checkpoint(opened, options);
  }();
  return {in.in_form([&] { return stat_document(report); },
                     {{"tensors", "tensor"}, {"findings", "finding"}, {"notes", "note"}},
                     [&] { return render_stat(report, in.screen); }),
          in.negative(report.ok(), report.findings) ? kExitNegative : kExitDone,
          {}};
}

}  // namespace tessera::tools
