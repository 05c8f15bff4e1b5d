#include "lib/format/deepspeed_zero/fused_optim.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <map>

#include "lib/format/deepspeed_zero/names.h"
#include "lib/format/deepspeed_zero/values.h"
#include "lib/format/torch_files/archive_source.h"

namespace tessera::deepspeed {
namespace {

constexpr std::string_view kFlatMasters = "fp32_groups_flat";

/// Weights that share one buffer, by where they begin.
struct Buffer {
  DType dtype = DType::kFloat16;
  std::vector<FusedMember> members;
};

/// Buffers of the module that hold its weights end to end from their first element to their last.
std::vector<Buffer> weight_buffers(const TorchArchive& archive, const ModelFile& model) {
  std::map<std::uint32_t, Buffer> by_storage;
  for (const NamedTensor& item : model.module) {
    const ArchiveTensor& tensor = archive.tensors.at(item.tensor);
    if (model.buffers.contains(item.name) || !is_floating(tensor.dtype) || !is_dense(tensor))
      continue;
    Buffer& buffer = by_storage[tensor.storage];
    buffer.dtype = tensor.dtype;
    buffer.members.push_back({item.name, tensor.shape, tensor.storage_offset});
  }
  std::vector<Buffer> out;
  for (auto& [storage, buffer] : by_storage) {
    std::ranges::stable_sort(buffer.members, {}, &FusedMember::begin);
    std::vector<FusedMember> kept;
    std::int64_t end = 0;
    bool whole = true;
    for (FusedMember& member : buffer.members) {
      const bool tied = !kept.empty() && member.begin == kept.back().begin &&
                        member.shape == kept.back().shape && member.shape.numel() > 0;
      if (tied) continue;  // its second name
      whole = whole && member.begin == end;
      end = member.begin + member.shape.numel();
      kept.push_back(std::move(member));
    }
    const auto bytes = static_cast<std::uint64_t>(end * element_bytes(buffer.dtype));
    if (!whole || archive.storages.at(storage).size_bytes != bytes) continue;
    buffer.members = std::move(kept);
    out.push_back(std::move(buffer));
  }
  return out;
}

std::int64_t numel_of(const Buffer& buffer) {
  return buffer.members.back().begin + buffer.members.back().shape.numel();
}

Field inner_of(const Value& stored) { return Field(stored).at(kOptimizerStateDict); }

/// The state that torch's optimizer keeps of group `g`: it has one parameter, the flat buffer.
const Value* state_of(const Value& stored, const Field& group, std::size_t g) {
  const auto ids = group.at(kParams).counts();
  if (ids.size() != 1)
    fail(Code::kCorrupt, fmt::format("group {} lists {} parameters, \"{}\" holds one of it", g,
                                     ids.size(), kFlatMasters));
  for (const auto& [id, leaves] : inner_of(stored).at(kState).entries())
    if (id.count() == ids[0]) return &leaves.value();
  return nullptr;
}

}  // namespace

std::optional<FusedLayout> fused_layout(const TorchArchive& archive, const ModelFile& model,
                                        const Value& stored) {
  const auto masters = Field(stored).find(kFlatMasters);
  if (!masters || stored.find(kOptimizerStateDict) == nullptr) return std::nullopt;
  const auto flat = tensor_list_of(*masters);
  const std::vector<Field> groups = inner_of(stored).at(kParamGroups).items();
  if (groups.size() != flat.size())
    fail(Code::kCorrupt, fmt::format("the optimizer has {} groups, \"{}\" has {}", groups.size(),
                                     kFlatMasters, flat.size()));
  const std::vector<Buffer> buffers = weight_buffers(archive, model);
  FusedLayout layout;
  for (std::size_t g = 0; g < flat.size(); ++g) {
    const ArchiveTensor& master = archive.tensors.at(flat[g]);
    state_of(stored, groups[g], g);
    const auto fits = [&](const Buffer& buffer) {
      return master.shape == Shape{numel_of(buffer)} && is_dense(master);
    };
    const auto found = std::ranges::find_if(buffers, fits);
    if (found == buffers.end() || std::find_if(found + 1, buffers.end(), fits) != buffers.end()) {
      layout.groups.clear();
      layout.missing = fmt::format(
          "{} of the module's weights lie end to end in one buffer of {} elements, as group {}'s "
          "masters do",
          found == buffers.end() ? "none" : "several sets", master.shape.numel(), g);
      return layout;
    }
    layout.groups.push_back({flat[g], found->members});
  }
  return layout;
}

void add_fused_optimizer(ArchiveManifestBuilder& builder, StateAssembler& state,
                         const ModelFile& model, const Value& stored, const FusedLayout& layout) {
  const TorchArchive& archive = builder.archive(model.file);
  const std::vector<Field> groups = inner_of(stored).at(kParamGroups).items();
  const auto add_flat = [&](const FusedMember& member, std::string_view leaf,
                            std::uint32_t tensor) {
    const ArchivePiece piece{Chunk::whole_of(Box::whole(member.shape)), model.file, tensor,
                             member.begin};
    state.add_leaf(member.name, leaf, {archive.tensors.at(tensor).dtype, member.shape},
                   {&piece, 1});
  };
  for (std::size_t g = 0; g < layout.groups.size(); ++g) {
    const FusedGroup& group = layout.groups[g];
    const Shape& flat = archive.tensors.at(group.master).shape;
    const Value* leaves = state_of(stored, groups[g], g);
    std::vector<std::string> names;
    for (const FusedMember& member : group.members) {
      names.push_back(member.name);
      if (leaves != nullptr)
        for (const auto& [key, field] : Field(*leaves, {}, std::string(kState)).entries()) {
          const std::string& leaf = key.text();
          const Value& value = field.value();
          if (value.is_tensor() && archive.tensors.at(value.tensor_index()).shape == flat)
            add_flat(member, leaf, value.tensor_index());
          else
            builder.add_state(model.file, value, state.state_path(member.name, leaf));
        }
      add_flat(member, kFp32Leaf, group.master);
    }
    state.add_group(model.file, g, groups[g].value(), names, Value());
  }
  ValueDict fields;
  for (const auto& entry : Field(stored, {}, std::string(kOptimizer)).dict())
    if (entry.first != text(kOptimizerStateDict) && entry.first != text(kFlatMasters))
      fields.push_back(entry);
  state.add_globals(model.file, Value::dict(std::move(fields)));
}

}  // namespace tessera::deepspeed
