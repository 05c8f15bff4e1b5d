#pragma once
// Tensors that are one tensor under several names, because they lie at one place.
#include <tessera/ops/open.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace tessera {

/// Where a located tensor of one chunk lies, if that says all about its bytes: file, offset,
/// length, flags, strides. Two of one type and shape at one place are one tensor.
using StoredPlace = std::tuple<std::uint32_t, std::uint64_t, std::uint64_t, std::uint8_t,
                               std::vector<std::int64_t>>;
std::optional<StoredPlace> stored_place_of(const Manifest& manifest, const StoredTensor& tensor);

/// Names of leaves that are one tensor, in the checkpoint's order. From headers alone: what might
/// be one storage is located, nothing of it is read. Masters, and steps of optimizers, are not among
/// them.
std::vector<std::vector<std::string>> shared_storage(const OpenedCheckpoint& checkpoint);

}  // namespace tessera
