#pragma once
// The shape of a parameter, by the state that an optimizer keeps of it: that of its largest tensor,
// for counters and tables of other shapes are smaller; of factored moments (Adafactor), rows and
// columns together.
#include <tessera/tensor/shape.h>

#include <optional>
#include <span>
#include <string_view>
#include <utility>

namespace tessera {

/// `leaves`: name and shape of each tensor. nullopt: none of them says anything of a parameter.
std::optional<Shape> parameter_shape(std::span<const std::pair<std::string_view, Shape>> leaves);

}  // namespace tessera
