#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/encoding/pickle_reader.h>
#include <tessera/encoding/pickle_writer.h>
#include <tessera/fsdp/state_dict.h>

#include <cstring>
#include <map>
#include <optional>
#include <span>

#include "fsdp_core/bridge/box_view.h"
#include "fsdp_core/bridge/dtype.h"
#include "fsdp_core/runtime/fail_together.h"
#include "fsdp_core/runtime/told_to_peers.h"
#include "fsdp_core/state_dict/model_tensors.h"
#include "fsdp_core/state_dict/on_this_rank.h"

namespace tessera::fsdp {
namespace {

/// Names, types, shapes and values of a whole state; no tensor data.
Manifest manifest_of(const LiveState& full) {
  Manifest out;
  for (const StateEntry& entry : full.dict.entries) {
    StateEntry copy = entry;
    if (entry.value.is_tensor()) {
      StoredTensor stored;
      stored.name = entry.name;
      stored.spec = full.tensors[entry.value.tensor_index()].spec;
      copy.value = Value::tensor(static_cast<std::uint32_t>(out.tensors.size()));
      out.tensors.push_back(std::move(stored));
    }
    out.state.entries.push_back(std::move(copy));
  }
  return out;
}

// A manifest between ranks: a list of [path, None, value] or [path, dtype, shape].

Value path_value(const Path& path) {
  ValueList items;
  for (const PathItem& item : path) {
    if (item.kind == PathItem::Kind::kKey)
      items.push_back(Value::string(item.key));
    else
      items.push_back(Value::list(
          {Value::boolean(item.kind == PathItem::Kind::kIntKey), Value::integer(item.index)}));
  }
  return Value::list(std::move(items));
}

Path path_of(const Value& value) {
  Path out;
  for (const Value& item : value.as_list()) {
    if (item.is_string())
      out.push_back(key_item(item.as_string()));
    else if (item.as_list()[0].as_bool())
      out.push_back(int_key_item(item.as_list()[1].as_int()));
    else
      out.push_back(index_item(item.as_list()[1].as_int()));
  }
  return out;
}

Bytes packed(const Manifest& manifest) {
  ValueList entries;
  for (const StateEntry& entry : manifest.state.entries) {
    if (!entry.value.is_tensor()) {
      entries.push_back(Value::list({path_value(entry.path), Value(), entry.value}));
      continue;
    }
    const TensorSpec& spec = manifest.tensors[entry.value.tensor_index()].spec;
    entries.push_back(
        Value::list({path_value(entry.path), Value::string(std::string(torch_name(spec.dtype))),
                     Value::size({spec.shape.extents().begin(), spec.shape.extents().end()})}));
  }
  PickleEmitter out;
  write_value(out, Value::list(std::move(entries)), [](PickleEmitter&, std::uint32_t) {
    fail(Code::kUnsupported, "a tensor inside a value of a full state");
  });
  return out.finish();
}

Manifest unpacked(ByteView bytes) {
  const PickleGraph graph = read_pickle(bytes);
  Manifest out;
  const auto plain = [](const PickleGraph&, PickleGraph::Node) { return std::optional<Value>(); };
  const Value tree = decode_pickle(graph, graph.root(), plain);
  for (const Value& item : tree.as_list()) {
    const ValueList& parts = item.as_list();
    StateEntry entry;
    entry.path = path_of(parts[0]);
    entry.name = dotted(entry.path);
    entry.value = parts[2];
    if (!parts[1].is_none()) {
      StoredTensor stored;
      stored.name = entry.name;
      stored.spec = {dtype_from_torch_name(parts[1].as_string()).value(),
                     Shape(parts[2].as_size())};
      entry.value = Value::tensor(static_cast<std::uint32_t>(out.tensors.size()));
      out.tensors.push_back(std::move(stored));
    }
    out.state.entries.push_back(std::move(entry));
  }
  return out;
}

/// From the first rank of shards and replicas to all of them.
class FirstRank {
 public:
  FirstRank(const ModelTensors& model, bool rank0_only) {
    if (rank0_only && !model.units.empty()) unit_ = model.units.back();
  }
  bool here() const { return !unit_ || unit_->is_first_rank(); }
  bool broadcasts() const { return unit_ != nullptr; }

  /// Of the first rank, to all.
  Bytes share(Bytes mine) const {
    for (Communicator* comm : groups()) {
      const auto all = comm->all_gather_bytes(mine, kTag);
      mine.assign(all[0].begin(), all[0].end());
    }
    return mine;
  }

