#include "lib/ops/verify/against.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/small_file.h>
#include <tessera/base/text.h>
#include <tessera/encoding/json.h>
#include <tessera/ops/hash.h>
#include <tessera/ops/seal.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "lib/ops/inspect/content_digests.h"
#include "lib/ops/inspect/hashed_compare.h"
#include "lib/ops/open/path_resolve.h"
#include "lib/ops/seal/check.h"
#include "lib/state/fields.h"

namespace tessera {
namespace {

constexpr std::uint64_t kReportBytes = std::uint64_t{256} << 20;

Bytes read_report(FileSystem& fs, const std::string& path) {
  const auto info = fs.stat(path);
  if (!info) fail(Code::kNotFound, fmt::format("--against \"{}\" does not exist", printable(path)));
  if (info->type == FileType::kOther) {  // a pipe, as `<(...)` makes
    std::string text;
    if (const int error = read_small_file(path, kReportBytes, text); error != 0)
      fail(error == EFBIG ? Code::kInvalidArgument : Code::kIo,
           fmt::format("--against \"{}\": cannot be read: {}", printable(path),
                       std::strerror(error)));
    const ByteView bytes = as_bytes(text);
    return Bytes(bytes.begin(), bytes.end());
  }
  if (info->type != FileType::kRegular || info->size_bytes > kReportBytes)
    fail(Code::kInvalidArgument, fmt::format("--against \"{}\" is no report", printable(path)));
  const auto [folder, name] = split_path(fs.canonical(path));
  Bytes text(info->size_bytes);
  fs.open_directory(folder)->open(name)->read_at(0, text);
  return text;
}

std::optional<HashedQuantizer> quantizer_of(const Value& tensor) {
  const Value* fields = tensor.find("quantizer");
  if (!fields || !fields->is_dict()) return std::nullopt;
  const Value* scale = fields->find("scale");
  return HashedQuantizer{text_in(*fields, "scheme"),
                         scale && scale->is_number() ? scale->as_real() : 0,
                         integer_in(*fields, "zero_point").value_or(0),
                         integer_in(*fields, "axis").value_or(0),
                         text_in(*fields, "scales"),
                         text_in(*fields, "zero_points")};
}

std::vector<HashedValue> values_of(const Value& report) {
  std::vector<HashedValue> values;
  for (const Value& item : list_in(report, "values")) {
    const std::string kind = text_in(item, "kind"), sum = text_in(item, "sha256");
    if (!item.find("name") || sum.empty() || (kind != "value" && kind != "dict"))
      fail(Code::kInvalidArgument, "--against: a value of the report lacks name, kind or sha256");
    values.push_back({text_in(item, "name"), sum, true, kind == "dict"});
  }
  return values;
}

std::vector<HashedTensor> tensors_of(const Value& report) {
  std::vector<HashedTensor> tensors;
  for (const Value& item : list_in(report, "tensors")) {
    const Value *name = item.find("name"), *dtype = item.find("dtype"), *shape = item.find("shape"),
                *sum = item.find("sha256");
    if (!name || !dtype || !shape || !sum || !name->is_string() || !dtype->is_string() ||
        !sum->is_string() || shape->kind() != Value::Kind::kList)
      fail(Code::kInvalidArgument,
           "--against: a tensor of the report lacks name, dtype, shape or sha256");
    HashedTensor tensor{
        name->as_string(), dtype->as_string(), {}, sum->as_string(), quantizer_of(item)};
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
      return {Finding::kOnOneSide, Severity::kError,
              "the report has this tensor, the checkpoint does not", "", name};
    case What::kUnexpected:
      return {Finding::kOnOneSide, Severity::kError,
              "the checkpoint has this tensor, the report does not", "", name};
    case What::kSpec:
      return {Finding::kDiffersFromReport, Severity::kError,
              "dtype or shape differ from the report", file, name};
    case What::kQuantizer:
      return {Finding::kDiffersFromReport, Severity::kError,
              "scale, zero point or axis differ from the report", file, name};
    case What::kContent:
      break;
  }
  return {
      Finding::kDiffersFromReport, Severity::kError,
      fmt::format("content differs from the report: sha256 {}... for {}...",
                  difference.found_sha256.substr(0, 12), difference.expected_sha256.substr(0, 12)),
      file, name};
}

/// What a report says; "" and nullopt: nothing.
struct Expected {
  std::vector<HashedTensor> tensors;
  std::string format;
  std::string values_root;                         // of tessera.hash/1
  std::optional<std::vector<HashedValue>> values;  // of tessera.hash/2
};

/// One side has a value that the other lacks, or they differ.
class ValueComparison {
 public:
  ValueComparison(const Expected& expected, const HashReport& found, std::vector<Note>& findings)
      : expected_(expected), found_(found), findings_(findings) {}

  void run() {
    std::map<std::pair<std::string_view, bool>, const HashedValue*> there;
    for (const HashedValue& value : found_.value_digests)
      there[{value.name, value.is_dict}] = &value;
    for (const HashedValue& want : *expected_.values) {
      const auto place = there.find({want.name, want.is_dict});
      if (place == there.end()) {
        one_sided(want, "the report has", "the checkpoint does not");
        continue;
      }
      if (place->second->sha256 != want.sha256 && is_compared(want))
        add(Finding::kDiffersFromReport, Severity::kError,
            fmt::format("{} differs from the report", words(want)));
      there.erase(place);
    }
    for (const auto& [name, value] : there)
      one_sided(*value, "the checkpoint has", "the report does not");
  }

