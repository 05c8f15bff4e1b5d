// auto_wrap: a plan of units is made and checked first; then fully_shard runs along it.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/fsdp/fully_shard.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/parameterdict.h>
#include <torch/nn/modules/container/parameterlist.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "fsdp_core/params/registry.h"
#include "fsdp_core/setup/fqn_glob.h"
#include "fsdp_core/setup/ignored.h"

namespace tessera::fsdp {
namespace {

using ModulePtr = std::shared_ptr<torch::nn::Module>;

constexpr const char* kHowToIntercept =
    "declare the class with FSDP_MODULE instead of TORCH_MODULE, hold a stock module as "
    "fsdp::Holder<...Impl>, or a slot "
    "of a Sequential through fsdp::hook_slot";

bool is_never_called(const torch::nn::Module& module) {
  return dynamic_cast<const torch::nn::ModuleListImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::ModuleDictImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::ParameterListImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::ParameterDictImpl*>(&module) != nullptr;
}

/// A module whose children's forward nobody calls: it reads their parameters itself.
bool is_leaf(const torch::nn::Module& module) {
  return dynamic_cast<const torch::nn::MultiheadAttentionImpl*>(&module) != nullptr;
}

std::string label(const std::string& fqn) {
  return fqn.empty() ? "the root module" : fmt::format("module \"{}\"", fqn);
}

/// A place where a parameter is registered.
struct Registration {
  torch::Tensor parameter;
  std::string fqn;
};

struct PlannedUnit {
  ModulePtr module;
  std::string fqn;
  Options options;
};

class Planner {
 public:
  Planner(const ModulePtr& root, const WrapPolicy& policy, const Options& options)
      : policy_(policy), options_(options), ignored_(*root, options) {}

  std::vector<PlannedUnit> plan(const ModulePtr& root) {
    std::vector<Registration> rest = below(root, "", /*inside_leaf=*/false);
    check_can_be_unit(*root, "");
    make_unit(root, "", options_, rest);
    return std::move(units_);
  }

 private:
  /// The registrations in and below `module` that no planned unit owns.
  std::vector<Registration> visit(const ModulePtr& module, const std::string& fqn,
                                  bool inside_leaf) {
    if (ignored_.holds(*module)) return {};
    // A shared module is one unit or none, and what it leaves to units above is theirs each time.
    if (const auto seen = visited_.find(module.get()); seen != visited_.end()) return seen->second;
    std::vector<Registration> rest = below(module, fqn, inside_leaf);
    if (!inside_leaf && !is_never_called(*module))
      if (const std::optional<Options> options = decide(*module, fqn, rest)) {
        check_can_be_unit(*module, fqn);
        make_unit(module, fqn, *options, rest);
        rest.clear();
      }
    visited_.emplace(module.get(), rest);
    return rest;
  }

  std::vector<Registration> below(const ModulePtr& module, const std::string& fqn,
                                  bool inside_leaf) {
    const auto* point = dynamic_cast<const HookPoint*>(module.get());
    if (point != nullptr && point->unit)
      fail(Code::kInvalidArgument,
           fmt::format("auto_wrap: {} of class {} is a unit already", label(fqn), module->name()),
           "let the policy give its options instead, or call fully_shard for the other units too; "
           "after an auto_wrap that failed half-way, call fully_shard for what is left, or build "
           "the model anew");
    const std::string prefix = fqn.empty() ? "" : fqn + ".";
    std::vector<Registration> rest;
    for (const auto& child : module->named_children())
      for (Registration& each :
           visit(child.value(), prefix + child.key(), inside_leaf || is_leaf(*module)))
        rest.push_back(std::move(each));
    for (const auto& item : Registry::parameters(*module))
      if (item.value().defined() && !ignored_.holds(item.value()))
        rest.push_back({item.value(), prefix + item.key()});
    return rest;
  }

  std::optional<Options> decide(const torch::nn::Module& module, const std::string& fqn,
                                const std::vector<Registration>& rest) const {
    WrapPolicy::Candidate candidate;
    candidate.module = &module;
    candidate.fqn = fqn;
    candidate.class_name = module.name();
    candidate.can_be_unit = dynamic_cast<const HookPoint*>(&module) != nullptr;
    std::unordered_set<const c10::TensorImpl*> counted;
    for (const Registration& each : rest)
      if (counted.insert(each.parameter.unsafeGetTensorImpl()).second)
        candidate.unwrapped_numel += each.parameter.numel();
    std::optional<Options> options = policy_.decide(candidate, options_);
    return keeps_full_precision(options.value_or(options_), candidate.class_name)
               ? full_precision(options.value_or(options_))
               : options;
  }

