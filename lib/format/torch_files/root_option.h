#pragma once
// For readers whose files each hold one value of a state: it may be an object, as a DTensor is.
#include <tessera/format/format_options.h>

namespace tessera {

inline constexpr OptionOf<bool> kAnyRoot{
    {FormatOption::Kind::kHanded, "roots of any kind", "", ""}};

}  // namespace tessera
