#include <fmt/format.h>
#include <tessera/base/error.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "lib/format/torch_files/archive_manifest.h"
#include "lib/format/torch_files/archive_source.h"

namespace tessera {
namespace {

/// A pending chunk of one of the tensors asked for.
struct Wanted {
  std::uint32_t file = 0;
  std::uint32_t tensor = 0;
  std::uint32_t chunk = 0;  // of the tensor
};

std::vector<Wanted> pending_by_file(const Manifest& manifest,
                                    std::span<const std::uint32_t> tensors,
                                    const ReadOptions& options) {
  std::vector<Wanted> out;
  for (const std::uint32_t t : tensors)
    for (std::uint32_t c = 0; c < manifest.tensors[t].chunk_count; ++c) {
      const Source& source = manifest.source(manifest.tensors[t], c);
      if (source.kind == Source::Kind::kPending &&
          options.wants(manifest.tensors[t].first_chunk + c))
        out.push_back({source.file, t, c});
    }
  std::ranges::stable_sort(out, {}, &Wanted::file);
  return out;
}

/// A view may repeat its storage (stride 0): work stays bounded by the bytes present.
void check_repetition(const TensorSpec& spec, const StoredFile& file) {
  constexpr std::uint64_t kAlways = std::uint64_t{256} << 20;
  constexpr std::uint64_t kTimes = 1024;
  const auto bytes = static_cast<std::uint64_t>(spec.size_bytes());
  if (bytes <= kAlways || bytes / kTimes <= file.size_bytes) return;
  fail(
      Code::kResourceExhausted,
      fmt::format("a view repeats its storage to {} bytes in a file of {}", bytes, file.size_bytes),
      "leave it out with --exclude");
}

void locate_in(const Directory& directory, Manifest& manifest, std::span<const Wanted> wanted,
               SourceLocator& locator, const ReadOptions& options) {
  const StoredFile& stored_file = manifest.files.at(wanted[0].file);
  const auto file = directory.open(stored_file.path);
  if (file->size_bytes() != stored_file.size_bytes)
    fail(Code::kCorrupt, "the file changed while it was read");
  const ByteWindow window = ByteWindow::whole(*file);
  TorchArchive archive =
      open_torch_archive(window, {.allow_opaque_root = true,  // or the manifest would not name it
                                  .modules_as_state = true,
                                  .pickle_limit_bytes = options.pickle_limit_bytes});
  if (!archive.legacy) locate_storages(window, archive);
  for (const Wanted& want : wanted) {
    const StoredTensor& tensor = manifest.tensors[want.tensor];
    const Chunk chunk = manifest.chunk(tensor, want.chunk);
    in_tensor(tensor.name, [&] {
      if (chunk.is_whole_box()) check_repetition({tensor.spec.dtype, chunk.box.shape}, stored_file);
      locator.locate(window, archive, {tensor.stored_dtype(), tensor.spec.shape}, chunk,
                     manifest.chunks.source(tensor.first_chunk + want.chunk));
    });
  }
}

}  // namespace

void locate_archives(const Directory& directory, Manifest& manifest,
                     std::span<const std::uint32_t> tensors, const ReadOptions& options) {
  const std::vector<Wanted> wanted = pending_by_file(manifest, tensors, options);
  if (wanted.empty()) return;
  SourceLocator locator(manifest, options);
  for (std::size_t begin = 0, end = 0; begin < wanted.size(); begin = end) {
    while (end < wanted.size() && wanted[end].file == wanted[begin].file) ++end;
    in_file(manifest.files.at(wanted[begin].file).path, [&] {
      locate_in(directory, manifest, std::span(wanted).subspan(begin, end - begin), locator,
                options);
    });
  }
}

}  // namespace tessera