  /// Flags of any rank: as many on each.
  std::vector<std::uint8_t> any(std::vector<std::uint8_t> flags) const {
    for (Communicator* comm : groups())
      for (const auto& theirs : comm->all_gather_bytes(std::as_bytes(std::span(flags)), kTag)) {
        TESSERA_CHECK(theirs.size() == flags.size());
        for (std::size_t i = 0; i < flags.size(); ++i)
          flags[i] |= std::to_integer<std::uint8_t>(theirs[i]);
      }
    return flags;
  }

  void broadcast(at::Tensor& whole) const {
    if (!unit_ || whole.numel() == 0) return;
    UnitGroups& comms = unit_->comms();
    at::Tensor flat = whole.view({-1});
    if (comms.shards() > 1 && comms.replicate->rank() == 0) comms.shard->broadcast(flat, 0, kTag);
    if (comms.replicas() > 1) comms.replicate->broadcast(flat, 0, kTag);
  }

 private:
  static constexpr CommTag kTag{"state dict", CommPhase::kSummon};
  std::vector<Communicator*> groups() const {
    std::vector<Communicator*> out;
    if (unit_)
      for (Communicator* comm : {unit_->comms().shard.get(), unit_->comms().replicate.get()})
        if (comm->size() > 1) out.push_back(comm);
    return out;
  }
  std::shared_ptr<detail::Unit> unit_;
};

std::vector<std::int64_t> sizes_of(const Shape& shape) {
  return {shape.extents().begin(), shape.extents().end()};
}

at::Tensor whole_of(const LiveTensor& tensor, const std::string& name) {
  const Box all = Box::whole(tensor.spec.shape);
  for (const LivePiece& piece : tensor.pieces)
    if (piece.chunk == Chunk::whole_of(all)) {
      const auto sizes = sizes_of(tensor.spec.shape);
      const auto strides = piece.strides.empty() ? tensor.spec.shape.strides() : piece.strides;
      return at::from_blob(piece.data, sizes, strides,
                           at::TensorOptions().dtype(scalar_type_of(tensor.spec.dtype)));
    }
  fail(Code::kInvalidArgument, fmt::format("\"{}\" is not whole here", name),
       "take the state with StateDictType::kFull");
}

/// `piece` of a row-major whole.
void copy_piece(const at::Tensor& whole, const LivePiece& piece) {
  if (piece.chunk.numel() == 0) return;
  const auto options = whole.options();
  const Box& box = piece.chunk.box;
  if (!piece.chunk.is_whole_box()) {
    at::from_blob(piece.data, {piece.chunk.numel()}, options)
        .copy_(whole.view({-1}).narrow(0, piece.chunk.flat_begin, piece.chunk.numel()));
    return;
  }
  const auto strides = piece.strides.empty() ? box.shape.strides() : piece.strides;
  at::from_blob(piece.data, sizes_of(box.shape), strides, options).copy_(view_of(whole, box));
}

void check_names(const LiveState& target, const std::map<std::string, const StateEntry*>& stored,
                 const Manifest& manifest) {
  std::size_t used = 0;
  for (const StateEntry& entry : target.dict.entries) {
    const auto found = stored.find(entry.name);
    if (found == stored.end())
      fail(Code::kInvalidArgument, fmt::format("\"{}\" is not in the full state", entry.name));
    ++used;
    if (!entry.value.is_tensor()) {
      if (target.check_value) target.check_value(*found->second);
      continue;
    }
    const Shape& wanted = target.tensors[entry.value.tensor_index()].spec.shape;
    const Shape& there = manifest.tensors[found->second->value.tensor_index()].spec.shape;
    if (wanted != there)
      fail(Code::kInvalidArgument, fmt::format("\"{}\": expected shape {}, found {}", entry.name,
                                               wanted.to_string(), there.to_string()));
  }
  if (used != stored.size())
    for (const auto& [name, entry] : stored)
      if (!target.dict.find(name))
        fail(Code::kInvalidArgument,
             fmt::format("\"{}\" of the full state is not asked for", name));
}

constexpr char kCall[] = "load_full_state";

/// Which tensors some rank fills before all have agreed that nothing is refused (flag 1: scratch),
/// and which some rank fills after (flag 2). Ranks need not have the same: all take part in every
/// broadcast, in one order.
enum Fill : std::uint8_t { kScratch = 1, kJob = 2 };

std::vector<std::uint8_t> fills_of(const LiveState& target) {
  std::vector<std::uint8_t> out;
  for (const StateEntry& entry : target.dict.entries)
    if (entry.value.is_tensor())
      out.push_back(target.tensors[entry.value.tensor_index()].scratch ? kScratch : kJob);
  return out;
}

void scatter_full_state(const ModuleRef& model, const OptimizerRef& optimizers,
                        const LiveState& full, bool rank0_only, const StateDictOptions& options) {
  at::NoGradGuard no_grad;
  const ModelTensors tensors = model_tensors(model);
  const FirstRank first(tensors, rank0_only);
  const std::vector<Communicator*> groups = communicators_of(tensors.units);
  /// What one rank alone may refuse comes before anything of the job changes.
  const auto together = [&](const std::function<void()>& body) {
    fail_together(groups, {kCall, {"state dict", CommPhase::kCheck}, "nothing was loaded"}, body);
  };
  Manifest manifest;
  Bytes told;
  together([&] {
    if (!first.here()) return;
    manifest = manifest_of(full);
    if (first.broadcasts()) told = packed(manifest);
  });
  if (first.broadcasts())
    told_to_peers(tensors.units, kCall, [&] { manifest = unpacked(first.share(std::move(told))); });
  StateDictOptions sharded = options;
  sharded.type = StateDictType::kSharded;
  sharded.rank0_only = false;
  sharded.even_chunks = false;
  LiveState target = state_dict(model, optimizers, sharded);
  std::map<std::string, const StateEntry*> stored;
  for (const StateEntry& entry : manifest.state.entries) stored.emplace(entry.name, &entry);
  std::map<std::string, const LiveTensor*> given;
  for (const StateEntry& entry : full.dict.entries)
    if (entry.value.is_tensor())
      given.emplace(entry.name, &full.tensors[entry.value.tensor_index()]);
  const auto given_whole = [&](const StateEntry& entry) {
    return whole_of(*given.at(entry.name), entry.name);
  };
  std::vector<std::string> loaded;
  together([&] {
    target.materialise(target, manifest);
    check_names(target, stored, manifest);
    for (const StateEntry& entry : target.dict.entries) {
      if (!entry.value.is_tensor()) continue;
      if (first.here()) given_whole(entry);
      loaded.push_back(entry.name);
    }
  });
  std::vector<std::uint8_t> on_any;
  told_to_peers(tensors.units, kCall, [&] { on_any = first.any(fills_of(target)); });
  const auto fill = [&](Fill wanted) {
    told_to_peers(tensors.units, kCall, [&] {
      std::size_t next = 0;
      for (const StateEntry& entry : target.dict.entries) {
        if (!entry.value.is_tensor() || (on_any[next++] & wanted) == 0) continue;
        const LiveTensor& live = target.tensors[entry.value.tensor_index()];
        const at::ScalarType type = scalar_type_of(live.spec.dtype);
        at::Tensor whole = first.here() ? given_whole(entry).to(type).contiguous()
                                        : at::empty(sizes_of(live.spec.shape), type);
        first.broadcast(whole);
        if (live.scratch != (wanted == kScratch)) continue;
        for (const LivePiece& piece : live.pieces) copy_piece(whole, piece);
      }
    });
  };
  fill(kScratch);
  together([&] { target.check_loaded(loaded); });
  fill(kJob);
  target.after_load(loaded);
}

}  // namespace

void load_full_state(const ModuleRef& model, const OptimizerRef& optimizers, const LiveState& full,
                     bool rank0_only, const StateDictOptions& options) {
  on_this_rank(model, "load_full_state",
               [&] { scatter_full_state(model, optimizers, full, rank0_only, options); });
}

void key_by_ids(LiveState& state, const std::string& optim_root) {
  const auto below_root = [&](const StateEntry& entry, const char* part) {
    return entry.path.size() >= 3 && is_key(entry.path[0], optim_root) &&
           is_key(entry.path[1], part);
  };
  std::map<std::string, std::int64_t> ids;
  std::vector<StateEntry> names;  // by which shapes alone need not tell whose an id is
  for (StateEntry& entry : state.dict.entries) {
    if (!below_root(entry, "param_groups") || !is_key(entry.path.back(), "params")) continue;
    ValueList members;
    for (const Value& fqn : entry.value.as_list()) {
      const auto id = static_cast<std::int64_t>(ids.size());
      members.push_back(Value::integer(ids.emplace(fqn.as_string(), id).first->second));
    }
    Path path = entry.path;
    path.back() = key_item("param_names");
    names.push_back({dotted(path), path, entry.value});
    entry.value = Value::list(std::move(members));
  }
  for (StateEntry& entry : state.dict.entries) {
    if (!below_root(entry, "state")) continue;
    const auto found = ids.find(entry.path[2].key);
    if (found == ids.end())
      fail(Code::kInvalidArgument,
           fmt::format("\"{}\" is state of a parameter that no group lists", entry.name));
    entry.path[2] = int_key_item(found->second);
    entry.name = dotted(entry.path);
  }
  for (StateEntry& entry : names) state.dict.entries.push_back(std::move(entry));
  state.materialise = [](LiveState&, const Manifest&) {
    fail(Code::kInvalidArgument, "a state keyed by ids is for saving",
         "load into fsdp::state_dict(model, optimizer) as it is");
  };
}

}  // namespace tessera::fsdp
