#pragma once
#include <tessera/encoding/pickle_reader.h>

#include <string>
#include <utility>
#include <vector>

namespace tessera {

/// True for the calls that decode_pickle turns into plain values (OrderedDict, set, torch.Size,
/// ...).
bool is_plain_call(const PickleGraph& graph, PickleGraph::Node node);

/// A dict or list, of any kind that flatten() enters, so that what it holds has a name.
bool is_open_container(const PickleGraph& graph, PickleGraph::Node node);

/// An object that is read as an OrderedDict of these names and values.
using ModuleEntries = std::vector<std::pair<std::string, PickleGraph::Node>>;
/// nullptr: none. What it points to stays there while the pickle is decoded.
using ModuleHook = std::function<const ModuleEntries*(PickleGraph::Node)>;

/// decode_pickle, with objects for which `modules` answers read so at the root, and in dicts and lists
/// from there on. Inside of other objects and of tuples they stay objects.
Value decode_pickle(const PickleGraph& graph, PickleGraph::Node node, const PickleHook& hook,
                    const ModuleHook& modules, std::uint64_t limit_bytes);

}  // namespace tessera
