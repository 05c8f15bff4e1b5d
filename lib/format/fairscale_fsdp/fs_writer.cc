#include "lib/format/fairscale_fsdp/fs_writer.h"

#include <tessera/base/error.h>

namespace tessera::fairscale {

OutputPlan plan_output(const Manifest&, const TargetRequest&) {
  fail(Code::kUnsupported, "fairscale-fsdp is read, not written",
       "choose another format with --to");
}

}  // namespace tessera::fairscale
