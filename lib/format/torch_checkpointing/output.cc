#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/format/torch_checkpointing.h>

#include "lib/format/torch_checkpointing/items.h"
#include "lib/format/torch_checkpointing/metadata.h"
#include "lib/format/torch_checkpointing/metadata_writer.h"
#include "lib/format/torch_checkpointing/parts.h"
#include "lib/state/other_keys.h"

namespace tessera::checkpointing {
namespace {

/// A key at the top is an item, or, as flat names of weights are, an item and a key in it:
/// "layers.0.weight" is "0.weight" of the item "layers". The dotted name stays what it was.
std::pair<std::string, Path> split_item(const Path& path) {
  const PathItem& top = path.front();
  const std::string key = top.text();
  const std::size_t dot = key.find('.');
  std::string item = key.substr(0, dot);
  if (top.kind != PathItem::Kind::kKey || !is_item_name(item))
    fail(Code::kUnsupported,
         fmt::format("\"{}\" is no name of an item, which has letters, digits, \"_\" and \"-\"",
                     printable(item)),
         "--rename 'GLOB=model.GLOB' puts names below an item");
  Path rest;
  if (dot != key.npos) rest.push_back(key_item(key.substr(dot + 1)));
  rest.insert(rest.end(), path.begin() + 1, path.end());
  return {std::move(item), std::move(rest)};
}

/// Names of items are text.
void refuse_other_keys(const StateDict& state) {
  const Value other_keys = other_top_keys(state);
  const OtherKeysByText others = other_keys_by_text(other_keys);
  for (const StateEntry& entry : state.entries)
    if (!entry.path.empty() && others.contains(entry.path.front().key))
      fail(Code::kUnsupported,
           fmt::format("a key at the top, {}, is no text, as the name of an item is",
                       printable(entry.path.front().key)),
           "leave what is below it out with --exclude, or go by way of --to torch-dcp, which makes "
           "keys text");
}

MetadataForm form_of(const Manifest& source, const TargetRequest& request) {
  MetadataForm out;
  const auto stored = [&](std::string_view key) {
    const auto found = source.provenance.find(std::string(key));
    return found == source.provenance.end() ? std::string() : found->second;
  };
  const std::int64_t asked = request.own.get(kMetadataVersionFlag);
  out.version_1 = asked == 0 ? stored(kVersion) == "1.0" : asked == 1;
  if (const std::string device = stored(kDeviceType); !device.empty()) out.device_type = device;
  out.named_dims = request.mesh.has_value();
  return out;
}

}  // namespace

OutputPlan plan_output(const Manifest& source, const TargetRequest& request) {
  refuse_other_keys(source.state);
  const MetadataForm form = form_of(source, request);
  rank_files::ItemForm items;
  items.format = "torch-checkpointing";
  items.archive = "archive";
  items.split = split_item;
  items.file_name = [](const std::string& item, std::int64_t rank) {
    return fmt::format("{}_{}.pt", item, rank);
  };
  items.finish = [form](const Mesh& mesh, std::span<const rank_files::ItemTensor> tensors,
                        ArchivePlanBuilder& builder) {
    builder.add_literal(std::string(kMetadataFile), metadata_text(mesh, tensors, form));
  };
  return rank_files::plan_items(source, request, items);
}

}  // namespace tessera::checkpointing
