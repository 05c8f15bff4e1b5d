#pragma once
// Connecting a group takes its members one by one, and waits the whole timeout for one that died
// meanwhile. Where the same ranks have a connected group already, that group notices at once.
#include <tessera/fsdp/communicator.h>

#include <functional>
#include <memory>

namespace tessera::fsdp {

/// Once all have come, connect() on a thread of its own, while this one asks the others, over
/// `connected`, how far they are. Collective over it, which is all ranks. Throws where any rank
/// could not connect, or is gone: then the thread is left behind with what `connect` holds, and
/// ends at its own timeout.
std::shared_ptr<Communicator> watched_connect(
    Communicator& connected, std::function<std::shared_ptr<Communicator>()> connect);

}  // namespace tessera::fsdp
