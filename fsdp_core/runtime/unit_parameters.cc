// When a unit's parameters are gathered and freed, in which dtype, and its full values outside of
// forward.
#include <ATen/ATen.h>

#include <algorithm>

#include "fsdp_core/runtime/root.h"
#include "fsdp_core/runtime/unit.h"

namespace tessera::fsdp::detail {

bool Unit::start_unshard(CommPhase phase) {
  return start_unshard(
      phase, phase == CommPhase::kBackward ? forward_full_precision_ : wants_full_precision());
}

bool Unit::start_unshard(CommPhase phase, bool precise) {
  if (groups_.empty()) return false;
  const bool here =
      state_.params() == ParamsState::kUnsharding || state_.params() == ParamsState::kUnsharded;
  for (const std::unique_ptr<ParamGroup>& group : groups_) group->adopt_replaced();
  if (here) {
    const bool stale =
        std::ranges::any_of(groups_, [](const auto& group) { return group->stale(); });
    if (!stale && gathering_full_precision_ == precise) return false;
    reshard();
  }
  root_->free_aside();
  root_->order().before_gather(*this, phase);
  state_.apply(UnitEvent::kGather, name_);
  gathering_full_precision_ = precise;
  for (Part& part : parts_) start_gather(part, phase);
  return true;
}

void Unit::start_gather(Part& part, CommPhase phase) {
  const bool precise = gathering_full_precision_;
  // What was kept for this backward is as good as the shards, unless those changed since.
  const bool from_kept =
      part.kept && phase == CommPhase::kBackward && !precise &&
      std::ranges::none_of(part.groups, [](const auto& group) { return group->stale(); });
  part.kept = false;
  for (const std::unique_ptr<ParamGroup>& group : part.groups) group->note_changes();
  Communicator& comm = from_kept ? *part.comms->regather : *part.comms->shard;
  Stream& stream = root_->gather(*this, *part.comms);
  stream.run(
      [this, phase, precise, from_kept, groups = part.groups, &comm] {
        for (const std::unique_ptr<ParamGroup>& group : groups) {
          if (from_kept) {
            group->regather(comm, {name_, phase});
          } else {
            group->drop_part();
            group->gather(comm, {name_, phase}, precise, precise ? nullptr : gather_hook.get());
          }
        }
      },
      &comm);
  part.gathered = stream.record();
}

void Unit::unshard(CommPhase phase, bool full_precision) {
  if (groups_.empty()) return;
  start_unshard(phase, full_precision);
  if (state_.params() != ParamsState::kUnsharded) finish_unshard();
}

void Unit::finish_unshard() {
  for (const Part& part : parts_) root_->compute().wait(part.gathered);
  for (const std::unique_ptr<ParamGroup>& group : groups_) group->attach(gathering_full_precision_);
  state_.apply(UnitEvent::kArrive, name_);
}

void Unit::reshard(bool keep_part) {
  if (groups_.empty() || state_.params() == ParamsState::kSharded) return;
  keep_part &= state_.params() == ParamsState::kUnsharded && !gathering_full_precision_;
  state_.apply(UnitEvent::kReshard, name_);
  for (const std::unique_ptr<ParamGroup>& group : groups_) group->detach();
  const Event used = root_->compute().record();
  // Limited: what is gathered next has to wait until compute is done with this memory, and finds it
  // free. Not limited: gathers run ahead of compute, and its memory lies aside until compute is
  // done with it.
  const bool aside = !options_.limit_all_gathers && !used.ready();
  for (Part& part : parts_) {
    const std::shared_ptr<Communicator>& few = part.comms->regather;
    part.kept = keep_part && few != nullptr;
    Stream& stream = root_->gather(*this, *part.comms);
    if (!aside) stream.wait(used);
    stream.run([this, keep = part.kept, few = few.get(), groups = part.groups, aside, used] {
      for (const std::unique_ptr<ParamGroup>& group : groups) {
        if (keep) group->keep_part(few->size(), few->rank());
        if (aside) root_->lay_aside(group->take_gathered(), used);
        group->drop_gathered();
      }
    });
  }
}

void Unit::summon(bool rank0_only, bool on_host, bool full_precision) {
  if (groups_.empty()) return;
  reshard();
  for (const std::unique_ptr<ParamGroup>& group : groups_) group->adopt_replaced();
  state_.apply(UnitEvent::kSummon, name_);
  for (const Part& part : parts_) {
    const bool here = !rank0_only || part.comms->is_first_rank();
    Stream& stream = root_->gather(*this, *part.comms);
    stream.wait_for(root_->compute());
    stream.run(
        [this, full_precision, groups = part.groups, comm = part.comms->shard, here, on_host] {
          for (const std::unique_ptr<ParamGroup>& group : groups) {
            group->gather(*comm, {name_, CommPhase::kSummon}, full_precision);
            if (!here)
              group->drop_gathered();
            else if (on_host)
              group->move_to_host(full_precision);
          }
        },
        part.comms->shard.get());
    if (!here) continue;
    const Event gathered = stream.record();
    if (on_host) gathered.synchronize();  // read by the host, not by compute
    root_->compute().wait(gathered);
    for (const std::unique_ptr<ParamGroup>& group : part.groups) group->attach(full_precision);
  }
}

void Unit::summon_gradients(bool rank0_only, bool on_host) {
  at::NoGradGuard no_grad;
  const CommTag tag{name_, CommPhase::kSummon};
  for (const std::unique_ptr<ParamGroup>& group : groups_) {
    UnitGroups& comms = group->comms();
    std::vector<at::Tensor> full = group->full_gradients(*comms.shard, tag);
    if (rank0_only && !comms.is_first_rank()) continue;
    for (std::size_t p = 0; p < full.size(); ++p)
      group->params()[p].compute.mutable_grad() =
          on_host && full[p].defined()
              ? full[p].to(at::kCPU, full[p].scalar_type(), /*non_blocking=*/false, /*copy=*/true)
              : full[p];
  }
}

void Unit::end_summon(bool write_back) {
  if (groups_.empty()) return;
  for (const std::unique_ptr<ParamGroup>& group : groups_) {
    if (write_back) group->write_back();
    group->hide_gradients();
    group->detach();
  }
  state_.apply(UnitEvent::kSummonEnd, name_);
  for (const Part& part : parts_) {
    Stream& stream = root_->gather(*this, *part.comms);
    stream.wait_for(root_->compute());
    stream.run([groups = part.groups] {
      for (const std::unique_ptr<ParamGroup>& group : groups) group->drop_gathered();
    });
  }
}

}  // namespace tessera::fsdp::detail
