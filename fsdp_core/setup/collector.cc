#include "fsdp_core/setup/collector.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/fsdp/extension.h>
#include <tessera/fsdp/hooked_module.h>
#include <torch/csrc/autograd/variable.h>

#include <exception>
#include <mutex>

#include "fsdp_core/params/ownership.h"
#include "fsdp_core/params/registry.h"

namespace tessera::fsdp {
namespace {

std::string joined(const std::string& prefix, const std::string& key) {
  return prefix.empty() ? key : prefix + "." + key;
}

/// A forward before may live in its graph, and expects gradients of the shape it saw; set_data
/// looks at the type alone.
void forget_accumulator(const at::Tensor& tensor) {
  torch::autograd::AutogradMeta* meta = torch::autograd::impl::get_autograd_meta(tensor);
  if (meta == nullptr) return;
  const std::lock_guard lock(meta->mutex_);
  meta->grad_accumulator_.reset();
}

void check_blank(const Blank& blank) {
  if (const std::int64_t missing = unwritten(blank); missing > 0)
    fail(Code::kInvalidArgument,
         fmt::format("options.param_init_fn left {} of the {} elements of \"{}\" unwritten",
                     missing, blank.tensor.numel(), blank.name),
         "what a module built on the meta device holds has no values before it: write all of "
         "it, buffers too");
}

}  // namespace

Collector::~Collector() {
  // The fastest way back from a call that failed; memory is all that a failure here would cost.
  try {
    for (const Flattened& flattened : flattened_) flattened.parameter.set_data(flattened.before);
    for (const Blank& blank : blanks_) give_back(blank);
  } catch (const std::exception&) {
  }
}

void Collector::collect() {
  for (walked_ = 0; walked_ < modules_.size(); ++walked_)
    walk(*modules_[walked_], "", Ignored(*modules_[walked_], options_));
}

void Collector::prepare() {
  for (Param& param : params) prepare(param);
}

void Collector::walk(torch::nn::Module& module, const std::string& fqn, const Ignored& ignored) {
  if (ignored.holds(module) || !seen_.insert(&module).second) return;
  const auto* point = dynamic_cast<const HookPoint*>(&module);
  if (point && point->unit) return;
  auto& registry = Registry::parameters(module);
  initialise(module, fqn, ignored);
  for (std::size_t i = 0; i < registry.size(); ++i)
    if (registry[i].value().defined() && !ignored.holds(registry[i].value()))
      take(module, i, joined(fqn, registry[i].key()), registry[i].value());
  for (const auto& buffer : module.named_buffers(/*recurse=*/false))
    if (buffer.value().defined() && !ignored.holds(buffer.value()) &&
        buffers_seen_.insert(buffer.value().unsafeGetTensorImpl()).second)
      buffers.push_back(buffer.value());
  for (const auto& child : module.named_children())
    walk(*child.value(), joined(fqn, child.key()), ignored);
}

/// A module built on the meta device gets memory for what it holds itself, and values from
/// param_init_fn.
void Collector::initialise(torch::nn::Module& module, const std::string& fqn,
                           const Ignored& ignored) {
  const std::size_t first = blanks_.size();
  const auto give = [&](const std::string& key, const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_meta() || ignored.holds(tensor)) return;
    if (!options_.param_init_fn)
      fail(Code::kInvalidArgument, fmt::format("\"{}\" is on the meta device", joined(fqn, key)),
           "set options.param_init_fn, or give it values first");
    blanks_.push_back(materialise(tensor, options_.device.value_or(at::kCPU), joined(fqn, key)));
  };
  for (const auto& param : module.named_parameters(/*recurse=*/false))
    give(param.key(), param.value());
  for (const auto& buffer : module.named_buffers(/*recurse=*/false))
    give(buffer.key(), buffer.value());
  if (blanks_.size() == first) return;
  at::NoGradGuard no_grad;
  options_.param_init_fn(module);
  if (overwritten_) return;
  for (std::size_t i = first; i < blanks_.size(); ++i) check_blank(blanks_[i]);
}

