#pragma once
// Parses the training step out of file and folder names.
#include <cstdint>
#include <optional>
#include <string_view>

namespace tessera {

/// The number behind a word that means steps, in the last component of `path` that has one:
/// "runs/3/step_1000", "checkpoint-1000", "iter_0001000/model", "epoch=3-step=400".
std::optional<std::int64_t> step_of_path(std::string_view path);

/// For a name in a run, where any number may be the step: the above, else the last digits of the
/// first component that has some ("0001000", "ckpt5/model").
std::optional<std::int64_t> step_of_run_name(std::string_view name);

}  // namespace tessera
