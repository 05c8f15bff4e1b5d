#pragma once
#include <tessera/encoding/pickle_reader.h>

namespace tessera {

/// True for the calls that decode_pickle turns into plain values (OrderedDict, set, torch.Size,
/// ...).
bool is_plain_call(const PickleGraph& graph, PickleGraph::Node node);

}  // namespace tessera