void Collector::check_written(const at::Tensor& tensor) const {
  for (const Blank& blank : blanks_)
    if (blank.tensor.is_same(tensor)) check_blank(blank);
}

/// The parameter becomes what the unit's extension makes of it.
void Collector::flatten(const torch::nn::Module& module, const std::string& name,
                        const std::string& fqn, const at::Tensor& tensor) {
  if (!options_.extension) return;
  const at::NoGradGuard no_grad;
  const at::Tensor flat = options_.extension->pre_flatten(module, name, tensor);
  if (flat.is_same(tensor)) return;
  const auto refuse = [&](const std::string& found) {
    fail(Code::kInvalidArgument,
         fmt::format("pre_flatten of \"{}\": expected a dense tensor on {}, found {}", fqn,
                     tensor.device().str(), found));
  };
  if (!flat.defined()) refuse("none");
  if (flat.layout() != at::kStrided) refuse(c10::str(flat.layout()));
  if (flat.device() != tensor.device()) refuse(flat.device().str());
  if (tensor.grad().defined() && flat.sizes() != tensor.sizes())
    fail(Code::kInvalidArgument,
         fmt::format("pre_flatten of \"{}\" makes shape {} of {}, and a gradient of that exists",
                     fqn, Shape(flat.sizes().vec()).to_string(),
                     Shape(tensor.sizes().vec()).to_string()),
         "drop the gradients first: zero_grad()");
  if (tensor.requires_grad() && !torch::autograd::isDifferentiableType(flat.scalar_type()))
    refuse(fmt::format("{}, which takes no gradient", c10::toString(flat.scalar_type())));
  flattened_.push_back({tensor, tensor.detach()});
  flattened_.back().parameter.set_data(flat.detach());
  if (flat.sizes() != flattened_.back().before.sizes()) forget_accumulator(tensor);
}

void Collector::take(torch::nn::Module& module, std::size_t index, const std::string& fqn,
                     const at::Tensor& tensor) {
  if (const auto owner = owner_of(tensor))
    fail(Code::kUnsupported,
         fmt::format("parameter \"{}\" is tied to \"{}\", which another unit owns", fqn, *owner),
         "tied parameters must lie in one unit: call fully_shard on a module that holds both, "
         "first");
  const auto [known, added] = by_tensor_.try_emplace(tensor.unsafeGetTensorImpl(), params.size());
  if (!added) {
    params[known->second].slots.push_back({&module, index, fqn, walked_});
    return;
  }
  if (tensor.is_inference())
    fail(Code::kUnsupported, fmt::format("parameter \"{}\" was made under c10::InferenceMode", fqn),
         "build the model outside of it: forwards may run inside");
  Param param;
  param.fqn = fqn;
  param.slots.push_back({&module, index, fqn, walked_});
  param.compute = tensor;
  params.push_back(std::move(param));
}

/// What the unit's extension says of it.
void Collector::prepare(Param& param) {
  torch::nn::Module& module = *param.slots.front().module;
  const std::string& name = Registry::parameters(module)[param.slots.front().index].key();
  flatten(module, name, param.fqn, param.compute);
  if (!param.compute.is_contiguous())
    fail(Code::kUnsupported, fmt::format("parameter \"{}\" is not contiguous", param.fqn),
         "make it contiguous first");
  if (!options_.extension) return;
  param.extension_dim = options_.extension->sharded_dim(module, name, param.compute);
  if (!param.extension_dim) return;
  const int dim = *param.extension_dim;
  if (!options_.extension->mesh())
    fail(Code::kInvalidArgument,
         fmt::format("the extension says that parameter \"{}\" is a part by dim {}, and has no "
                     "mesh()",
                     param.fqn, dim));
  if (dim < 0 || dim >= param.compute.dim())
    fail(Code::kInvalidArgument,
         fmt::format("sharded_dim of \"{}\": expected a dim of {}, found {}", param.fqn,
                     Shape(param.compute.sizes().vec()).to_string(), dim));
}

}  // namespace tessera::fsdp
