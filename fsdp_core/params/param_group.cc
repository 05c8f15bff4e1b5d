#include "fsdp_core/params/param_group.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/fsdp/comm_hook.h>

#include <algorithm>

#include "fsdp_core/params/outside_inference.h"
#include "fsdp_core/params/registry.h"
#include "fsdp_core/params/shard_tensor.h"

namespace tessera::fsdp {

ParamGroup::ParamGroup(std::vector<Param> params, std::unique_ptr<UnitLayout> layout,
                       GroupDtypes dtypes, c10::Device device, bool offload,
                       std::shared_ptr<UnitGroups> comms)
    : params_(std::move(params)),
      layout_(std::move(layout)),
      dtypes_(dtypes),
      device_(device),
      comms_(std::move(comms)),
      resident_(layout_->shards() == 1 && dtypes.stored == dtypes.compute &&
                !(offload && !device.is_cpu())),
      all_used_(std::make_shared<const std::vector<bool>>(params_.size(), true)) {
  at::NoGradGuard no_grad;
  const c10::Device home = offload ? c10::Device(c10::kCPU) : device;
  shard_buffer_ = at::zeros(
      {layout_->shard_numel()},
      at::TensorOptions(home).dtype(dtypes.stored).pinned_memory(offload && !device.is_cpu()));
  for (std::int64_t numel : layout_->buffer_numels()) {
    grads_.emplace_back(numel, dtypes_.reduce, device_);
    grad_tensors_.push_back(grads_.back().tensor());
  }

  for (std::size_t p = 0; p < params_.size(); ++p) {
    Param& param = params_[p];
    const UnitLayout::ShardPlace& place = layout_->shard(p);
    const UnitLayout::FullPlace& full = layout_->full(p);
    param.sizes = param.compute.sizes().vec();
    param.requires_grad = param.compute.requires_grad();
    if (place.numel > 0)
      shard_buffer_.narrow(0, place.offset, place.numel)
          .view(place.shape)
          .copy_(layout_->part_of(param.compute.detach(), p));
    param.shard = shard_over(shard_buffer_.storage(), dtypes_.stored, place.offset, place.shape);
    param.shard.set_requires_grad(param.requires_grad);
    param.grad_view =
        tensor_over(grads_[full.buffer].storage(), dtypes_.reduce, full.offset, param.sizes);
  }
  if (resident_)
    for (std::size_t p = 0; p < params_.size(); ++p)
      full_.views.push_back(tensor_over(shard_buffer_.storage(), dtypes_.stored,
                                        layout_->shard(p).offset, params_[p].sizes));
  else
    make_memory(full_, dtypes_.compute);
  for (std::size_t p = 0; p < params_.size(); ++p) {
    params_[p].compute.set_data(full_.views[p]);
    if (!resident_)
      params_[p].poison =
          poison_storage(full_.buffers[layout_->full(p).buffer].nbytes(), device_, params_[p].fqn);
    const at::Tensor& compute = params_[p].compute;
    const std::size_t bytes =
        static_cast<std::size_t>(compute.numel()) * c10::elementSize(dtypes_.compute);
    no_grad_here_.push_back(tensor_over(poison_storage(bytes, device_, params_[p].fqn),
                                        dtypes_.compute, 0, params_[p].sizes));
  }
  rename({});
  attached_ = true;
  detach();
}

void ParamGroup::rename(const std::vector<std::string>& prefixes) {
  for (std::size_t p = 0; p < params_.size(); ++p) {
    Param& param = params_[p];
    const std::string& own = param.slots.front().fqn;
    const std::string prefix = prefixes.empty() ? "" : prefixes[param.slots.front().of];
    param.fqn = prefix.empty() ? own : prefix + "." + own;
    if (param.poison)
      param.poison.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
          fmt::format("fsdp: parameter \"{}\" is sharded: its full values exist only inside its "
                      "unit's forward and backward. "
                      "Call the unit's forward, or use fsdp::SummonFullParams; an optimizer that "
                      "holds it was built before fully_shard: build it afterwards",
                      param.fqn));
    no_grad_here_[p]
        .storage()
        .unsafeGetStorageImpl()
        ->release_data_and_set_meta_custom_data_ptr_error_msg_(
            fmt::format("fsdp: the gradient of parameter \"{}\" is in its shard: an optimizer that "
                        "looks for it here was built before fully_shard and would train nothing. "
                        "Build it from module->parameters() afterwards",
                        param.fqn));
  }
}

