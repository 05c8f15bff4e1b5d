#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/fsdp/hook_slot.h>

#include "fsdp_core/params/registry.h"

namespace tessera::fsdp::detail {

SlotBase::SlotBase(torch::nn::AnyModule inner)
    : inner_(std::move(inner)), inner_module_(inner_.ptr()) {
  name_after(*this, typeid(*inner_module_));
  for (const auto& child : inner_module_->named_children())
    register_module(child.key(), child.value());
  // The same tensors under the same names: while sharded this registry shows the shards, and the
  // inner module computes with the handles it holds.
  for (const auto& item : Registry::parameters(*inner_module_))
    Registry::parameters(*this).insert(item.key(), item.value());
  for (const auto& item : inner_module_->named_buffers(/*recurse=*/false))
    register_buffer(item.key(), item.value());
  torch::nn::Module::train(inner_module_->is_training());
}

void SlotBase::train(bool on) {
  torch::nn::Module::train(on);
  inner_module_->train(on);
}

void SlotBase::to(torch::Device device, torch::Dtype dtype, bool non_blocking) {
  if (unit) refuse_module_call("to", *this);
  inner_module_->to(device, dtype, non_blocking);
}
void SlotBase::to(torch::Dtype dtype, bool non_blocking) {
  if (unit) refuse_module_call("to", *this);
  inner_module_->to(dtype, non_blocking);
}
void SlotBase::to(torch::Device device, bool non_blocking) {
  if (unit) refuse_module_call("to", *this);
  inner_module_->to(device, non_blocking);
}
void SlotBase::save(torch::serialize::OutputArchive& archive) const {
  if (unit) refuse_module_call("save", *this);
  inner_module_->save(archive);
}
void SlotBase::load(torch::serialize::InputArchive& archive) {
  if (unit) refuse_module_call("load", *this);
  inner_module_->load(archive);
}

std::string slot_name(torch::nn::SequentialImpl& sequential, std::size_t index) {
  if (index >= sequential.size())
    fail(Code::kOutOfRange,
         fmt::format("hook_slot: slot {} of a Sequential of {} modules", index, sequential.size()));
  const auto children = sequential.named_children();
  const auto inside = sequential.ptr(index);
  if (index >= children.size() || children[index].value() != inside)
    fail(Code::kInvalidArgument,
         fmt::format("hook_slot: slot {} is not what the Sequential registered under that number",
                     index));
  for (const auto& module : inside->modules())
    if (const auto* point = dynamic_cast<const HookPoint*>(module.get());
        point != nullptr && point->unit && module != inside)
      fail(Code::kInvalidArgument, fmt::format("hook_slot: slot {} holds a module of class {} that "
                                               "is sharded already: hook the slot first",
                                               index, module->name()));
  return children[index].key();
}

}  // namespace tessera::fsdp::detail
