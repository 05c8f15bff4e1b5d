#pragma once
// The short way to read `.metadata`: most of it is millions of records of three classes, which go
// from the pickle's opcodes straight into packed arrays, without a graph of objects in between and
// without the file in memory. A third of the time and of the memory of parse_metadata().
//
// It takes exactly what PyTorch 2.3 and newer write and nothing else: whatever is unusual (another
// class or opcode, an attribute that it does not know, a number out of range, a reference to what
// was not kept, damage) ends it with nullopt, and parse_metadata() reads, judges or refuses the
// file. What it does take it takes as parse_metadata() would: a test holds the two against each
// other.
#include <tessera/encoding/byte_window.h>

#include <optional>
#include <string_view>

#include "lib/format/torch_dcp/metadata.h"

namespace tessera::dcp {

std::optional<DcpMetadata> read_plain_metadata(const ByteWindow& window, std::string_view file);

}  // namespace tessera::dcp