void ParamGroup::make_memory(FullMemory& memory, at::ScalarType dtype) {
  for (std::int64_t numel : layout_->buffer_numels()) {
    memory.buffers.emplace_back(numel, dtype, device_);
    memory.tensors.push_back(memory.buffers.back().tensor());
  }
  if (!layout_->in_place()) memory.rank_major = RefillBuffer(layout_->full_numel(), dtype, device_);
  memory.own_slot = tensor_over(gather_output(memory).storage(), dtype,
                                layout_->rank() * layout_->shard_numel(), {layout_->shard_numel()});
  for (std::size_t p = 0; p < params_.size(); ++p) {
    const UnitLayout::FullPlace& place = layout_->full(p);
    memory.views.push_back(
        tensor_over(memory.buffers[place.buffer].storage(), dtype, place.offset, params_[p].sizes));
  }
}

ParamGroup::FullMemory& ParamGroup::memory(bool full_precision) {
  if (!full_precision || dtypes_.stored == dtypes_.compute) return full_;
  if (precise_.buffers.empty()) make_memory(precise_, dtypes_.stored);
  return precise_;
}

void ParamGroup::note_changes() { gathered_changes_ = change_sum(); }

void ParamGroup::gather(Communicator& comm, const CommTag& tag, bool full_precision,
                        const GatherHook* hook) {
  if (resident_) return;
  at::NoGradGuard no_grad;
  FullMemory& full = memory(full_precision);
  RefillBuffer& output = gather_output(full);
  output.allocate();
  copy_into(full.own_slot, shard_buffer_);
  if (layout_->shards() > 1 && hook) {
    GatherBucket bucket{comm, tag, full.own_slot, output.tensor()};
    hook->function(bucket);
  } else if (layout_->shards() > 1) {
    comm.all_gather_into(output.tensor(), full.own_slot, tag);
  }
  spread(full);
}

void ParamGroup::spread(FullMemory& full) {
  if (layout_->in_place()) return;
  for (RefillBuffer& buffer : full.buffers) buffer.allocate();
  layout_->copy_out(full.rank_major.tensor(), full.tensors);
  full.rank_major.release();
}

void ParamGroup::keep_part(int size, int rank) {
  if (resident_) return;
  at::NoGradGuard no_grad;
  const std::int64_t numel = layout_->full_numel() / size;
  if (!part_.tensor().defined()) part_ = RefillBuffer(numel, dtypes_.compute, device_);
  part_.allocate();
  if (layout_->in_place()) {
    copy_into(part_.tensor(), full_.tensors[0].narrow(0, rank * numel, numel));
    return;
  }
  full_.rank_major.allocate();
  layout_->copy_in(full_.tensors, full_.rank_major.tensor());
  copy_into(part_.tensor(), full_.rank_major.tensor().narrow(0, rank * numel, numel));
  full_.rank_major.release();
}

void ParamGroup::regather(Communicator& comm, const CommTag& tag) {
  if (resident_) return;
  at::NoGradGuard no_grad;
  RefillBuffer& output = gather_output(full_);
  output.allocate();
  comm.all_gather_into(output.tensor(), part_.tensor(), tag);
  part_.release();
  spread(full_);
}

void ParamGroup::move_to_host(bool full_precision) {
  const OutsideInference outside;
  const std::vector<at::Tensor>& views = resident_ ? full_.views : memory(full_precision).views;
  on_host_.clear();
  for (const at::Tensor& view : views)
    on_host_.push_back(view.to(at::kCPU, view.scalar_type(),
                               /*non_blocking=*/false,
                               /*copy=*/true));
  drop_gathered();
}

