#include "lib/live/same_call.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include "lib/state/live/wire.h"

namespace tessera {

void check_same_call(std::span<const std::vector<std::byte>> openings) {
  const std::string first = WireReader(openings[0]).text();
  for (std::size_t r = 1; r < openings.size(); ++r)
    if (const std::string theirs = WireReader(openings[r]).text(); theirs != first)
      fail(Code::kInvalidArgument,
           fmt::format("ranks make different calls: rank 0 {}, rank {} {}", printable(first), r,
                       printable(theirs)),
           "all ranks of a group must make the same calls in the same order");
}

}  // namespace tessera
