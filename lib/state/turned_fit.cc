// Which weight parts of GPTQ and AWQ make, by their shapes.
#include <fmt/format.h>

#include "lib/state/turned_codes.h"

namespace tessera {
namespace {

std::int64_t count_of(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// 0 where they cannot be seen.
std::int64_t bits_of(const TurnedParts& parts, std::int64_t outputs, bool along_outputs) {
  const bool has_zeros = parts.zeros != nullptr && parts.zeros->shape.rank() == 2;
  const std::int64_t words = along_outputs ? parts.codes.shape[1]
                             : has_zeros   ? parts.zeros->shape[1]
                                           : 0;
  return 32 * words % outputs == 0 ? 32 * words / outputs : 0;
}

/// "" where all fits.
std::string why_not(const TurnedParts& parts, const TurnedStored& stored, TurnedWeight& w) {
  const Shape& codes = parts.codes.shape;
  const Shape& scales = parts.scales.shape;
  if (codes.rank() != 2 || scales.rank() != 2 || !is_floating(parts.scales.dtype))
    return "its codes or scales are no matrices";
  w.outputs = scales[1];
  w.groups = scales[0];
  w.scale_dtype = parts.scales.dtype;
  w.has_zeros = parts.zeros != nullptr;
  const bool along_outputs = codes[1] < w.outputs;
  w.packing =
      along_outputs ? TurnedWeight::Packing::kAlongOutputs : TurnedWeight::Packing::kAlongInputs;
  if (w.outputs <= 0 || w.groups <= 0 || codes[1] > w.outputs)
    return "its scales do not fit its codes";
  w.bits = static_cast<int>(stored.bits.value_or(bits_of(parts, w.outputs, along_outputs)));
  if (w.bits != 4 && (along_outputs || (w.bits != 2 && w.bits != 8)))
    return fmt::format("codes of {} bits are not read", w.bits);
  const std::int64_t per = 32 / w.bits;
  w.inputs = along_outputs ? codes[0] : codes[0] * per;
  if (w.inputs <= 0 || w.outputs % per != 0 || (along_outputs && codes[1] * per != w.outputs))
    return "its codes are not as many as its scales say";
  if (w.has_zeros && (parts.zeros->shape != Shape({w.groups, w.outputs / per}) ||
                      parts.zeros->dtype != DType::kInt32))
    return "its zero points do not fit its scales";
  w.zero_bias = along_outputs || stored.zeros_as_they_are ? 0 : 1;
  w.grouped_inputs = parts.groups != nullptr;
  const std::int64_t group = stored.group_size.value_or(count_of(w.inputs, w.groups));
  w.group_size = group > 0 ? group : w.inputs;
  if (w.grouped_inputs &&
      (parts.groups->dtype != DType::kInt32 || parts.groups->shape != Shape({w.inputs})))
    return "the groups of its inputs are not as many as those";
  // 2 groups of 144 inputs may be of 72, or of 128 and a smaller one.
  const bool evident = w.groups == 1 || (w.inputs % w.groups == 0 && (group & (group - 1)) == 0);
  if (!w.grouped_inputs && !stored.group_size && !evident)
    return "how many inputs a group has is not known: no config.json has its group_size";
  if (!w.grouped_inputs && count_of(w.inputs, w.group_size) != w.groups)
    return "its groups do not fit its scales";
  return "";
}

}  // namespace

TurnedFit fit_turned(const TurnedParts& parts, const TurnedStored& stored) {
  TurnedFit fit;
  fit.refused = why_not(parts, stored, fit.weight);
  return fit;
}

}  // namespace tessera
