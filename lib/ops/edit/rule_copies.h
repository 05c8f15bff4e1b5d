#pragma once
// Parameters that one side of a rule set stores once more: the embedding and the head in the layers
// that predict further tokens, as the hub's files have them.
#include <tessera/ops/open.h>
#include <tessera/ops/rules.h>
#include <tessera/reshard/tensor_reader.h>
#include <tessera/state/aliases.h>

#include <string>
#include <utility>
#include <vector>

namespace tessera {

/// Leaves out the first name of each pair, under every root of weights. `compare`: throws
/// kUnsupported where its bytes are not those of the second. State of its own: kUnsupported. Returns
/// the entries that are gone and those that hold their bytes.
std::vector<Alias> drop_copies(OpenedCheckpoint& checkpoint,
                               const std::vector<std::pair<std::string, std::string>>& copies,
                               bool compare, const TransferOptions& transfer);

/// Adds the first name of each pair as an entry with the second's bytes, under every root.
void make_copies(Manifest& manifest,
                 const std::vector<std::pair<std::string, std::string>>& copies);

}  // namespace tessera
