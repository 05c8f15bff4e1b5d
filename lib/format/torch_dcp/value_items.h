#pragma once
// Decodes all values of a checkpoint: items sorted by place, read in runs, on several threads.
#include <cstdint>
#include <vector>

#include "lib/format/findings.h"
#include "lib/format/torch_dcp/item_value.h"

namespace tessera::dcp {

/// One value's item and the name it has.
struct ValueItem {
  Item item;
  std::string name;
};

struct DecodedItem {
  DecodedValue decoded;
  bool damaged = false;  // tolerated; a finding says why
};

/// decoded[i] for items[i]. Damage goes to `findings` as CK019.
std::vector<DecodedItem> decode_values(const Directory& directory, const Manifest& manifest,
                                       const std::vector<ValueItem>& items,
                                       const ReadOptions& options, Findings& findings);

}  // namespace tessera::dcp
