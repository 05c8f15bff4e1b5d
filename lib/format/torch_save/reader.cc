#include <fmt/format.h>
#include <tessera/base/error.h>

#include "lib/format/torch_files/archive_manifest.h"
#include "lib/format/torch_save/files.h"
#include "lib/format/torch_save/meta_parts.h"
#include "lib/format/torch_save/parts.h"
#include "lib/format/torch_save/shards.h"

namespace tessera::torch_save {
Manifest read_manifest(const Place& place, const ReadOptions& options) {
  if (sign_of_shards(place)) return read_shards(place, options);
  if (place.file.empty())
    if (const auto parts = find_meta_parts(*place.directory); !parts.empty())
      return read_meta_parts(place, options, parts);
  std::vector<PartFile> parts = {{place.file, ""}};
  if (place.file.empty()) parts = find_parts(*place.directory);
  if (parts.empty())
    if (const std::string only = only_file(*place.directory); !only.empty()) parts = {{only, ""}};
  if (parts.empty())
    fail(Code::kUnsupported,
         "torch-save is one file, model.pt with optim.pt, or numbered shards; this folder is none",
         "name the file");
  ArchiveManifestBuilder builder(*place.directory, options);
  std::string dialect;
  for (const PartFile& part : parts) {
    const std::uint32_t file = builder.open(part.file);
    const TorchArchive& archive = builder.archive(file);
    dialect = archive.legacy ? "torch.save, legacy stream (before PyTorch 1.6)" : "torch.save, zip";
    Path prefix;
    if (!part.key.empty()) prefix.push_back(key_item(part.key));
    in_file(part.file, [&] { builder.add_state(file, archive.root, prefix); });
  }
  if (parts.size() > 1) dialect += fmt::format(", {} files", parts.size());
  return builder.finish("torch-save", std::move(dialect));
}

}  // namespace tessera::torch_save
