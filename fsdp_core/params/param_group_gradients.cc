// The gradients of a group: where autograd adds them up, what a reduction leaves, and the sums that
// wait for another one.
#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "fsdp_core/params/param_group.h"

namespace tessera::fsdp {

void ParamGroup::expose_gradients() {
  if (!has_gradients_) {
    for (RefillBuffer& buffer : grads_) {
      buffer.allocate();
      if (buffer.nbytes() == 0) continue;
      if (device_.is_cpu())
        std::memset(buffer.tensor().mutable_data_ptr(), 0, buffer.nbytes());
      else
        buffer.tensor().zero_();
    }
    has_gradients_ = true;
  }
  for (Param& param : params_)
    if (param.requires_grad) param.compute.mutable_grad() = param.grad_view;
  gradients_exposed_ = true;
}

void ParamGroup::hide_gradients() {
  gradients_exposed_ = false;
  for (std::size_t p = 0; p < params_.size(); ++p)
    if (params_[p].requires_grad)
      params_[p].compute.mutable_grad() = no_grad_here_[p];
    else
      params_[p].compute.mutable_grad().reset();
}

at::Tensor ParamGroup::take_gradients() {
  hide_gradients();
  has_gradients_ = false;
  if (layout_->in_place()) return grads_[0].take();
  at::NoGradGuard no_grad;
  at::Tensor input = new_tensor(layout_->full_numel(), dtypes_.reduce, device_);
  layout_->copy_in(grad_tensors_, input);
  for (RefillBuffer& buffer : grads_) buffer.release();
  return input;
}

void ParamGroup::drop_gradients() {
  hide_gradients();
  for (RefillBuffer& buffer : grads_) buffer.release();
  has_gradients_ = false;
  partial_.reset();
  partial_used_ = nullptr;
}

void ParamGroup::drop_shard_gradients() {
  for (Param& param : params_) {
    param.shard.mutable_grad().reset();
    param.shard_grad.reset();
  }
  shard_grad_buffer_.reset();
}

void ParamGroup::accumulate(const at::Tensor& reduced, const std::vector<bool>& used) {
  at::NoGradGuard no_grad;
  bool any = false, held = false;
  for (const Param& param : params_) {
    const bool defined = param.shard.grad().defined();
    any |= defined;
    // A slice that the user still holds after he cleared .grad must keep its values.
    held |= param.shard_grad.defined() && param.shard_grad.use_count() > (defined ? 2 : 1);
  }
  if (!shard_grad_buffer_.defined() || (held && !any)) {
    shard_grad_buffer_ = at::zeros(
        {layout_->shard_numel()}, shard_buffer_.options().pinned_memory(shard_buffer_.is_pinned()));
    for (std::size_t p = 0; p < params_.size(); ++p)
      params_[p].shard_grad = tensor_over(shard_grad_buffer_.storage(), dtypes_.stored,
                                          layout_->shard(p).offset, layout_->shard(p).shape);
  }
  if (any)
    add_to_gradients(reduced);
  else
    copy_into(shard_grad_buffer_, reduced);
  for (std::size_t p = 0; p < params_.size(); ++p)
    if (params_[p].requires_grad && used[p])
      params_[p].shard.mutable_grad() = params_[p].shard_grad;
}

void ParamGroup::add_to_gradients(const at::Tensor& reduced) {
  // What lies on the host is added to where `reduced` is: its copies there and back are in the
  // stream's order, and the host need not wait for them.
  const bool away = shard_grad_buffer_.device() != reduced.device();
  for (Param& param : params_) {
    at::Tensor& grad = param.shard.mutable_grad();
    if (!grad.defined() || grad.is_same(param.shard_grad)) continue;
    param.shard_grad.copy_(grad);
    grad = param.shard_grad;
  }
  const at::Tensor sum =
      away ? shard_grad_buffer_.to(reduced.device(), /*non_blocking=*/true) : shard_grad_buffer_;
  for (std::size_t p = 0; p < params_.size(); ++p)
    if (!params_[p].shard.grad().defined())
      sum.narrow(0, layout_->shard(p).offset, layout_->shard(p).numel).zero_();
  sum.add_(reduced);
  if (away) shard_grad_buffer_.copy_(sum, /*non_blocking=*/true);
}

void ParamGroup::hold_partial(const at::Tensor& reduced) {
  // A slice of the unsharded gradients would keep all of them; and on a device those are another
  // stream's memory, which must not be given back from here.
  const bool own = device_.is_cpu() && reduced.storage().nbytes() == reduced.nbytes();
  if (partial_.defined())
    partial_.add_(reduced);
  else
    partial_ = own ? reduced : reduced.clone();
}

void ParamGroup::add_partial(const at::Tensor& reduced) {
  if (!partial_.defined()) return;
  at::NoGradGuard no_grad;
  reduced.add_(partial_);
  partial_.reset();
}

UsedParams ParamGroup::used_with_partial(UsedParams used, bool holds) {
  if (partial_used_) {
    std::vector<bool> either = *used;
    for (std::size_t p = 0; p < either.size(); ++p) either[p] = either[p] || (*partial_used_)[p];
    used = std::make_shared<const std::vector<bool>>(std::move(either));
  }
  partial_used_ = holds ? used : nullptr;
  return used;
}

void ParamGroup::lower_gradients() {
  for (Param& param : params_)
    if (param.shard.grad().defined() && param.shard.grad().is_same(param.shard_grad))
      param.shard.mutable_grad() = param.shard_grad.to(dtypes_.compute);
}

std::vector<at::Tensor> ParamGroup::full_gradients(Communicator& comm, const CommTag& tag) {
  at::NoGradGuard no_grad;
  const auto options = at::TensorOptions(device_).dtype(dtypes_.stored);
  const std::int64_t shard = layout_->shard_numel();
  at::Tensor gathered = at::zeros({layout_->full_numel()}, options);
  at::Tensor own = gathered.narrow(0, layout_->rank() * shard, shard);
  std::vector<std::uint8_t> flags(params_.size());
  for (std::size_t p = 0; p < params_.size(); ++p) {
    const at::Tensor& grad = params_[p].shard.grad();
    if (!grad.defined()) continue;
    flags[p] = 1;
    const UnitLayout::ShardPlace& place = layout_->shard(p);
    if (place.numel > 0) own.narrow(0, place.offset, place.numel).copy_(grad.reshape({-1}));
  }
  if (layout_->shards() > 1) {
    const at::Tensor has = at::tensor(flags, at::kByte).to(device_);
    comm.all_reduce(has, Reduce::kMax, tag);
    comm.all_gather_into(gathered, own, tag);
    const at::Tensor found = has.cpu();
    std::copy_n(found.const_data_ptr<std::uint8_t>(), flags.size(), flags.begin());
  }
  std::vector<at::Tensor> buffers;
  for (std::int64_t numel : layout_->buffer_numels())
    buffers.push_back(at::empty({numel}, options));
  if (layout_->in_place())
    buffers[0] = gathered;
  else
    layout_->copy_out(gathered, buffers);
  std::vector<at::Tensor> out(params_.size());
  for (std::size_t p = 0; p < params_.size(); ++p)
    if (flags[p] != 0)
      out[p] = tensor_over(buffers[layout_->full(p).buffer].storage(), dtypes_.stored,
                           layout_->full(p).offset, params_[p].sizes);
  return out;
}

}  // namespace tessera::fsdp
