#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/json.h>
#include <tessera/ops/seal.h>
#include <tessera/state/sharding_rule.h>
#include <tessera/storage/checksum.h>
#include <tessera/storage/stage.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "lib/ops/seal/json.h"

namespace tessera {

using namespace seal_json;

namespace {

constexpr std::string_view kSealSchema = "tessera.manifest/1";
// The last member: the CRC-32 of all text before it, so that damage to the seal itself shows.
constexpr std::string_view kOwnSumKey = ",\n \"crc32\": \"";
constexpr std::string_view kOwnSumEnd = "\"\n}\n";
constexpr std::size_t kSumDigits = 8;
constexpr std::uint64_t kMostSealBytes = std::uint64_t{1} << 30;

Value encode_file(const SealedFile& file) {
  ValueList sums;
  for (std::uint32_t crc : file.crc32_per_mib) sums.push_back(text(fmt::format("{:08x}", crc)));
  return Value::dict({{text("path"), text(file.path)},
                      {text("size"), number(file.size_bytes)},
                      {text("crc32_per_mib"), Value::list(std::move(sums))}});
}

Value encode_tensor(const HashedTensor& tensor) {
  ValueList shape;
  for (std::int64_t extent : tensor.shape) shape.push_back(Value::integer(extent));
  return Value::dict({{text("name"), text(tensor.name)},
                      {text("dtype"), text(tensor.dtype)},
                      {text("shape"), Value::list(std::move(shape))},
                      {text("sha256"), text(tensor.sha256)}});
}

std::uint32_t decode_crc(const std::string& digits, const Field& where) {
  std::uint32_t crc = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), crc, 16);
  if (digits.size() != kSumDigits || error != std::errc() || end != digits.data() + digits.size())
    where.corrupt("a checksum is not 8 hex digits");
  return crc;
}

SealedFile decode_file(const Field& object) {
  SealedFile file;
  file.path = object.at("path").text();
  file.size_bytes = static_cast<std::uint64_t>(object.at("size").count());
  const Field sums = object.at("crc32_per_mib");
  for (const std::string& digits : sums.texts())
    file.crc32_per_mib.push_back(decode_crc(digits, sums));
  if (file.crc32_per_mib.size() != file.size_bytes / kMiB + (file.size_bytes % kMiB != 0))
    sums.corrupt(
        fmt::format("{} checksums for {} bytes", file.crc32_per_mib.size(), file.size_bytes));
  return file;
}

/// Checks the seal's own checksum, which covers the text up to kOwnSumKey. Throws kCorrupt for
/// another end of the seal.
void check_own_sum(ByteView bytes) {
  const std::size_t tail = kOwnSumKey.size() + kSumDigits + kOwnSumEnd.size();
  if (bytes.size() < tail) bad("no checksum of its own");
  const std::string_view end = as_text(bytes.last(tail));
  if (!end.starts_with(kOwnSumKey) || !end.ends_with(kOwnSumEnd)) bad("no checksum of its own");
  const ByteView before = bytes.first(bytes.size() - tail);
  const std::string sum = fmt::format("{:08x}", crc32(0, before));
  if (end.substr(kOwnSumKey.size(), kSumDigits) != sum) bad("its own checksum is wrong");
}

/// The size of the regular file there; nullopt: there is none.
std::optional<std::uint64_t> size_of(const Directory& directory, const SealedFile& sealed) {
  try {
    const std::optional<FileInfo> there = directory.stat(sealed.path);
    if (!there || there->type != FileType::kRegular) return std::nullopt;
    return there->size_bytes;
  } catch (const Error& error) {  // a path that leaves the folder
    if (error.code() != Code::kCorrupt) throw;
    return std::nullopt;
  }
}

/// Files that are missing or of another size than the sealed one: "a, b and 3 more".
std::string unfit_files(const Directory& directory, const Seal& seal) {
  constexpr std::size_t kMostNames = 4;
  std::string names;
  std::size_t unfit = 0;
  for (const SealedFile& sealed : seal.files)
    if (size_of(directory, sealed) != sealed.size_bytes && unfit++ < kMostNames)
      names += (names.empty() ? "" : ", ") + printable(sealed.path);
  if (unfit > kMostNames) names += fmt::format(" and {} more", unfit - kMostNames);
  return names;
}

