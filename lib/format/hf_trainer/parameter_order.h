#pragma once
// The order of a model's parameters, by which the integer ids of its optimizer are named: safetensors
// files have their tensors sorted by name, and a model has them as its modules were made.
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::hf_trainer {

/// Where each of `names` stands among the model's parameters. nullopt where no model that is known
/// has modules of such names, or several have, whose orders differ. `model_type`: config.json's, "":
/// not known. Names may be an adapter's (PEFT).
std::optional<std::vector<std::size_t>> order_of_model(std::span<const std::string_view> names,
                                                       std::string_view model_type);

}  // namespace tessera::hf_trainer
