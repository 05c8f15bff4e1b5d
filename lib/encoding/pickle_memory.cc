#include "lib/encoding/pickle_memory.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>

#include "lib/encoding/pickle_vm.h"

namespace tessera {

std::uint64_t stream_bytes(const PickleGraph& graph) { return PickleVm::stream_bytes(graph); }

std::uint64_t pickle_memory_bytes(std::uint64_t stream_bytes, std::uint64_t granted) {
  constexpr std::uint64_t kFree = std::uint64_t{16} << 20, kPerByte = 40;
  const std::uint64_t share = kFree + kPerByte * std::min(stream_bytes, kMostPickleMemoryBytes);
  return std::max(std::min(share, kMostPickleMemoryBytes), granted);
}

void refuse_pickle_memory(std::uint64_t stream_bytes, std::uint64_t granted) {
  fail(Code::kResourceExhausted,
       fmt::format("pickle: the values of its {} would take more than {} of memory",
                   format_bytes(stream_bytes),
                   format_bytes(pickle_memory_bytes(stream_bytes, granted))),
       "very many very small objects, as no checkpoint of tensors has; --mem-limit raises the "
       "bound");
}

}  // namespace tessera
