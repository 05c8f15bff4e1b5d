// trend: one number of some tensors over a run.
#include <tessera/base/error.h>

#include "tools/documents/audit.h"
#include "tools/failure.h"
#include "tools/inspect/inspection.h"
#include "tools/inspect/verbs.h"
#include "tools/render/audit.h"

namespace tessera::tools {

Outcome run_trend(Inspection& in) {
  if (in.a.trend.tensors.empty())
    fail(Code::kInvalidArgument, "trend needs --tensor GLOB",
         "ckpt-inspect ls lists the names; --tensor '*' takes all");
  TrendOptions options = in.a.trend;
  options.audit.open = in.open_options(in.a.from, in.a.root);
  options.audit.transfer = in.transfer();
  const TrendReport report = trend_of_run(in.fs, in.a.words[0], options);
  return {
      in.in_form([&] { return trend_document(report); }, {{"points", "point"}, {"notes", "note"}},
                 [&] { return render_trend(report, in.screen); }),
      kExitDone,
      {}};
}

}  // namespace tessera::tools