 private:
  static std::string words(const HashedValue& value) {
    return fmt::format("{} \"{}\"", value.is_dict ? "the kind of the dict" : "the value",
                       printable(value.name));
  }
  /// Formats differ in which values they keep, and in whether kinds of dicts are among them.
  void one_sided(const HashedValue& value, std::string_view has, std::string_view lacks) {
    const bool same = expected_.format == found_.format;
    if (!is_compared(value)) return;
    add(same ? Finding::kOnOneSide : Finding::kDiffersFromReport,
        same ? Severity::kError : Severity::kWarning,
        fmt::format("{} {}, {}{}", has, words(value), lacks,
                    same ? "" : " (another format may keep fewer of them)"));
  }
  bool is_compared(const HashedValue& value) const {
    if (!value.is_dict) return true;
    return keep_container_types(expected_.format, found_.format) &&
           (!value.name.empty() || keep_top_kind(expected_.format, found_.format));
  }
  void add(Finding code, Severity severity, std::string message) {
    findings_.push_back({code, severity, std::move(message), "", ""});
  }

  const Expected& expected_;
  const HashReport& found_;
  std::vector<Note>& findings_;
};

void compare_values(const Expected& expected, const HashReport& hashed,
                    std::vector<Note>& findings) {
  if (expected.values) ValueComparison(expected, hashed, findings).run();
  if (expected.values_root.empty() || expected.values_root == hashed.values_root_v1) return;
  const bool same = expected.format == hashed.format;
  findings.push_back({Finding::kDiffersFromReport, same ? Severity::kError : Severity::kWarning,
                      fmt::format("the non-tensor values differ from the report{}",
                                  same ? "" : " (another format may keep fewer of them)"),
                      "", ""});
}

/// Returns how many values could not be compared to the end.
std::uint64_t compare_contents(const Expected& expected, OpenedCheckpoint& checkpoint,
                               const TransferOptions& transfer, std::vector<Note>& findings) {
  HashReport hashed = hash_checkpoint(checkpoint, transfer);
  if (!expected.values)  // reports without quantizers
    for (HashedTensor& tensor : hashed.tensors) tensor.quantizer.reset();
  compare_values(expected, hashed, findings);
  for (HashedTensor& tensor : hashed.tensors)  // as a report, which is JSON, has it
    if (!is_valid_utf8(tensor.name)) tensor.name = printable(tensor.name);
  for (const HashedDifference& difference : compare_hashed(expected.tensors, hashed.tensors))
    findings.push_back(finding_of(difference, first_file_of(checkpoint, difference.name)));
  if (expected.values && hashed.not_compared > 0)
    findings.push_back({Finding::kNotCompared, Severity::kWarning,
                        not_compared_words(hashed.not_compared), "", ""});
  return expected.values ? hashed.not_compared : 0;
}

void compare_files(const Seal& seal, const OpenedCheckpoint& checkpoint,
                   const TransferOptions& transfer, std::vector<Note>& findings) {
  for (const SealedFile& sealed : seal.files) {
    const std::string name = checkpoint.file.empty() ? sealed.path : checkpoint.file;
    const auto info = checkpoint.directory->stat(name);
    if (!info || info->size_bytes != sealed.size_bytes) {
      findings.push_back({Finding::kDiffersFromReport, Severity::kError,
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
    findings.push_back({Finding::kDiffersFromReport, Severity::kError,
                        describe_blocks(blocks, "the manifest", there), name,
                        there.size() == 1 ? there[0] : ""});
  }
  // A file without sums was not compared: that is no agreement.
  for (const StoredFile& stored : checkpoint.manifest.files) {
    const bool has_sums =
        checkpoint.file.empty() ? seal.find(stored.path) != nullptr : !seal.files.empty();
    if (!has_sums)
      findings.push_back({Finding::kOnOneSide, Severity::kError,
                          "the manifest has no checksums of this file", stored.path, ""});
  }
}

}  // namespace

std::uint64_t verify_against(FileSystem& fs, const std::string& report,
                             OpenedCheckpoint& checkpoint, const TransferOptions& transfer,
                             std::vector<Note>& findings) {
  const Bytes text = read_report(fs, report);
  Value parsed;
  try {
    parsed = parse_json(text);
  } catch (const Error& error) {
    fail(Code::kInvalidArgument,
         fmt::format("--against \"{}\": {}", printable(report), error.status().message));
  }
  const std::string kind = text_in(parsed, "schema");
  if (kind == "tessera.hash/1" || kind == "tessera.hash/2") {
    Expected expected{tensors_of(parsed), text_in(parsed, "format"), "", std::nullopt};
    if (kind == "tessera.hash/2")
      expected.values = values_of(parsed);
    else
      expected.values_root = text_in(parsed, "values_root");
    return compare_contents(expected, checkpoint, transfer, findings);
  }
  if (kind != "tessera.manifest/1")
    fail(Code::kInvalidArgument,
         fmt::format("--against \"{}\" is neither a hash report nor a tessera.manifest.json",
                     printable(report)));
  const Seal seal = decode_seal(text);
  if (!seal.tensors.empty())
    return compare_contents({seal.tensors, "", "", std::nullopt}, checkpoint, transfer, findings);
  compare_files(seal, checkpoint, transfer, findings);
  return 0;
}

}  // namespace tessera
