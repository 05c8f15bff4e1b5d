#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/fsdp/whole_tensors.h>

#include <unordered_map>

#include "fsdp_core/bridge/spread.h"
#include "fsdp_core/runtime/units_of.h"

namespace tessera::fsdp {

struct WholeTensors::Impl {
  struct Place {
    std::shared_ptr<detail::Unit> unit;
    const ParamGroup* group;
    std::size_t index;
  };
  std::unordered_map<const c10::TensorImpl*, Place> places;

  /// Null: no unit owns it, and it is whole.
  const Place* find(const at::Tensor& parameter) const {
    const auto found = places.find(parameter.unsafeGetTensorImpl());
    if (found == places.end()) return nullptr;
    const Param& param = found->second.group->params()[found->second.index];
    if (param.extension_dim)
      fail(Code::kUnsupported,
           fmt::format("\"{}\" is itself a part, by dim {}, of what its unit's extension cut: its "
                       "whole is not this unit's",
                       param.fqn, *param.extension_dim));
    return &found->second;
  }
};

WholeTensors::WholeTensors(const ModuleRef& model) {
  const auto impl = std::make_shared<Impl>();
  for (const auto& unit : units_of(model, "WholeTensors"))
    for (const auto& group : unit->groups())
      for (std::size_t p = 0; p < group->params().size(); ++p)
        impl->places.emplace(group->params()[p].shard.unsafeGetTensorImpl(),
                             Impl::Place{unit, group.get(), p});
  impl_ = impl;
}

std::vector<std::int64_t> WholeTensors::sizes(const at::Tensor& parameter) const {
  const Impl::Place* place = impl_->find(parameter);
  return place ? place->group->params()[place->index].sizes : parameter.sizes().vec();
}

at::Tensor WholeTensors::gather(const at::Tensor& parameter, const at::Tensor& values) const {
  if (values.sizes() != parameter.sizes())
    fail(Code::kInvalidArgument,
         fmt::format("WholeTensors::gather: values of shape {} for a shard of shape {}",
                     Shape(values.sizes().vec()).to_string(),
                     Shape(parameter.sizes().vec()).to_string()));
  const Impl::Place* place = impl_->find(parameter);
  if (!place) return values.detach();
  return Spread::of(place->unit, *place->group, place->index, Spread::Form::kWhole)
      .gather_whole(values.detach());
}

at::Tensor WholeTensors::part(const at::Tensor& parameter, const at::Tensor& whole) const {
  if (whole.sizes() != at::IntArrayRef(sizes(parameter)))
    fail(Code::kInvalidArgument,
         fmt::format("WholeTensors::part: a tensor of shape {} for a parameter of shape {}",
                     Shape(whole.sizes().vec()).to_string(), Shape(sizes(parameter)).to_string()));
  const Impl::Place* place = impl_->find(parameter);
  if (!place) return whole;
  return place->group->layout().part_of(whole.contiguous(), place->index).to(parameter.device());
}

}  // namespace tessera::fsdp
