#pragma once
// What the inspecting verbs share: one tensor as ls describes it, and reading limits taken from a
// transfer's.
#include <tessera/ops/ls.h>

namespace tessera {

/// The row of one tensor, chunk table included. Reads nothing.
LsTensor describe_tensor(const Manifest& manifest, std::uint32_t index);

inline ReadOptions read_options(const TransferOptions& transfer) {
  ReadOptions read;
  read.memory_limit_bytes = transfer.memory_limit_bytes;
  read.threads = transfer.threads;
  read.check_crc = transfer.check_crc;
  return read;
}

}  // namespace tessera
