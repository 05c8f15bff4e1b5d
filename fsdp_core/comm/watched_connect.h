#pragma once
// Connecting a group waits for its members one by one, and waits the whole timeout for one that
// died meanwhile. A group of the same ranks that is connected already notices the death at once.
#include <tessera/fsdp/communicator.h>

#include <functional>
#include <memory>

namespace tessera::fsdp {

/// Once all ranks are here, runs connect() on a thread of its own, while the calling thread asks
/// the others over `connected` how far they are. Collective over it, which is all ranks. Throws
/// where any rank
/// could not connect, or is gone: then the thread is left behind with what `connect` holds, and
/// ends at its own timeout.
std::shared_ptr<Communicator> watched_connect(
    Communicator& connected, std::function<std::shared_ptr<Communicator>()> connect);

}  // namespace tessera::fsdp