  static bool keeps_full_precision(const Options& options, const std::string& class_name) {
    const MixedPrecision& precision = options.mixed_precision;
    return (precision.param_dtype || precision.buffer_dtype) &&
           std::ranges::any_of(precision.full_precision_classes, [&](const std::string& glob) {
             return glob_match(glob, class_name);
           });
  }

  /// Computes in float: inputs are cast up, outputs to what the unit around it computes in.
  static Options full_precision(Options options) {
    MixedPrecision precision;
    precision.param_dtype = at::kFloat;
    precision.cast_forward_inputs = true;
    precision.output_dtype = options.mixed_precision.param_dtype;
    precision.full_precision_classes = options.mixed_precision.full_precision_classes;
    options.mixed_precision = precision;
    return options;
  }

  static void check_can_be_unit(const torch::nn::Module& module, const std::string& fqn) {
    if (dynamic_cast<const HookPoint*>(&module) == nullptr)
      fail(Code::kInvalidArgument,
           fmt::format(
               "auto_wrap: {} of class {} cannot be a unit: its forward cannot be intercepted",
               label(fqn), module.name()),
           kHowToIntercept);
  }

  void make_unit(const ModulePtr& module, const std::string& fqn, Options options,
                 const std::vector<Registration>& parameters) {
    for (const Registration& each : parameters) {
      const auto [owner, first] =
          owners_.try_emplace(each.parameter.unsafeGetTensorImpl(), Owner{units_.size(), each.fqn});
      if (!first && owner->second.unit != units_.size())
        fail(Code::kInvalidArgument,
             fmt::format("auto_wrap: parameter \"{}\" in {} is tied to \"{}\" in {}", each.fqn,
                         label(fqn), owner->second.fqn, label(units_[owner->second.unit].fqn)),
             "tied parameters must lie in one unit: leave one of the two modules to the unit "
             "around both");
    }
    if (options.name.empty()) options.name = fqn;
    options = with_ignored(std::move(options), options_);  // a policy may have made its own
    units_.push_back({module, fqn, std::move(options)});
  }

  struct Owner {
    std::size_t unit;
    std::string fqn;
  };
  const WrapPolicy& policy_;
  const Options& options_;
  const Ignored ignored_;
  std::unordered_map<const torch::nn::Module*, std::vector<Registration>> visited_;
  std::unordered_map<const c10::TensorImpl*, Owner> owners_;
  std::vector<PlannedUnit> units_;
};

}  // namespace

WrapPolicy WrapPolicy::always() {
  return predicate([](const Candidate& candidate) { return candidate.can_be_unit; });
}

WrapPolicy WrapPolicy::names(std::vector<std::string> globs) {
  return predicate([globs = std::move(globs)](const Candidate& candidate) {
    return std::ranges::any_of(
        globs, [&](const std::string& glob) { return fqn_matches(glob, candidate.fqn); });
  });
}

WrapPolicy WrapPolicy::predicate(std::function<bool(const Candidate&)> yes) {
  if (!yes) fail(Code::kInvalidArgument, "WrapPolicy::predicate: an empty function");
  return WrapPolicy([yes = std::move(yes)](const Candidate& candidate, const Options& options) {
    return yes(candidate) ? std::optional(options) : std::nullopt;
  });
}

WrapPolicy WrapPolicy::size(std::int64_t min_numel) {
  return predicate([min_numel](const Candidate& candidate) {
    return candidate.can_be_unit && candidate.unwrapped_numel >= min_numel;
  });
}

WrapPolicy WrapPolicy::instances(std::vector<std::shared_ptr<torch::nn::Module>> modules) {
  return predicate([modules = std::move(modules)](const Candidate& candidate) {
    return std::ranges::any_of(
        modules, [&](const ModulePtr& module) { return module.get() == candidate.module; });
  });
}

WrapPolicy WrapPolicy::any_of(std::vector<WrapPolicy> policies) {
  return WrapPolicy(
      [policies = std::move(policies)](const Candidate& candidate, const Options& options) {
        for (const WrapPolicy& policy : policies)
          if (std::optional<Options> decided = policy.decide(candidate, options)) return decided;
        return std::optional<Options>();
      });
}

std::vector<std::string> auto_wrap(const std::shared_ptr<torch::nn::Module>& module,
                                   const WrapPolicy& policy, const Options& options) {
  const std::vector<PlannedUnit> units = Planner(module, policy, options).plan(module);
  std::vector<std::string> fqns;
  for (const PlannedUnit& unit : units) {
    fully_shard(unit.module, unit.options);
    fqns.push_back(unit.fqn);
  }
  return fqns;
}

}  // namespace tessera::fsdp
