#include <fmt/format.h>
#include <tessera/base/error.h>

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lib/format/torch_files/archive_plan.h"
#include "lib/format/torch_save/parts.h"
#include "lib/format/value_policy.h"
#include "lib/state/edit/tensor_remapper.h"

namespace tessera::torch_save {
namespace {

/// What makes two tensors one: the same bytes of the same file, seen the same way.
using Identity = std::tuple<std::uint32_t, std::uint64_t, std::uint8_t, DType,
                            std::vector<std::int64_t>, std::vector<std::int64_t>>;

std::optional<Identity> identity_of(const Manifest& source, const StoredTensor& tensor) {
  if (tensor.chunk_count != 1 || tensor.spec.shape.numel() == 0) return std::nullopt;
  const Source& stored = source.source(tensor, 0);
  if (stored.kind != Source::Kind::kExtent || !source.chunk(tensor, 0).is_whole_box())
    return std::nullopt;
  const auto extents = tensor.spec.shape.extents();
  return Identity{stored.file,
                  stored.offset,
                  stored.flags,
                  tensor.spec.dtype,
                  {extents.begin(), extents.end()},
                  stored.side > 0 ? source.strides[stored.side - 1] : std::vector<std::int64_t>{}};
}

class PlanBuilder {
 public:
  PlanBuilder(const Manifest& source, const TargetRequest& request)
      : source_(source),
        request_(request),
        builder_(source),
        policy_(request, {.opaque = true, .bytes_io = false}, "torch-save", builder_.notes(),
                builder_.left_out()) {}

  OutputPlan build() {
    const std::int64_t world_size =
        request_.mesh ? request_.mesh->world_size() : request_.world_size.value_or(1);
    if (world_size > 1)
      fail(Code::kUnsupported,
           fmt::format("torch-save holds one rank; {} were asked for", world_size),
           "use --to torch-dcp");
    ArchiveFile file;
    file.root = unflatten(kept_state());
    file.path = request_.single_file ? "" : "checkpoint.pt";
    file.prefix =
        request_.single_file && !request_.file_stem.empty() ? request_.file_stem : "checkpoint";
    file.tensors = std::move(tensors_);
    for (const std::uint32_t tensor : storages_)
      file.storages.push_back({{tensor, Chunk::whole_of(Box::whole(shape_of(tensor))), 0}});
    builder_.add(std::move(file));
    return builder_.finish("torch-save");
  }

 private:
  /// The state as it will be pickled: tensor references are numbers in `tensors_`.
  StateDict kept_state() {
    StateDict out;
    std::vector<std::size_t> kept_before;
    for (const StateEntry& entry : source_.state.entries) {
      kept_before.push_back(out.entries.size());
      if (!entry.value.is_tensor() && !policy_.keeps(entry)) continue;
      out.entries.push_back(
          {entry.name, entry.path, in_tensor(entry.name, [&] { return remap_(entry.value); })});
    }
    for (const ContainerNote& note : source_.state.containers) {
      ContainerNote copy = note;
      copy.attributes = policy_.keeps_attributes(note) ? remap_(note.attributes) : Value();
      if (note.entries_before < kept_before.size())
        copy.entries_before = kept_before[note.entries_before];
      out.containers.push_back(std::move(copy));
    }
    return out;
  }

  std::uint32_t take(std::uint32_t index) {
    const StoredTensor& tensor = source_.tensors[index];
    if (const auto known = taken_.find(index); known != taken_.end()) return known->second;
    if (is_sub_byte(tensor.spec.dtype))
      fail(Code::kUnsupported,
           fmt::format("PyTorch has no dtype {}", torch_name(tensor.spec.dtype)));
    ArchiveWriteTensor out;
    out.spec = tensor.spec;
    out.storage = storage_for(index);
    out.is_parameter = tensor.is_parameter;
    out.requires_grad = tensor.requires_grad;
    const auto number = static_cast<std::uint32_t>(tensors_.size());
    taken_.emplace(index, number);
    tensors_.push_back(out);
    if (tensor.quant >= 0)
      tensors_[number].quant = take_quant(source_.quant[static_cast<std::size_t>(tensor.quant)]);
    return number;
  }
  std::uint32_t storage_for(std::uint32_t index) {
    const auto identity = identity_of(source_, source_.tensors[index]);
    const auto next = static_cast<std::uint32_t>(storages_.size());
    if (identity) {
      const auto [found, is_new] = tied_.emplace(*identity, next);
      if (!is_new) return found->second;
    }
    storages_.push_back(index);
    return next;
  }
  const QuantParams* take_quant(const QuantParams& params) {
    quant_.push_back(params);
    QuantParams& copy = quant_.back();
    copy.scales = remap_(params.scales);
    copy.zero_points = remap_(params.zero_points);
    return &copy;
  }

  const Shape& shape_of(std::uint32_t index) const { return source_.tensors[index].spec.shape; }

  const Manifest& source_;
  const TargetRequest& request_;
  ArchivePlanBuilder builder_;
  ValuePolicy policy_;
  std::vector<ArchiveWriteTensor> tensors_;
  std::vector<std::uint32_t> storages_;  // source tensor whose bytes a storage holds
  std::unordered_map<std::uint32_t, std::uint32_t> taken_;
  std::map<Identity, std::uint32_t> tied_;
  std::deque<QuantParams> quant_;
  TensorRemapper remap_{[this](std::uint32_t index) { return take(index); }};
};

}  // namespace

OutputPlan plan_output(const Manifest& source, const TargetRequest& request) {
  return PlanBuilder(source, request).build();
}

}  // namespace tessera::torch_save
