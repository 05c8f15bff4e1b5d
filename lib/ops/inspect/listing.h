#pragma once
// What the inspecting verbs share: one tensor as ls describes it, plain numbers, and reading limits
// taken from a transfer's.
#include <tessera/ops/ls.h>
#include <tessera/reshard/tensor_reader.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

/// `value` as a number; nullopt when it is null or none.
inline std::optional<double> number_of(const Value* value) {
  if (!value || !value->is_number()) return std::nullopt;
  return value->as_real();
}

/// The `values` of ls, and one of them, where the tensors inside are hashed already. Throws
/// kCorrupt for what expands to more than a page.
std::vector<std::pair<std::string, Value>> json_values(
    const Manifest& manifest, const std::map<std::uint32_t, std::string>& digests);
Value json_value(const Manifest& manifest, const Value& value,
                 const std::map<std::uint32_t, std::string>& digests, ValueBudget& budget);

/// The row of one tensor, chunk table included. Reads nothing.
LsTensor describe_tensor(const Manifest& manifest, std::uint32_t index);

/// For verbs that look at elements: what one of them has room to decode, all have. `stat` and
/// `diff` keep the least for it.
inline TransferOptions looking(TransferOptions transfer) {
  transfer.most_coded_bytes = transfer.memory_limit_bytes / 16 * 3;
  return transfer;
}

inline ReadOptions read_options(const TransferOptions& transfer) {
  ReadOptions read;
  read.memory_limit_bytes = transfer.memory_limit_bytes;
  read.threads = transfer.threads;
  read.check_crc = transfer.check_crc;
  return read;
}

}  // namespace tessera
