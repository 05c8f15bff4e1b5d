#pragma once
// The units below a module, children before parents, with their root.
#include <tessera/fsdp/training.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp_core/runtime/root.h"

namespace tessera::fsdp {

using NamedUnits = std::vector<std::pair<std::string, std::shared_ptr<detail::Unit>>>;

/// Every unit of the module tree by its FQN from `module`, children before parents, each once.
NamedUnits named_units(torch::nn::Module& module);
/// The FQNs of a unit's modules from `root`; `first`: of the first of them.
std::vector<std::string> fqns_of(torch::nn::Module& root,
                                 const std::vector<torch::nn::Module*>& modules,
                                 const std::string& first);
/// Throws kInvalidArgument, naming `call`, where there is none.
std::vector<std::shared_ptr<detail::Unit>> units_of(const ModuleRef& module, const char* call,
                                                    bool recurse = true);
/// As above; all idle: throws where one is inside forward, backward or summon.
std::vector<std::shared_ptr<detail::Unit>> idle_units_of(const ModuleRef& module, const char* call,
                                                         bool recurse = true);

}  // namespace tessera::fsdp
