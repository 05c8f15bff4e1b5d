#include "lib/ops/verify_against.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/json.h>
#include <tessera/ops/hash.h>
#include <tessera/ops/seal.h>

#include "lib/ops/hashed_compare.h"
#include "lib/ops/path_resolve.h"
#include "lib/ops/seal_check.h"

namespace tessera {
namespace {

constexpr std::uint64_t kReportBytes = std::uint64_t{256} << 20;

Bytes read_report(FileSystem& fs, const std::string& path) {
  const auto info = fs.stat(path);
  if (!info) fail(Code::kNotFound, fmt::format("--against \"{}\" does not exist", printable(path)));
  if (info->type != FileType::kRegular || info->size_bytes > kReportBytes)
    fail(Code::kInvalidArgument, fmt::format("--against \"{}\" is no report", printable(path)));
  const auto [folder, name] = split_path(fs.canonical(path));
  Bytes text(info->size_bytes);
  fs.open_directory(folder)->open(name)->read_at(0, text);
  return text;
}

std::string text_of(const Value& report, std::string_view key) {
  const Value* value = report.find(key);
  return value && value->is_string() ? value->as_string() : "";
}

std::vector<HashedTensor> tensors_of(const Value& report) {
  std::vector<HashedTensor> tensors;
  const Value* list = report.find("tensors");
  if (!list || list->kind() != Value::Kind::kList) return tensors;
  for (const Value& item : list->as_list()) {
    const Value *name = item.find("name"), *dtype = item.find("dtype"), *shape = item.find("shape"),
                *sum = item.find("sha256");
    if (!name || !dtype || !shape || !sum || !name->is_string() || !dtype->is_string() ||
        !sum->is_string() || shape->kind() != Value::Kind::kList)
      fail(Code::kInvalidArgument,
           "--against: a tensor of the report lacks name, dtype, shape or sha256");
    HashedTensor tensor{name->as_string(), dtype->as_string(), {}, sum->as_string()};
    for (const Value& extent : shape->as_list())
      if (extent.is_int()) tensor.shape.push_back(extent.as_int());
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

/// The file with the first bytes of `tensor`; "" when it has none.
std::string first_file_of(const OpenedCheckpoint& checkpoint, const std::string& tensor) {
  const StoredTensor* stored = checkpoint.manifest.find(tensor);
  if (stored == nullptr) return "";
  for (std::uint32_t c = 0; c < stored->chunk_count; ++c) {
    const Source& source = checkpoint.manifest.source(*stored, c);
    if (source.kind == Source::Kind::kExtent || source.kind == Source::Kind::kCoded)
      return checkpoint.manifest.files[source.file].path;
  }
  return "";
}

Note finding_of(const HashedDifference& difference, const std::string& file) {
  using What = HashedDifference::What;
  const std::string& name = difference.name;
  switch (difference.what) {
    case What::kMissing:
      return {"CK048", "error", "the report has this tensor, the checkpoint does not", "", name};
    case What::kUnexpected:
      return {"CK048", "error", "the checkpoint has this tensor, the report does not", "", name};
    case What::kSpec:
      return {"CK047", "error", "dtype or shape differ from the report", file, name};
    case What::kContent:
      break;
  }
  return {
      "CK047", "error",
      fmt::format("content differs from the report: sha256 {}... for {}...",
                  difference.found_sha256.substr(0, 12), difference.expected_sha256.substr(0, 12)),
      file, name};
}

/// `values_root`: "" where the report has none.
void compare_tensors(const std::vector<HashedTensor>& expected, const std::string& values_root,
                     OpenedCheckpoint& checkpoint, const TransferOptions& transfer,
                     std::vector<Note>& findings) {
  const HashReport hashed = hash_checkpoint(checkpoint, transfer);
  if (!values_root.empty() && values_root != hashed.values_root)
    findings.push_back({"CK047", "warning",
                        "the values beside the tensors differ from the report (another format may "
                        "keep fewer of them)",
                        "", ""});
  for (const HashedDifference& difference : compare_hashed(expected, hashed.tensors))
    findings.push_back(finding_of(difference, first_file_of(checkpoint, difference.name)));
}

void compare_files(const Seal& seal, const OpenedCheckpoint& checkpoint,
                   const TransferOptions& transfer, std::vector<Note>& findings) {
  for (const SealedFile& sealed : seal.files) {
    const std::string name = checkpoint.file.empty() ? sealed.path : checkpoint.file;
    const auto info = checkpoint.directory->stat(name);
    if (!info || info->size_bytes != sealed.size_bytes) {
      findings.push_back({"CK047", "error",
                          info ? "its size differs from the manifest"
                               : "the manifest names this file; it is absent",
                          name, ""});
      continue;
    }
    const auto file = checkpoint.directory->open(name);
    const SealedBlocks blocks = check_sealed_blocks(*file, sealed, [&](std::size_t) {
      if (transfer.cancel) transfer.cancel->check();
    });
    if (blocks.wrong.empty()) continue;
    const auto there = tensors_in(blocks, checkpoint.manifest, name);
    findings.push_back({"CK047", "error", describe_blocks(blocks, "the manifest", there), name,
                        there.size() == 1 ? there[0] : ""});
  }
  // A file without sums was not compared: that is no agreement.
  for (const StoredFile& stored : checkpoint.manifest.files) {
    const bool has_sums =
        checkpoint.file.empty() ? seal.find(stored.path) != nullptr : !seal.files.empty();
    if (!has_sums)
      findings.push_back(
          {"CK048", "error", "the manifest has no checksums of this file", stored.path, ""});
  }
}

}  // namespace

void verify_against(FileSystem& fs, const std::string& report, OpenedCheckpoint& checkpoint,
                    const TransferOptions& transfer, std::vector<Note>& findings) {
  const Bytes text = read_report(fs, report);
  Value parsed;
  try {
    parsed = parse_json(text);
  } catch (const Error& error) {
    fail(Code::kInvalidArgument,
         fmt::format("--against \"{}\": {}", printable(report), error.status().message));
  }
  const std::string kind = text_of(parsed, "schema");
  if (kind == "tessera.hash/1")
    return compare_tensors(tensors_of(parsed), text_of(parsed, "values_root"), checkpoint, transfer,
                           findings);
  if (kind != "tessera.manifest/1")
    fail(Code::kInvalidArgument,
         fmt::format("--against \"{}\" is neither a hash report nor a tessera.manifest.json",
                     printable(report)));
  const Seal seal = decode_seal(text);
  seal.tensors.empty() ? compare_files(seal, checkpoint, transfer, findings)
                       : compare_tensors(seal.tensors, "", checkpoint, transfer, findings);
}

}  // namespace tessera
