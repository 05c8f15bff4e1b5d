#pragma once
// fully_shard: makes a module a unit. In place, composable, bottom-up: a call owns every parameter below
// the module that no earlier call owns. Parameter names stay the plain model's.
//
// After the call module->parameters() are this rank's shards (1-D pieces with the flat layout, rows
// with the per-parameter layout; empty where this rank holds none): build the optimizer from them.
// Outside its unit's forward and backward a full parameter has no memory; touching it raises an error
// that names it. Errors (tessera::Error, kInvalidArgument or kUnsupported) name the FQN and the rule.
#include <tessera/fsdp/module.h>
#include <tessera/fsdp/options.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tessera::fsdp {

/// `module` must have been declared with FSDP_MODULE or fsdp::Holder: else refused, naming class.
void fully_shard(const std::shared_ptr<torch::nn::Module>& module, const Options& options = {});

/// A holder (Block, Holder<...>), or anything with ptr() that gives a module (AnyModule).
template <class H>
  requires requires(const H& holder) { std::static_pointer_cast<torch::nn::Module>(holder.ptr()); }
void fully_shard(const H& holder, const Options& options = {}) {
  fully_shard(std::static_pointer_cast<torch::nn::Module>(holder.ptr()), options);
}

/// The module inside a holder, or the module itself.
class ModuleRef {
 public:
  ModuleRef(std::shared_ptr<torch::nn::Module> module) : module_(std::move(module)) {}
  template <class H>
    requires requires(const H& holder) {
      std::static_pointer_cast<torch::nn::Module>(holder.ptr());
    }
  ModuleRef(const H& holder) : module_(std::static_pointer_cast<torch::nn::Module>(holder.ptr())) {}
  torch::nn::Module& operator*() const { return *module_; }
  torch::nn::Module* operator->() const { return module_.get(); }
  const std::shared_ptr<torch::nn::Module>& ptr() const { return module_; }

 private:
  std::shared_ptr<torch::nn::Module> module_;
};

/// Several modules as one unit, gathered with the first of them that runs, freed after the last, reduced
/// when all of their backwards are over: fully_shard({net->norm, net->head}, options). Parameters tied
/// among them are one. Below a unit of one module; none of them below another. They live as long as each
/// other. In a forward where some of them do not run the unit is freed at the end of the outermost one.
void fully_shard(const std::vector<ModuleRef>& modules, const Options& options = {});

/// Which submodules become units of their own.
class WrapPolicy {
 public:
  struct Candidate {
    const torch::nn::Module* module = nullptr;
    std::string fqn;
    std::string class_name;            // of the user's Impl
    std::int64_t unwrapped_numel = 0;  // parameters below it that no unit owns yet
    bool can_be_unit = true;           // declared with FSDP_MODULE or fsdp::Holder
  };
  /// nullopt: not a unit; else its options (given: the caller's).
  using Decide = std::function<std::optional<Options>(const Candidate&, const Options&)>;

  explicit WrapPolicy(Decide decide) : decide_(std::move(decide)) {}
  /// Every module that can be a unit.
  static WrapPolicy always();
  /// By class, derived ones included; by Impl or by holder: WrapPolicy::types<BlockImpl, torch::nn::Linear>().
  template <class... Impl>
  static WrapPolicy types() {
    return predicate([](const Candidate& c) { return (is_a<Impl>(*c.module) || ...); });
  }
  /// FQN globs: "*" within a component, "**" across, "?" one character: {"layers.*", "**.attention"}.
  static WrapPolicy names(std::vector<std::string> globs);
  static WrapPolicy predicate(std::function<bool(const Candidate&)> yes);
  /// At least this many parameter elements not yet in a unit. Modules that cannot be units are passed
  /// over: their parameters belong to the next unit above.
  static WrapPolicy size(std::int64_t min_numel = 100'000'000);
  static WrapPolicy instances(std::vector<std::shared_ptr<torch::nn::Module>> modules);
  static WrapPolicy any_of(std::vector<WrapPolicy> policies);

  std::optional<Options> decide(const Candidate& candidate, const Options& options) const {
    return decide_(candidate, options);
  }

 private:
  template <class Impl>
  static bool is_a(const torch::nn::Module& module) {
    if constexpr (requires { typename Impl::ContainedType; })
      return dynamic_cast<const typename Impl::ContainedType*>(&module) != nullptr;
    else
      return dynamic_cast<const Impl*>(&module) != nullptr;
  }
  Decide decide_;
};

/// Post-order: children first, then their parents, then `module` itself, whatever the policy says of it;
/// shared modules once; ignored modules and what is below them skipped. ModuleList, ModuleDict and their
/// like, which are never called, are never units, nor is what torch::nn::MultiheadAttention calls by itself.
/// With mixed precision, classes named by full_precision_classes become units of their own that compute in
/// float. Refused before anything is sharded, naming FQN and class: a module the policy names that cannot be
/// intercepted, a module that is a unit already, a parameter tied across units.
/// Returns the FQNs made units, root ("") last.
std::vector<std::string> auto_wrap(const std::shared_ptr<torch::nn::Module>& module,
                                   const WrapPolicy& policy, const Options& options = {});
template <class H>
  requires requires(const H& holder) { std::static_pointer_cast<torch::nn::Module>(holder.ptr()); }
std::vector<std::string> auto_wrap(const H& holder, const WrapPolicy& policy,
                                   const Options& options = {}) {
  return auto_wrap(std::static_pointer_cast<torch::nn::Module>(holder.ptr()), policy, options);
}

}  // namespace tessera::fsdp
