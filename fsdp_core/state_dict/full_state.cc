#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/fsdp/state_dict.h>
#include <tessera/state/optim_edit.h>
#include <tessera/state/roles.h>
#include <tessera/tensor/cast.h>

#include <algorithm>
#include <map>
#include <span>

#include "fsdp_core/bridge/box_view.h"
#include "fsdp_core/bridge/dtype.h"
#include "fsdp_core/runtime/abort_peers.h"
#include "fsdp_core/runtime/fail_together.h"
#include "fsdp_core/state_dict/full_manifest.h"
#include "fsdp_core/state_dict/model_tensors.h"
#include "fsdp_core/state_dict/on_this_rank.h"

namespace tessera::fsdp {
namespace {

/// From the first rank of shards and replicas to all of them.
class FirstRank {
 public:
  FirstRank(const ModelTensors& model, bool rank0_only) {
    if (rank0_only && !model.units.empty()) unit_ = model.units.back();
    for (const auto& unit : model.units)
      if (!unit->groups().empty()) device_ = unit->groups().front()->device();
  }
  bool here() const { return !unit_ || unit_->comms().is_first_rank(); }
  bool broadcasts() const { return unit_ != nullptr; }

  /// Sends the first rank's bytes to all ranks and returns them.
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
    const at::Tensor flat = whole.view({-1}).to(device_);
    unit_->comms().broadcast(flat, kTag);
    if (!here() && flat.device() != whole.device()) whole.view({-1}).copy_(flat);
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
  at::Device device_ = at::kCPU;  // where the groups take tensors
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
  if (tensor.pieces.empty())
    fail(Code::kInvalidArgument, fmt::format("\"{}\" is not here", name),
         "with rank0_only the first rank gives the state, else every rank does");
  fail(Code::kInvalidArgument,
       fmt::format("of \"{}\" only {} is here, of {}", name, tensor.pieces[0].chunk.to_string(),
                   tensor.spec.shape.to_string()),
       "take the state with StateDictType::kFull; where tensor parallelism cuts it, use "
       "tessera::save and tessera::load");
}

/// `piece` of a row-major whole.
void copy_piece(const at::Tensor& whole, const LivePiece& piece) {
  if (piece.chunk.numel() == 0) return;
  const auto options = whole.options();
  const Box& box = piece.chunk.box;
  const at::Tensor part = view_of(whole, box);
  if (!piece.chunk.is_whole_box()) {  // a range of the box's ravel
    at::from_blob(piece.data, {piece.chunk.numel()}, options)
        .copy_(part.reshape({-1}).narrow(0, piece.chunk.flat_begin, piece.chunk.numel()));
    return;
  }
  const auto strides = piece.strides.empty() ? box.shape.strides() : piece.strides;
  at::from_blob(piece.data, sizes_of(box.shape), strides, options).copy_(part);
}

/// Values go to values, tensors to tensors of the same shape and type, real floating types to each
/// other.
void check_fits(const StateEntry& wanted, const LiveState& target, const StateEntry& found,
                const Manifest& manifest) {
  const auto refuse = [&](const std::string& expected, const std::string& there) {
    in_tensor(wanted.name, [&] {
      fail(Code::kInvalidArgument, fmt::format("expected {}, found {}", expected, there));
    });
  };
  const TensorSpec* there =
      found.value.is_tensor() ? &manifest.tensors[found.value.tensor_index()].spec : nullptr;
  if (!wanted.value.is_tensor()) {
    if (there != nullptr) refuse("a value", there->to_string());
    return;
  }
  const TensorSpec& spec = target.tensors()[wanted.value.tensor_index()].spec;
  if (there == nullptr) return refuse(spec.to_string(), "a value");
  const bool cast = is_floating(spec.dtype) && is_floating(there->dtype) &&
                    is_castable(spec.dtype) && is_castable(there->dtype);
  if (spec.shape != there->shape || (spec.dtype != there->dtype && !cast))
    refuse(spec.to_string(), there->to_string());
}

void check_names(const LiveState& target, const std::map<std::string, const StateEntry*>& stored,
                 const Manifest& manifest) {
  std::size_t used = 0;
  for (const StateEntry& entry : target.dict().entries) {
    const auto found = stored.find(entry.name);
    if (found == stored.end())
      fail(Code::kInvalidArgument,
           fmt::format("\"{}\" is not in the full state", entry.name.view()));
    ++used;
    check_fits(entry, target, *found->second, manifest);
    if (!entry.value.is_tensor() && target.check_value) target.check_value(*found->second);
  }
  if (used != stored.size())
    for (const auto& [name, entry] : stored)
      if (!target.dict().find(name))
        fail(Code::kInvalidArgument,
             fmt::format("\"{}\" of the full state is not asked for", name));
}

/// Optimizers may be keyed by ids (key_by_ids).
void name_by_fqn(Manifest& manifest) {
  const Roles roles = find_roles(manifest.state);
  if (std::ranges::any_of(roles.optimizers, [](const OptimizerRoot& root) {
        return root.dialect == OptimDialect::kById;
      }))
    rekey_optimizers(manifest, OptimKeys::kFqn);
}

constexpr char kCall[] = "load_full_state";

/// Which tensors some rank fills before all have agreed that nothing is refused (flag 1: scratch),
/// and which some rank fills after (flag 2). Ranks need not have the same: all take part in every
/// broadcast, in one order.
enum Fill : std::uint8_t { kScratch = 1, kJob = 2 };

std::vector<std::uint8_t> fills_of(const LiveState& target) {
  std::vector<std::uint8_t> out;
  for (const StateEntry& entry : target.dict().entries)
    if (entry.value.is_tensor())
      out.push_back(target.tensors()[entry.value.tensor_index()].scratch ? kScratch : kJob);
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
  Bytes sent;
  std::string lines;
  together([&] {
    if (!first.here()) return;
    manifest = manifest_of(full);
    if (first.broadcasts()) sent = packed(manifest);
    if (!rank0_only) lines = scalar_lines(full);
  });
  together([&] {
    check_alike(groups, {"state dict", CommPhase::kCheck}, "full states", lines,
                "give every rank the same state, or one rank alone (rank0_only)");
  });
  if (first.broadcasts())
    run_or_abort_peers(tensors.units, kCall,
                       [&] { manifest = unpacked(first.share(std::move(sent))); });
  StateDictOptions sharded = options;
  sharded.type = StateDictType::kSharded;
  sharded.rank0_only = false;
  sharded.even_chunks = false;
  LiveState target;
  together([&] { target = state_dict(model, optimizers, sharded); });
  together([&] { name_by_fqn(manifest); });
  std::map<std::string, const StateEntry*> stored;
  for (const StateEntry& entry : manifest.state.entries) stored.emplace(entry.name, &entry);
  std::vector<const LiveTensor*> given;  // by tensor of the manifest
  for (const StateEntry& entry : full.dict().entries)
    if (entry.value.is_tensor()) given.push_back(&full.tensors()[entry.value.tensor_index()]);
  const auto given_whole = [&](const StateEntry& entry) {
    return whole_of(*given[stored.at(entry.name)->value.tensor_index()], entry.name);
  };
  std::vector<std::string> loaded;
  together([&] {
    target.materialise(target, manifest);
    check_names(target, stored, manifest);
    for (const StateEntry& entry : target.dict().entries) {
      if (!entry.value.is_tensor()) continue;
      if (first.here()) given_whole(entry);
      loaded.push_back(entry.name);
    }
  });
  std::vector<std::uint8_t> on_any;
  run_or_abort_peers(tensors.units, kCall, [&] { on_any = first.any(fills_of(target)); });
  const auto fill = [&](Fill wanted) {
    run_or_abort_peers(tensors.units, kCall, [&] {
      std::size_t next = 0;
      for (const StateEntry& entry : target.dict().entries) {
        if (!entry.value.is_tensor() || (on_any[next++] & wanted) == 0) continue;
        const LiveTensor& live = target.tensors()[entry.value.tensor_index()];
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
  try {
    fill(kJob);
  } catch (...) {
    Status status = current_exception_status();
    status.message += "; model and optimizer are partly filled";
    status.hint = "load a whole state before they are used";
    throw Error(std::move(status));
  }
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
  state.edit([&](LiveContents& contents) {
    std::vector<StateEntry>& entries = contents.dict.entries;
    std::map<std::string, std::int64_t> ids;
    std::vector<StateEntry> names;  // for where shapes alone do not decide whose an id is
    for (StateEntry& entry : entries) {
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
    for (StateEntry& entry : entries) {
      if (!below_root(entry, "state")) continue;
      const auto found = ids.find(entry.path[2].key);
      if (found == ids.end())
        fail(Code::kInvalidArgument,
             fmt::format("\"{}\" is state of a parameter that no group lists", entry.name.view()));
      entry.path[2] = int_key_item(found->second);
      entry.name = dotted(entry.path);
    }
    for (StateEntry& entry : names) entries.push_back(std::move(entry));
  });
  state.materialise = [](LiveState&, const Manifest&) {
    fail(Code::kInvalidArgument, "a state keyed by ids is for saving",
         "load into fsdp::state_dict(model, optimizer) as it is");
  };
}

}  // namespace tessera::fsdp
