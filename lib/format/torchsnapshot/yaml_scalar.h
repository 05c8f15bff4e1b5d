#pragma once
// One YAML scalar (or empty collection) as PyYAML's dump writes it: plain, 'single' or "double"
// quoted, perhaps folded over lines.
#include <tessera/state/value.h>

#include <string>
#include <string_view>

namespace tessera::snapshot {

struct YamlScalar {
  Value value;
  std::size_t length = 0;  // bytes taken
  std::size_t lines = 0;   // line ends among them
  std::string error;       // why nothing could be read
};

/// A scalar on the first line of `text` with the colon that makes it a key; length 0 if there is
/// none.
YamlScalar read_key(std::string_view text);

/// The scalar at the front of `text`, up to the end of its last line. Its further lines are
/// indented by more than `parent` columns.
YamlScalar read_scalar(std::string_view text, std::size_t parent);

}  // namespace tessera::snapshot
