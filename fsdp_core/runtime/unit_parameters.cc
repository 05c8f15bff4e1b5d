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
  // Parts kept for this backward are as good as the shards, unless those changed since.
  const bool from_parts = part_kept_ && phase == CommPhase::kBackward && !precise &&
                          std::ranges::none_of(groups_, [](const auto& g) { return g->stale(); });
  part_kept_ = false;
  for (const std::unique_ptr<ParamGroup>& group : groups_) group->note_changes();
  Communicator& comm = from_parts ? *comms_.regather : *comms_.shard;
  Stream& stream = root_->gather(*this);
  stream.run(
      [this, phase, precise, from_parts, &comm] {
        for (const std::unique_ptr<ParamGroup>& group : groups_) {
          if (from_parts) {
            group->regather(comm, {name_, phase});
          } else {
            group->drop_part();
            group->gather(comm, {name_, phase}, precise, precise ? nullptr : gather_hook.get());
          }
        }
      },
      &comm);
  gathered_ = stream.record();
  return true;
}

void Unit::unshard(CommPhase phase, bool full_precision) {
  if (groups_.empty()) return;
  start_unshard(phase, full_precision);
  if (state_.params() != ParamsState::kUnsharded) finish_unshard();
}

void Unit::finish_unshard() {
  root_->compute().wait(gathered_);
  for (const std::unique_ptr<ParamGroup>& group : groups_) group->attach(gathering_full_precision_);
  state_.apply(UnitEvent::kArrive, name_);
}

void Unit::reshard(bool keep_part) {
  if (groups_.empty() || state_.params() == ParamsState::kSharded) return;
  keep_part &= comms_.regather != nullptr && state_.params() == ParamsState::kUnsharded &&
               !gathering_full_precision_;
  part_kept_ = keep_part;
  state_.apply(UnitEvent::kReshard, name_);
  for (const std::unique_ptr<ParamGroup>& group : groups_) group->detach();
  Stream& stream = root_->gather(*this);
  const Event used = root_->compute().record();
  // Limited: what is gathered next has to wait until compute is done with this memory, and finds it
  // free. Not limited: gathers run ahead of compute, and its memory lies aside until compute is
  // done with it.
  const bool aside = !options_.limit_all_gathers && !used.ready();
  if (!aside) stream.wait(used);
  stream.run([this, keep_part, aside, used] {
    for (const std::unique_ptr<ParamGroup>& group : groups_) {
      if (keep_part) group->keep_part(comms_.regather->size(), comms_.regather->rank());
      if (aside) root_->lay_aside(group->take_gathered(), used);
      group->drop_gathered();
    }
  });
}

void Unit::summon(bool here, bool on_host, bool full_precision) {
  if (groups_.empty()) return;
  reshard();
  for (const std::unique_ptr<ParamGroup>& group : groups_) group->adopt_replaced();
  state_.apply(UnitEvent::kSummon, name_);
  Stream& stream = root_->gather(*this);
  stream.wait_for(root_->compute());
  stream.run(
      [this, full_precision, to_host = here && on_host] {
        for (const std::unique_ptr<ParamGroup>& group : groups_) {
          group->gather(*comms_.shard, {name_, CommPhase::kSummon}, full_precision);
          if (to_host) group->move_to_host(full_precision);
        }
      },
      comms_.shard.get());
  if (!here) {
    stream.run([this] {
      for (const std::unique_ptr<ParamGroup>& group : groups_) group->drop_gathered();
    });
    return;
  }
  const Event gathered = stream.record();
  if (on_host) gathered.synchronize();  // read by the host, not by compute
  root_->compute().wait(gathered);
  for (const std::unique_ptr<ParamGroup>& group : groups_) group->attach(full_precision);
}

void Unit::summon_gradients(bool here, bool on_host) {
  at::NoGradGuard no_grad;
  const CommTag tag{name_, CommPhase::kSummon};
  for (const std::unique_ptr<ParamGroup>& group : groups_) {
    std::vector<at::Tensor> full = group->full_gradients(*comms_.shard, tag);
    if (!here) continue;
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
  Stream& stream = root_->gather(*this);
  stream.wait_for(root_->compute());
  stream.run([this] {
    for (const std::unique_ptr<ParamGroup>& group : groups_) group->drop_gathered();
  });
}

}  // namespace tessera::fsdp::detail
