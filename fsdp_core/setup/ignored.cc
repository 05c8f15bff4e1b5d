#include "fsdp_core/setup/ignored.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/fsdp/hooked_module.h>

#include <algorithm>

#include "fsdp_core/params/ownership.h"
#include "fsdp_core/runtime/unit.h"

namespace tessera::fsdp {
namespace {

const detail::Unit* unit_of(const torch::nn::Module& module) {
  const auto* point = dynamic_cast<const HookPoint*>(&module);
  return point ? point->unit.get() : nullptr;
}

void check_free(const at::Tensor& tensor, const std::string& what) {
  if (const auto owner = owner_of(tensor))
    fail(Code::kInvalidArgument,
         fmt::format("{} is to be ignored, but a unit owns it already, as \"{}\"", what, *owner),
         "name it in the options of that unit too, before it is sharded");
}

}  // namespace

Ignored::Ignored(const torch::nn::Module& module, const Options& options) {
  add(options, Owned::kRefused);
  add_of_units(module);
}

void Ignored::add(const Options& options, Owned owned) {
  for (const std::shared_ptr<torch::nn::Module>& module : options.ignored_modules) {
    if (!module) fail(Code::kInvalidArgument, "options.ignored_modules has an empty module");
    add_below(*module, "", owned);
  }
  for (const at::Tensor& tensor : options.ignored_parameters) {
    if (!tensor.defined())
      fail(Code::kInvalidArgument, "options.ignored_parameters has an undefined tensor");
    if (owned == Owned::kRefused) check_free(tensor, "a parameter of options.ignored_parameters");
    tensors_.insert(tensor.unsafeGetTensorImpl());
  }
}

void Ignored::add_below(const torch::nn::Module& module, const std::string& fqn, Owned owned) {
  if (unit_of(module) || !modules_.insert(&module).second) return;
  const std::string prefix = fqn.empty() ? "" : fqn + ".";
  for (const auto& param : module.named_parameters(/*recurse=*/false)) {
    if (owned == Owned::kRefused)
      check_free(param.value(), fmt::format("parameter \"{}\" of a {} in options.ignored_modules",
                                            prefix + param.key(), module.name()));
    tensors_.insert(param.value().unsafeGetTensorImpl());
  }
  for (const auto& buffer : module.named_buffers(/*recurse=*/false))
    tensors_.insert(buffer.value().unsafeGetTensorImpl());
  for (const auto& child : module.named_children())
    add_below(*child.value(), prefix + child.key(), owned);
}

void Ignored::add_of_units(const torch::nn::Module& module) {
  if (!seen_.insert(&module).second) return;
  if (const detail::Unit* unit = unit_of(module)) add(unit->options(), Owned::kPassedOver);
  for (const auto& child : module.named_children()) add_of_units(*child.value());
}

Options with_ignored(Options options, const Options& around) {
  auto& modules = options.ignored_modules;
  for (const auto& module : around.ignored_modules)
    if (std::ranges::find(modules, module) == modules.end()) modules.push_back(module);
  auto& parameters = options.ignored_parameters;
  for (const at::Tensor& parameter : around.ignored_parameters)
    if (std::ranges::none_of(parameters,
                             [&](const at::Tensor& known) { return known.is_same(parameter); }))
      parameters.push_back(parameter);
  return options;
}

}  // namespace tessera::fsdp
