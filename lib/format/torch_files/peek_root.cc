#include "lib/format/torch_files/peek_root.h"

#include <tessera/base/error.h>
#include <tessera/encoding/torch_archive.h>

namespace tessera {

std::optional<Value> peek_archive_root(const Directory& directory, const std::string& name,
                                       std::uint64_t pickle_limit_bytes) {
  const auto file = directory.open(name);
  const ByteWindow window = ByteWindow::whole(*file);
  if (!looks_like_torch_archive(window)) return std::nullopt;
  ArchiveOptions options;  // only looked at: what reading refuses, reading refuses later
  options.collect_denied = true;
  options.allow_opaque_root = true;
  options.pickle_limit_bytes = pickle_limit_bytes;
  try {
    return open_torch_archive(window, options).root;
  } catch (const Error& error) {
    if (error.code() != Code::kResourceExhausted) throw;
    return std::nullopt;
  }
}

}  // namespace tessera