/// Whatever is beside it. nullopt: it is no seal, `why` says why not.
std::optional<Seal> parse_seal(const Directory& directory, const FileInfo& info,
                               const std::string& name, std::string& why) {
  if (info.type != FileType::kRegular) {
    why = name + " is no regular file";
  } else if (info.size_bytes > kMostSealBytes) {
    why = name + " is too large";
  } else {
    try {
      Bytes bytes(static_cast<std::size_t>(info.size_bytes));
      directory.open(name)->read_at(0, bytes);
      return decode_seal(bytes);
    } catch (const Error& error) {
      if (error.code() != Code::kCorrupt) throw;  // a disk that fails says nothing of the seal
      why = fmt::format("{}: {}", name, error.status().message);
    }
  }
  return std::nullopt;
}

std::optional<Seal> seal_as_it_is(const Directory& directory) {
  const std::optional<FileInfo> info = directory.stat(kSealName);
  std::string damage;
  return info ? parse_seal(directory, *info, std::string(kSealName), damage) : std::nullopt;
}

HashedTensor decode_tensor(const Field& object) {
  HashedTensor tensor;
  tensor.name = object.at("name").text();
  tensor.dtype = object.at("dtype").text();
  tensor.sha256 = object.at("sha256").text();
  tensor.shape = object.at("shape").integers();
  return tensor;
}

}  // namespace

const SealedFile* Seal::find(std::string_view path) const {
  auto found = std::find_if(files.begin(), files.end(),
                            [&](const SealedFile& file) { return file.path == path; });
  return found == files.end() ? nullptr : &*found;
}

Bytes encode_seal(const Seal& seal) {
  ValueList files;
  for (const SealedFile& file : seal.files) files.push_back(encode_file(file));
  ValueDict root{{text("schema"), text(kSealSchema)},
                 {text("format"), text(seal.format)},
                 {text("tool"), text(seal.tool)},
                 {text("source"), Value::dict({{text("path"), text(seal.source_path)},
                                               {text("format"), text(seal.source_format)},
                                               {text("tensors"), number(seal.source_tensors)},
                                               {text("bytes"), number(seal.source_bytes)}})},
                 {text("files"), Value::list(std::move(files))},
                 {text("sharded"), strings(seal.sharded)}};
  if (!seal.aliases.empty()) {
    ValueDict aliases;
    for (const auto& [name, kept] : seal.aliases) aliases.emplace_back(text(name), text(kept));
    root.emplace_back(text("aliases"), Value::dict(std::move(aliases)));
  }
  if (seal.balance) root.emplace_back(text("balance"), encode_balance(*seal.balance));
  if (!seal.lost.empty()) {
    ValueList lost;
    for (const LostTensor& entry : seal.lost)
      lost.push_back(
          Value::dict({{text("name"), text(entry.name)}, {text("reason"), text(entry.reason)}}));
    root.emplace_back(text("lost"), Value::list(std::move(lost)));
  }
  if (!seal.root.empty()) {
    ValueList tensors;
    for (const HashedTensor& tensor : seal.tensors) tensors.push_back(encode_tensor(tensor));
    root.emplace_back(text("root"), text(seal.root));
    root.emplace_back(text("tensors"), Value::list(std::move(tensors)));
  }
  std::string json = dump_json(Value::dict(std::move(root)), 1);
  TESSERA_CHECK(json.ends_with("\n}"));
  json.resize(json.size() - 2);
  json += fmt::format("{}{:08x}{}", kOwnSumKey, crc32(0, as_bytes(json)), kOwnSumEnd);
  ByteView bytes = as_bytes(json);
  return Bytes(bytes.begin(), bytes.end());
}

