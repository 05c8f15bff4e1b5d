#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/fsdp/communicator.h>
#include <tessera/fsdp/extension.h>
#include <tessera/layout/layout.h>

#include "fsdp_core/bridge/box_view.h"
#include "fsdp_core/bridge/gather_parts.h"

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
  std::vector<std::int64_t> lengths;
  for (const Box& box : chunks) lengths.push_back(box.shape.numel());
  at::Tensor out = at::empty(at::IntArrayRef(whole.extents().data(), whole.extents().size()),
                             chunk.tensor.options());
  gather_parts(ranks, chunk.tensor.reshape({-1}), lengths, {chunk.name, CommPhase::kSummon},
               [&](int rank, const at::Tensor& part) {
                 const at::Tensor place = view_of(out, chunks[static_cast<std::size_t>(rank)]);
                 place.copy_(part.view(place.sizes()));
               });
  return out;
}

}  // namespace tessera::fsdp
