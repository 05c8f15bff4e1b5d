#include "lib/ops/open/index_layout.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/format/registry.h>
#include <tessera/format/safetensors.h>

#include <memory>
#include <optional>

#include "lib/format/safetensors/names.h"
#include "lib/ops/open/path_resolve.h"
#include "lib/storage/linked_directory.h"

namespace tessera {
namespace {

using st::kIndexSuffix;

std::map<std::string, DType> types_of(const Directory& directory, const std::string& index,
                                      const std::string& display) {
  const Manifest shards = safetensors_driver().manifest({&directory, index, display}, {});
  std::map<std::string, DType> types;
  for (const StoredTensor& tensor : shards.tensors)
    if (!tensor.embedded) types.emplace(tensor.name, tensor.spec.dtype);
  return types;
}

IndexLayout layout_in(const Directory& directory, const std::string& index,
                      const std::string& display, bool with_types) {
  return in_file(display, [&] {
    IndexLayout layout{read_shard_names(directory, index), {}};
    if (with_types) layout.types = types_of(directory, index, display);
    return layout;
  });
}

}  // namespace

IndexLayout read_index_layout(FileSystem& fs, const OpenedCheckpoint& source,
                              const std::string& path, bool with_types) {
  if (path.empty()) {
    const bool shards = takes(source.driver->capabilities().writes_with, kAsIndexFlag);
    const bool named = source.file.ends_with(kIndexSuffix);
    const std::string own = named                           ? source.file
                            : shards && source.file.empty() ? find_shard_index(*source.directory)
                                                            : "";
    if (own.empty())
      fail(Code::kInvalidArgument, fmt::format("{} has no index", source.display),
           "name one: --as-index=FOLDER, or a *.safetensors.index.json");
    return layout_in(*source.directory, own, source.display, with_types);
  }
  const std::optional<FileInfo> there = fs.stat(path);
  if (!there) fail(Code::kNotFound, fmt::format("--as-index {}: not found", printable(path)));
  const bool folder = there->type == FileType::kDirectory;
  const auto [parent, file] = folder ? std::pair(path, std::string()) : split_path(path);
  const std::unique_ptr<Directory> directory = storage::open_linked_directory(fs, parent);
  const std::string index = folder ? find_shard_index(*directory) : file;
  if (index.empty() || !index.ends_with(kIndexSuffix))
    fail(Code::kInvalidArgument,
         fmt::format("--as-index {}: {}", printable(path),
                     folder ? "the folder has no *.safetensors.index.json"
                            : "an index is named *.safetensors.index.json"));
  return layout_in(*directory, index, path, with_types);
}

}  // namespace tessera