Seal decode_seal(ByteView bytes) {
  const Value json = parse_json(bytes);
  const Field root = seal_field(json);
  if (root.at("schema").text() != kSealSchema) bad("another schema");
  check_own_sum(bytes);
  Seal seal;
  seal.format = root.at("format").text();
  seal.tool = root.at("tool").text();
  const Field source = root.at("source");
  seal.source_path = source.at("path").text();
  seal.source_format = source.at("format").text();
  seal.source_tensors = static_cast<std::uint64_t>(source.at("tensors").count());
  seal.source_bytes = static_cast<std::uint64_t>(source.at("bytes").count());
  for (const Field& file : root.at("files").items()) seal.files.push_back(decode_file(file));
  seal.sharded = root.at("sharded").texts();
  if (const auto aliases = root.find("aliases"))
    for (const auto& [name, kept] : aliases->entries())
      seal.aliases.emplace_back(name.text(), kept.text());
  if (const auto balance = root.find("balance")) seal.balance = decode_balance(*balance);
  if (const auto lost = root.find("lost"))
    for (const Field& entry : lost->items())
      seal.lost.push_back({entry.at("name").text(), entry.at("reason").text()});
  if (const auto hash = root.find("root")) {
    seal.root = hash->text();
    for (const Field& tensor : root.at("tensors").items())
      seal.tensors.push_back(decode_tensor(tensor));
  }
  return seal;
}

std::string seal_name(std::string_view file) {
  return file.empty() ? std::string(kSealName) : std::string(file) + std::string(kSealSuffix);
}

std::optional<Seal> read_seal(const Directory& directory, std::string_view file, std::string* why) {
  auto absent = [why](std::string reason) {
    if (why != nullptr) *why = std::move(reason);
    return std::nullopt;
  };
  const std::string name = seal_name(file);
  std::optional<FileInfo> info = directory.stat(name);
  if (!info && !file.empty()) {  // a folder that was written as one file and is opened as that
    std::string damage;
    std::optional<Seal> of_folder = read_seal(directory, "", &damage);
    if (of_folder && of_folder->files.size() == 1 && of_folder->find(file)) return of_folder;
    // Where more than the two lie there, a damaged seal may be one of all the others.
    if (!damage.empty() && directory.list().size() == 2) return absent(std::move(damage));
    return std::nullopt;
  }
  if (!info) return std::nullopt;
  std::string damage;
  std::optional<Seal> seal = parse_seal(directory, *info, name, damage);
  if (!seal) return absent(std::move(damage));
  // It says what lies beside it, whatever that was called when it was written.
  if (!file.empty() && seal->files.size() == 1) seal->files[0].path = file;
  const std::string unfit = unfit_files(directory, *seal);
  if (!unfit.empty()) return absent(fmt::format("{} does not match {}", name, unfit));
  return seal;
}

std::string sealed_format(const Directory& directory) {
  const std::optional<Seal> seal = seal_as_it_is(directory);
  return seal ? seal->format : "";
}

std::vector<std::string> missing_files(const Directory& directory) {
  std::vector<std::string> missing;
  const std::optional<Seal> seal = seal_as_it_is(directory);
  if (!seal) return missing;
  for (const SealedFile& sealed : seal->files)
    if (!size_of(directory, sealed)) missing.push_back(sealed.path);
  return missing;
}

void apply_seal(const Seal& seal, Manifest& manifest) {
  manifest.provenance[std::string(kShardingListed)] = "listed in " + std::string(kSealName);
  std::set<std::string_view> sharded(seal.sharded.begin(), seal.sharded.end());
  for (StoredTensor& tensor : manifest.tensors) {
    if (!tensor.embedded && sharded.contains(tensor.name)) tensor.always_sharded = true;
  }
  for (const auto& [name, kept] : seal.aliases) record_alias(manifest, name, kept);
}

std::uint64_t seal_size_bound(const Seal& seal) {
  constexpr std::uint64_t kPerSum = 16;
  constexpr std::uint64_t kPerEntry = 320;  // keys, indentation, digits, a SHA-256
  std::uint64_t bytes = 4096 + 6 * seal.source_path.size();
  for (const SealedFile& file : seal.files) {
    bytes += kPerEntry + 6 * file.path.size() + kPerSum * (file.size_bytes / kMiB + 1);
  }
  for (const std::string& name : seal.sharded) bytes += 16 + 6 * name.size();
  for (const auto& [name, kept] : seal.aliases) bytes += 32 + 6 * (name.size() + kept.size());
  if (seal.balance) bytes += balance_size_bound(*seal.balance);
  for (const LostTensor& lost : seal.lost)
    bytes += kPerEntry + 6 * (lost.name.size() + lost.reason.size());
  for (const HashedTensor& tensor : seal.tensors) {
    bytes += kPerEntry + 6 * tensor.name.size() + 32 * tensor.shape.size();
  }
  return bytes;
}

}  // namespace tessera
