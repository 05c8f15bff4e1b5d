#pragma once
// SIGINT and SIGTERM ask the work to stop; a second one ends the process at once. SIGPIPE is left
// to the writer of stdout (EPIPE). One process-wide installation, by main().
#include <tessera/base/progress.h>

namespace tessera::tools {

/// The first SIGINT or SIGTERM cancels `token`; with nullptr (nothing to clean up) it ends the
/// process with 128 + signal. `token` must live until the process ends.
void install_signal_handlers(CancelToken* token);

/// The signal that cancelled, or 0.
int caught_signal();

}  // namespace tessera::tools
