#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/fsdp/communicator.h>
#include <tessera/fsdp/extension.h>
#include <tessera/layout/layout.h>

#include <algorithm>

#include "fsdp_core/bridge/box_view.h"

namespace tessera::fsdp {

std::vector<StoredPart> Extension::post_unflatten(const torch::nn::Module&, const std::string& name,
                                                  const at::Tensor& whole) const {
  return {{name, whole}};
}

at::Tensor Extension::pre_load(const torch::nn::Module&, const std::string& name,
                               const std::vector<StoredPart>& stored) const {
  if (stored.size() != 1 || stored[0].name != name)
    fail(Code::kInvalidArgument,
         fmt::format("the extension stores \"{}\" in another form and does not define pre_load()",
                     name));
  return stored[0].tensor;
}

Box Extension::chunk(const StoredPart& part, int index, int count) const {
  return chunk_box(Shape(part.tensor.sizes().vec()), 0, count, index);
}

Placement Extension::chunk_as_dtensor(const StoredPart&, const Mesh&) const {
  return Placement::shard(0);
}

at::Tensor Extension::gather(const StoredPart& chunk, const Shape& whole,
                             const std::vector<Box>& chunks, Communicator& ranks) const {
  std::int64_t longest = 0;
  for (const Box& box : chunks) longest = std::max(longest, box.shape.numel());
  at::Tensor all = at::zeros({ranks.size() * longest}, chunk.tensor.options());
  const at::Tensor own = all.narrow(0, ranks.rank() * longest, longest);
  own.narrow(0, 0, chunk.tensor.numel()).copy_(chunk.tensor.reshape({-1}));
  if (longest > 0) ranks.all_gather_into(all, own, {chunk.name, CommPhase::kSummon});
  at::Tensor out =
      at::empty(at::IntArrayRef(whole.extents().data(), whole.extents().size()), all.options());
  for (int r = 0; r < ranks.size(); ++r) {
    const Box& box = chunks[static_cast<std::size_t>(r)];
    const at::Tensor place = view_of(out, box);
    place.copy_(all.narrow(0, r * longest, box.shape.numel()).view(place.sizes()));
  }
  return out;
}

}  // namespace tessera::fsdp
