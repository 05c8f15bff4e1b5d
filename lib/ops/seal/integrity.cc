#include "lib/ops/seal/integrity.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/json.h>
#include <tessera/storage/checksum.h>

#include <algorithm>
#include <set>
#include <string>

namespace tessera {
namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{64} << 20;

std::string hash_file(const Directory& directory, const std::string& name,
                      const std::function<void(std::size_t)>& tick) {
  const auto file = directory.open(name);
  Sha256 hash;
  Bytes block(std::min(kCheckedBytes, file->size_bytes()));
  for (std::uint64_t at = 0; at < file->size_bytes(); at += block.size()) {
    const std::uint64_t n = std::min<std::uint64_t>(block.size(), file->size_bytes() - at);
    file->read_at(at, MutableBytes(block).first(n));
    hash.update(ByteView(block).first(n));
    tick(n);
  }
  return hex(hash.finish());
}

/// Names that Megatron lists stand beside the file; anything else wants out of the folder.
void require_plain_name(const std::string& name) {
  if (!name.empty() && name != "." && name != ".." &&
      name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos)
    return;
  fail(Code::kCorrupt, fmt::format("it lists \"{}\", which is no file name inside the checkpoint",
                                   printable(name)));
}

}  // namespace

std::vector<Note> check_integrity(const Directory& directory,
                                  const std::function<void(std::size_t)>& tick) {
  std::vector<Note> findings;
  const auto info = directory.stat(kIntegrityFile);
  if (!info || info->type != FileType::kRegular) return findings;
  const auto add = [&](Severity severity, std::string message, const std::string& file) {
    findings.push_back({Finding::kIntegrity, severity, std::move(message), file, ""});
  };
  return in_file(kIntegrityFile, [&] {
    if (info->size_bytes > kMostBytes)
      fail(Code::kCorrupt, fmt::format("a list of {} bytes", info->size_bytes));
    Bytes text(info->size_bytes);
    directory.open(kIntegrityFile)->read_at(0, text);
    const Value json = parse_json(text);
    const Value* files = json.find("files");
    const Value* algorithm = json.find("algorithm");
    if (!files || !files->is_dict() || !algorithm || !algorithm->is_string())
      fail(Code::kCorrupt, "it has no \"algorithm\" and \"files\"");
    if (algorithm->as_string() != "sha256") {
      add(Severity::kWarning,
          fmt::format("its algorithm \"{}\" is not known: nothing was checked",
                      printable(algorithm->as_string())),
          std::string(kIntegrityFile));
      return findings;
    }
    std::set<std::string> listed = {std::string(kIntegrityFile)};
    for (const auto& [key, sum] : files->as_dict()) {
      const std::string& name = key.as_string();
      require_plain_name(name);
      listed.insert(name);
      const auto there = directory.stat(name);
      if (!there || there->type != FileType::kRegular) {
        add(Severity::kError, "the file is missing, integrity.json lists it", name);
        continue;
      }
      const std::string found = hash_file(directory, name, tick);
      if (!sum.is_string() || sum.as_string() != found)
        add(Severity::kError,
            fmt::format("its SHA-256 is {}, integrity.json says {}", found,
                        sum.is_string() ? printable(sum.as_string()) : "no text"),
            name);
    }
    for (const FileInfo& file : directory.list())
      if (file.type == FileType::kRegular && !listed.contains(file.name) &&
          !file.name.starts_with("tessera."))
        add(Severity::kWarning, "integrity.json does not cover this file", file.name);
    return findings;
  });
}

}  // namespace tessera
