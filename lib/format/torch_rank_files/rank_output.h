#pragma once
// A torch.save file per rank and part: sharded tensors as DTensors over the request's mesh, all else
// whole on each rank. What torch-rank-files writes, and formats that are built on it, whose parts are
// items: what stands below each name at the top, in a file of its own.
#include <tessera/format/format_driver.h>

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/format/torch_files/archive_plan.h"

namespace tessera::rank_files {

/// A tensor as the files of its item hold it.
struct ItemTensor {
  std::string item;
  Path path;  // below the item
  TensorSpec spec;
  std::vector<Placement> placements;  // by dim of the mesh; empty: whole on each rank
};

struct ItemForm {
  std::string_view format;   // its id
  std::string_view archive;  // the prefix of a file's records
  /// A path's item, and the path below it. Throws kUnsupported for what can be no item.
  std::function<std::pair<std::string, Path>(const Path&)> split;
  std::function<std::string(const std::string& item, std::int64_t rank)> file_name;
  /// Adds the files that all ranks share. Tensors are in the order of the source.
  std::function<void(const Mesh&, std::span<const ItemTensor>, ArchivePlanBuilder&)> finish;
};

OutputPlan plan_items(const Manifest& source, const TargetRequest& request, const ItemForm& form);

}  // namespace tessera::rank_files
