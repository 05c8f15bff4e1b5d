#pragma once
// The browser on a terminal: FTXUI draws its pictures and reads its keys, a thread of its own reads
// the checkpoint. The only file that includes FTXUI.
#include "tools/browse/browser.h"
#include "tools/browse/reader.h"

namespace tessera::tools {

/// Whether stdin and stdout are a terminal that can be drawn on; otherwise throws kInvalidArgument.
void require_terminal();

/// Until the user leaves. SIGINT, SIGTERM and SIGHUP restore the terminal and end the process.
void play(Browser& browser, BrowseReader& reader, bool color);

}  // namespace tessera::tools
