#include "fsdp_core/state_dict/state_type.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

#include "fsdp_core/state_dict/model_tensors.h"

namespace tessera::fsdp {

std::string_view state_dict_type_name(StateDictType type) {
  switch (type) {
    case StateDictType::kSharded:
      return "SHARDED";
    case StateDictType::kFull:
      return "FULL";
    case StateDictType::kLocal:
      return "LOCAL";
  }
  return "?";
}

void check_state_type(const ModuleRef& model, bool with_optimizer,
                      const StateDictOptions& options) {
  if (with_optimizer && options.model_root == options.optim_root)
    fail(Code::kInvalidArgument,
         fmt::format("state_dict: model_root and optim_root are both \"{}\"", options.model_root));
  if (with_optimizer && options.optim_root.empty())
    fail(Code::kInvalidArgument, "state_dict: optim_root is empty");
  if (options.rank0_only && options.type != StateDictType::kFull)
    fail(Code::kInvalidArgument,
         fmt::format("state_dict: rank0_only with {}", state_dict_type_name(options.type)),
         "it goes with StateDictType::kFull");
  if (options.even_chunks && options.type != StateDictType::kSharded)
    fail(Code::kInvalidArgument,
         fmt::format("state_dict: even_chunks with {}", state_dict_type_name(options.type)),
         "it goes with StateDictType::kSharded");
  if (options.type != StateDictType::kLocal) return;
  for (const auto& unit : model_tensors(model).units) {
    if (unit->options().extension)
      fail(Code::kUnsupported,
           fmt::format("state_dict: LOCAL of {}, whose parameters are parts of larger tensors, or "
                       "stored in another form, by its extension",
                       unit->label()),
           "use StateDictType::kSharded");
    for (const UnitGroups* comms : unit->all_comms())
      if (comms->mesh)
        fail(Code::kInvalidArgument,
             fmt::format("state_dict: LOCAL with a mesh ({}): a flat parameter has no form on it",
                         unit->label()),
             "use StateDictType::kSharded");
    if (unit->options().layout != MemoryLayout::kFlat)
      fail(Code::kUnsupported,
           fmt::format("state_dict: LOCAL of {}, which has no flat parameter", unit->label()),
           "use StateDictType::kSharded");
  }
}

}  // namespace tessera::fsdp
