#include "fsdp_core/bridge/gather_parts.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

namespace tessera::fsdp {

void gather_parts(Communicator& ranks, const at::Tensor& own,
                  const std::vector<std::int64_t>& lengths, const CommTag& tag,
                  const std::function<void(int rank, const at::Tensor& part)>& visit) {
  if (ranks.size() == 1) return visit(0, own);
  const auto count = static_cast<std::int64_t>(lengths.size());
  const std::int64_t longest = std::ranges::max(lengths);
  const std::int64_t total = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  if (total == 0) return;
  if (count * longest > 2 * total) {
    for (int r = 0; r < ranks.size(); ++r) {
      const std::int64_t length = lengths[static_cast<std::size_t>(r)];
      if (length == 0) continue;
      at::Tensor part = r == ranks.rank() ? own.contiguous() : at::empty({length}, own.options());
      ranks.broadcast(part, r, tag);
      visit(r, part);
    }
    return;
  }
  at::Tensor all = at::zeros({count * longest}, own.options());
  const at::Tensor mine = all.narrow(0, ranks.rank() * longest, longest);
  mine.narrow(0, 0, own.numel()).copy_(own);
  ranks.all_gather_into(all, mine, tag);
  for (int r = 0; r < ranks.size(); ++r)
    visit(r, all.narrow(0, r * longest, lengths[static_cast<std::size_t>(r)]));
}

}  // namespace tessera::fsdp
