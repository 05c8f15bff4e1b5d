#include "lib/encoding/torch_legacy.h"

#include <fmt/format.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "lib/encoding/pickle_vm.h"
#include "lib/encoding/torch_root.h"
#include "lib/encoding/torch_tensors.h"

namespace tessera {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view kMagicLong = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"sv;
constexpr std::string_view kMagicDecimal = "119547037146038801333356"sv;
constexpr std::int64_t kProtocolVersion = 1001;
constexpr std::uint64_t kFirstReadBytes = 256 * 1024;

/// Pickles one after the other, read in growing blocks: their length is not known before.
class PickleStream {
 public:
  explicit PickleStream(const ByteWindow& window) : window_(window) {}

  PickleGraph next(const PickleOptions& options);
  std::uint64_t position() const { return position_; }

 private:
  ByteWindow window_;
  Bytes block_;
  std::uint64_t block_offset_ = 0;
  std::uint64_t position_ = 0;
};

PickleGraph PickleStream::next(const PickleOptions& options) {
  std::uint64_t size = kFirstReadBytes;
  for (;;) {
    const std::uint64_t left = window_.length - position_;
    size = std::min(size, left);
    if (position_ + size > block_offset_ + block_.size()) {
      block_ = window_.read(position_, size);
      block_offset_ = position_;
    }
    const ByteView bytes = ByteView(block_).subspan(position_ - block_offset_);
    std::vector<GlobalUse> globals;
    PickleVm vm(bytes, {options.collect_denied, &globals});
    try {
      std::size_t consumed = 0;
      PickleGraph graph = vm.run(&consumed);
      position_ += consumed;
      if (options.globals)
        std::move(globals.begin(), globals.end(), std::back_inserter(*options.globals));
      return graph;
    } catch (const Error&) {
      if (vm.needed_bytes() == 0 || vm.needed_bytes() > left || bytes.size() >= left) throw;
      size = std::max(size * 4, vm.needed_bytes());
    }
  }
}

void check_header(PickleStream& stream) {
  const PickleGraph magic = stream.next({});
  if (magic.kind(magic.root()) != PickleKind::kBigInt || magic.text(magic.root()) != kMagicDecimal)
    fail(Code::kCorrupt, "no torch.save file: wrong magic number");
  const PickleGraph version = stream.next({});
  if (version.kind(version.root()) != PickleKind::kInt ||
      version.integer(version.root()) != kProtocolVersion)
    fail(Code::kUnsupported, "legacy torch.save stream of a version other than 1001");
  stream.next({});  // the writer's type sizes: of no use
}

/// Places the storages in the order of the key list.
void locate(const ByteWindow& window, const PickleGraph& keys, std::uint64_t at,
            const std::vector<std::uint64_t>& numels, TorchArchive& archive) {
  std::unordered_map<std::string_view, std::size_t> by_key;
  for (std::size_t i = 0; i < archive.storages.size(); ++i)
    by_key.emplace(archive.storages[i].key, i);
  if (keys.kind(keys.root()) != PickleKind::kList) fail(Code::kCorrupt, "malformed storage keys");
  for (const auto node : keys.items(keys.root())) {
    const std::string key =
        keys.kind(node) == PickleKind::kString ? std::string(keys.text(node)) : "";
    const auto found = by_key.find(key);
    if (found == by_key.end() || archive.storages[found->second].located)
      fail(Code::kCorrupt, fmt::format("storage key \"{}\" is unknown or twice", printable(key)));
    ArchiveStorage& storage = archive.storages[found->second];
    const Bytes count = window.read(at, 8);
    if (load_le<std::uint64_t>(count.data()) != numels[found->second])
      fail(Code::kCorrupt,
           fmt::format("storage \"{}\" holds {} elements, the pickle says {}", printable(key),
                       load_le<std::uint64_t>(count.data()), numels[found->second]));
    storage.offset = at + 8;
    storage.located = true;
    if (storage.size_bytes > window.length - storage.offset)
      fail(Code::kCorrupt, fmt::format("storage \"{}\" ({} bytes) leaves the file of {} bytes",
                                       printable(key), storage.size_bytes, window.length));
    at = storage.offset + storage.size_bytes;
  }
  for (const ArchiveStorage& storage : archive.storages) {
    if (!storage.located)
      fail(Code::kCorrupt, fmt::format("storage \"{}\" is missing", printable(storage.key)));
  }
  if (at != window.length)
    fail(Code::kCorrupt, fmt::format("{} bytes after the last storage", window.length - at));
}

}  // namespace

bool looks_like_legacy_archive(ByteView head) {
  const std::string_view text = as_text(head).substr(0, 32);
  return text.find(kMagicLong) != std::string_view::npos ||
         text.find(kMagicDecimal) != std::string_view::npos;
}

TorchArchive open_legacy_archive(const ByteWindow& window, const ArchiveOptions& options) {
  TorchArchive archive;
  archive.legacy = true;
  PickleStream stream(window);
  check_header(stream);
  const PickleGraph graph = stream.next({options.collect_denied, &archive.globals});
  std::vector<std::uint64_t> numels;
  TensorResolver resolver(graph, archive, [&](std::string_view key, StorageSize size) {
    numels.push_back(size.numel);
    ArchiveStorage storage;
    storage.key = key;
    storage.size_bytes = size.bytes;
    return storage;
  });
  decode_archive_root(graph, resolver, options, archive);
  resolver.open_all_storages();  // the list of keys has every one of them
  const PickleGraph keys = stream.next({});
  locate(window, keys, stream.position(), numels, archive);
  return archive;
}

}  // namespace tessera
