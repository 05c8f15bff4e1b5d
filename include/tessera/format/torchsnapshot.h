#pragma once
// torchsnapshot: folders that torchsnapshot's Snapshot.take wrote. Read only. Stateless;
// thread-safe. docs/formats/torchsnapshot.md has the bytes.
#include <tessera/format/format_driver.h>

namespace tessera {

const FormatDriver& torchsnapshot_driver();

}  // namespace tessera
