#pragma once
// What a collective threw, as a Status: LibTorch, c10d and Gloo each throw their own family.
#include <tessera/base/error.h>

#include <string_view>

namespace tessera::fsdp {

/// The exception in flight. Gloo's are plain std::exceptions ("Connection closed by peer": kIo,
/// "Timed out": kTimeout); c10::Errors lose their backtrace; ours stay.
Status communication_status();

/// What every rank of a group throws after `global_rank` gave up: the same text on all of them.
Status aborted_status(int global_rank, std::string_view reason);

/// The first line of what a library said, without the place in its source and its backtrace.
std::string_view first_line(std::string_view what);

}  // namespace tessera::fsdp