void ParamGroup::attach(bool full_precision) {
  if (!on_host_.empty()) {
    for (std::size_t p = 0; p < params_.size(); ++p) params_[p].compute.set_data(on_host_[p]);
  } else if (!resident_) {
    const FullMemory& full = memory(full_precision);
    const bool precise = &full == &precise_;
    for (std::size_t p = 0; p < params_.size(); ++p) {
      if (precise != attached_precise_) params_[p].compute.set_data(full.views[p]);
      params_[p].compute.unsafeGetTensorImpl()->set_storage_keep_dtype(
          full.buffers[layout_->full(p).buffer].storage());
    }
    attached_precise_ = precise;
  }
  if (!gradients_exposed_)
    for (Param& param : params_) param.compute.mutable_grad().reset();
  register_tensors(false);
  attached_ = true;
}

void ParamGroup::detach() {
  if (!attached_) return;
  for (std::size_t p = 0; p < params_.size(); ++p) {
    Param& param = params_[p];
    if (attached_precise_ || !on_host_.empty()) param.compute.set_data(full_.views[p]);
    if (!resident_) param.compute.unsafeGetTensorImpl()->set_storage_keep_dtype(param.poison);
  }
  attached_precise_ = false;
  on_host_.clear();
  if (!gradients_exposed_) hide_gradients();
  register_tensors(true);
  attached_ = false;
}

void ParamGroup::drop_gathered() {
  for (FullMemory* full : {&full_, &precise_})
    for (RefillBuffer& buffer : full->buffers) buffer.release();
}

std::vector<at::Tensor> ParamGroup::take_gathered() {
  std::vector<at::Tensor> out;
  for (FullMemory* full : {&full_, &precise_})
    for (RefillBuffer& buffer : full->buffers)
      if (buffer.allocated()) out.push_back(buffer.take());
  return out;
}

void ParamGroup::register_tensors(bool shards) {
  for (Param& param : params_)
    for (const Param::Slot& slot : param.slots)
      Registry::parameters(*slot.module)[slot.index].value() = shards ? param.shard : param.compute;
}

std::uint64_t ParamGroup::change_sum() const {
  std::uint64_t sum = 0;
  for (const Param& param : params_) sum += changes_of(param.shard);
  return sum;
}

bool ParamGroup::stale() const { return !resident_ && change_sum() != gathered_changes_; }

void ParamGroup::write_back() {
  at::NoGradGuard no_grad;
  for (std::size_t p = 0; p < on_host_.size(); ++p) {
    const UnitLayout::ShardPlace& place = layout_->shard(p);
    if (place.numel > 0)
      shard_buffer_.narrow(0, place.offset, place.numel)
          .view(place.shape)
          .copy_(layout_->part_of(on_host_[p], p));
  }
  if (resident_ || !on_host_.empty()) return;
  TESSERA_CHECK(attached_ && (attached_precise_ || dtypes_.stored == dtypes_.compute));
  const FullMemory& from = memory(true);
  const std::int64_t shard = layout_->shard_numel();
  if (layout_->in_place()) {
    shard_buffer_.copy_(from.tensors[0].narrow(0, layout_->rank() * shard, shard));
    return;
  }
  for (std::size_t p = 0; p < params_.size(); ++p) {
    const UnitLayout::ShardPlace& place = layout_->shard(p);
    if (place.numel > 0)
      shard_buffer_.narrow(0, place.offset, place.numel)
          .view(place.shape)
          .copy_(layout_->part_of(from.views[p], p));
  }
}

void ParamGroup::adopt_replaced() {
  for (std::size_t p = 0; p < params_.size(); ++p) {
    Param& param = params_[p];
    if (param.shard.storage().unsafeGetStorageImpl() ==
        shard_buffer_.storage().unsafeGetStorageImpl())
      continue;
    const UnitLayout::ShardPlace& place = layout_->shard(p);
    if (param.shard.sizes() != at::IntArrayRef(place.shape))
      fail(Code::kInvalidArgument,
           fmt::format("parameter \"{}\": its shard was replaced by a tensor of another shape",
                       param.fqn));
    at::NoGradGuard no_grad;
    const at::Tensor slice =
        tensor_over(shard_buffer_.storage(), dtypes_.stored, place.offset, place.shape);
    slice.copy_(param.shard.detach());
    param.shard.set_data(slice);
    gathered_changes_ = ~std::uint64_t{0};
  }
}

}  // namespace tessera::fsdp
