#pragma once
// `args` of a Megatron checkpoint: an argparse.Namespace (an object with a dict of attributes), or
// a plain dict. What is not there is nullopt, as in checkpoints of other writers.
#include <tessera/state/value.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::megatron_torch {

/// What a checkpoint for other ranks has of its own in args: Megatron compares these with its command
/// line.
inline constexpr std::array<std::string_view, 8> kLayoutArguments = {
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "transformer_pipeline_model_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "num_layers_per_virtual_pipeline_stage",
    "padded_vocab_size"};

class Args {
 public:
  Args() = default;
  explicit Args(Value value) : value_(std::move(value)) {}

  bool known() const;
  /// The dict of attributes; nullptr: there are none.
  const Value* attributes() const;
  /// Megatron's own: its sizes are those of the job that wrote the checkpoint.
  bool is_namespace() const;
  std::optional<std::int64_t> integer(std::string_view name) const;
  std::optional<bool> boolean(std::string_view name) const;
  std::string text(std::string_view name) const;  // "": absent, or no text
  /// The activation of the first MLP matrix is gated: swiglu and its kin. nullopt: they say
  /// nothing about it.
  std::optional<bool> gated() const;

  /// The same arguments with attributes set: those that are there, and `added` ones too.
  Value with(const std::vector<std::pair<std::string, Value>>& set,
             const std::vector<std::pair<std::string, Value>>& added = {}) const;

 private:
  Value value_;
};

/// Those of a state; unknown where it has none.
Args args_of(const StateDict& state);

/// Rows of the vocabulary without the padding that this toolkit added for a tensor-parallel size.
inline constexpr std::string_view kTrueVocabulary = "tessera_vocab_size";

}  // namespace tessera::megatron_torch
