#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/pickle_reader.h>
#include <tessera/encoding/torch_archive.h>
#include <tessera/encoding/zip_reader.h>

#include <algorithm>

#include "lib/encoding/file_kinds.h"
#include "lib/encoding/torch_legacy.h"
#include "lib/encoding/torch_root.h"
#include "lib/encoding/torch_tensors.h"

namespace tessera {
namespace {

constexpr std::string_view kZipMagic = "PK\x03\x04";
constexpr std::string_view kPreReleaseMagic = "PYTORCH1";
constexpr std::uint64_t kMaxSmallRecord = 64;  // byteorder, version

[[noreturn]] void refuse_kind(const FileKind& kind) {
  fail(Code::kUnsupported, kind.what, kind.hint);
}

/// The directory of an archive that may be of another kind: then what it breaks of torch.save's
/// rules is no damage.
ZipReader open_zip(const ByteWindow& window, Bytes head) {
  try {
    return ZipReader(window, std::move(head));
  } catch (const Error& error) {
    if (error.code() != Code::kCorrupt && error.code() != Code::kUnsupported) throw;
    if (const auto kind = other_kind_of_zip(list_zip_members(window))) refuse_kind(*kind);
    throw;
  }
}

std::string read_small(ZipReader& zip, const ZipEntry& entry) {
  if (entry.size_bytes > kMaxSmallRecord)
    fail(Code::kCorrupt, fmt::format("record {} of {} bytes", entry.name, entry.size_bytes));
  const Bytes bytes = zip.read(entry);
  std::string text(as_text(bytes));
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

/// " of torch.nn.modules.linear.Linear": the scripted class, where the pickle names one.
std::string script_class(ZipReader& zip) {
  constexpr std::string_view kNamespace = "__torch__.";
  const ZipEntry* entry = zip.find("data.pkl");
  if (!entry) return "";
  try {
    const Bytes pickle = zip.read(*entry);
    const PickleGraph graph = read_pickle(pickle);
    const PickleKind kind = graph.kind(graph.root());
    if (kind != PickleKind::kNewObj && kind != PickleKind::kReduce) return "";
    const PickleGraph::Node callable = graph.callable(graph.root());
    if (graph.kind(callable) != PickleKind::kGlobal) return "";
    auto [module, name] = graph.global(callable);
    if (module.starts_with(kNamespace)) module.remove_prefix(kNamespace.size());
    return fmt::format(" of {}.{}", printable(module), printable(name));
  } catch (const Error&) {
    return "";  // it is refused in any case
  }
}

void check_records(ZipReader& zip, const ByteWindow& window, TorchArchive& archive) {
  if (zip.find("constants.pkl"))
    fail(Code::kUnsupported,
         fmt::format("a TorchScript archive{}: it holds code, not a state dict", script_class(zip)),
         "save the state_dict() of the scripted module with torch.save");
  if (!zip.find("data.pkl"))
    if (const auto kind = other_kind_of_zip(list_zip_members(window))) refuse_kind(*kind);
  for (const ZipEntry& entry : zip.entries()) ZipReader::refuse_compression(entry);
  if (!zip.find("data.pkl"))
    fail(Code::kCorrupt, "a zip archive without data.pkl: not written by torch.save");
  if (const ZipEntry* version = zip.find("version")) {
    const std::string text = read_small(zip, *version);
    const bool known = text.size() == 1 ? text[0] >= '1' && text[0] <= '9' : text == "10";
    if (!known)
      fail(Code::kUnsupported, fmt::format("torch archive version \"{}\"", printable(text)));
  }
  if (const ZipEntry* order = zip.find("byteorder")) {
    const std::string text = read_small(zip, *order);
    if (text != "little" && text != "big")
      fail(Code::kCorrupt, fmt::format("unknown byte order \"{}\"", printable(text)));
    archive.big_endian = text == "big";
  }
}

void note_missing_checksums(const ZipReader& zip, TorchArchive& archive) {
  if (zip.has_checksums()) return;
  archive.notes.push_back({Finding::kNoChecksums,
                           Severity::kWarning,
                           "saved with checksums off (every CRC-32 is 0): damage to its bytes "
                           "cannot be seen",
                           {},
                           {}});
}

ArchiveStorage open_zip_storage(const ZipReader& zip, std::string_view key, StorageSize size) {
  const ZipEntry* entry = zip.find(fmt::format("data/{}", key));
  if (!entry) fail(Code::kCorrupt, fmt::format("record data/{} is missing", printable(key)));
  if (entry->size_bytes != size.bytes)
    fail(Code::kCorrupt, fmt::format("record data/{} holds {} bytes, the pickle says {}",
                                     printable(key), entry->size_bytes, size.bytes));
  ArchiveStorage storage;
  storage.key = key;
  storage.size_bytes = entry->size_bytes;
  storage.header_offset = entry->header_offset;
  storage.crc32 = entry->crc32;
  storage.has_crc = zip.has_checksums();
  return storage;
}

void locate_in(ZipReader& zip, TorchArchive& archive) {
  for (ArchiveStorage& storage : archive.storages) {
    const ZipEntry* entry = zip.find("data/" + storage.key);
    if (!entry || entry->size_bytes != storage.size_bytes || entry->crc32 != storage.crc32)
      fail(Code::kCorrupt,
           fmt::format("record data/{} changed since it was opened", printable(storage.key)));
    storage.offset = zip.data_offset(*entry);
    storage.located = true;
  }
}

TorchArchive open_zip_archive(const ByteWindow& window, Bytes head, const ArchiveOptions& options) {
  ZipReader zip = open_zip(window, std::move(head));
  TorchArchive archive;
  archive.prefix = zip.prefix();
  check_records(zip, window, archive);
  note_missing_checksums(zip, archive);
  const Bytes pickle = zip.read(*zip.find("data.pkl"));
  const PickleGraph graph = read_pickle(pickle, {options.collect_denied, &archive.globals});
  TensorResolver resolver(graph, archive, [&](std::string_view key, StorageSize size) {
    return open_zip_storage(zip, key, size);
  });
  decode_archive_root(graph, resolver, options, archive);
  if (options.locate) locate_in(zip, archive);
  return archive;
}

}  // namespace

TorchArchive open_torch_archive(const ByteWindow& window, const ArchiveOptions& options) {
  if (window.length == 0) fail(Code::kCorrupt, "an empty file");
  Bytes head = window.read(0, ZipReader::head_bytes(window));
  if (as_text(head).starts_with(kZipMagic))
    return open_zip_archive(window, std::move(head), options);
  if (looks_like_legacy_archive(head)) return open_legacy_archive(window, options);
  if (as_text(head).starts_with(kPreReleaseMagic))
    fail(Code::kUnsupported, "a pre-release PyTorch container (PYTORCH1)");
  if (const auto kind = other_kind_of(window)) refuse_kind(*kind);
  fail(Code::kCorrupt, "neither a zip archive nor a legacy stream of torch.save");
}

void locate_storages(const ByteWindow& window, TorchArchive& archive) {
  const bool located = std::all_of(archive.storages.begin(), archive.storages.end(),
                                   [](const ArchiveStorage& s) { return s.located; });
  if (located) return;
  ZipReader zip(window);
  locate_in(zip, archive);
}

bool may_mention(const ByteWindow& window, std::string_view text) {
  Bytes head = window.read(0, ZipReader::head_bytes(window));
  if (!as_text(head).starts_with(kZipMagic)) return true;
  ZipReader zip = open_zip(window, std::move(head));
  TorchArchive archive;
  check_records(zip, window, archive);
  return as_text(zip.read(*zip.find("data.pkl"))).find(text) != std::string_view::npos;
}

bool looks_like_torch_archive(const ByteWindow& window) {
  const Bytes head = window.read(0, std::min<std::uint64_t>(64, window.length));
  return as_text(head).starts_with(kZipMagic) || looks_like_legacy_archive(head);
}

}  // namespace tessera
