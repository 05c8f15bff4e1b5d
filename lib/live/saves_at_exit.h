#pragma once
// A program may call exit() while a save is in flight. What the save works with ends next: tables
// of this library, and of the one its ranks talk through. So exit() waits for it.
#include <memory>
#include <string>

#include "lib/live/prepared_save.h"

namespace tessera {

/// Lets exit() wait for `work`, a save to `path`: says so on stderr when it takes longer than a
/// second, and the error of a save that no call has thrown. It does not wait in a forked child,
/// which has no thread that saves, nor on the thread that saves.
void wait_for_at_exit(const std::shared_ptr<PendingSave::Work>& work, const std::string& path);
/// This thread saves.
void saves_on_this_thread();

}  // namespace tessera
