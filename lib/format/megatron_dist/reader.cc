// A folder of dist_checkpointing -> Manifest.
#include "lib/format/torch_dcp/reader.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <string>
#include <string_view>

#include "lib/format/findings.h"
#include "lib/format/megatron_dist/bucket_space.h"
#include "lib/format/megatron_dist/common_state.h"
#include "lib/format/megatron_dist/config.h"
#include "lib/format/megatron_dist/group_options.h"
#include "lib/format/megatron_dist/parts.h"
#include "lib/format/megatron_dist/zarr_reader.h"
#include "lib/format/megatron_torch/bucket_names.h"
#include "lib/format/megatron_torch/odd_file.h"
#include "lib/format/torch_dcp/names.h"

namespace tessera::megatron_dist {
namespace {

/// Buckets of the distributed optimizer become state of parameters, or stay as they stand. Returns
/// the options of its groups, taken from beside the buckets.
ValueDict read_buckets(Manifest& manifest) {
  const BucketDecoding decoding = decode_buckets(manifest);
  if (decoding.buckets == 0) return {};
  const bool decoded = decoding.missing.empty();
  for (StoredTensor& tensor : manifest.tensors)
    if (!tensor.embedded && megatron_torch::is_bucket(tensor.name))
      tensor.kind = tensor.name.ends_with(".param") ? TensorKind::kMaster : TensorKind::kOptim;
  manifest.notes.push_back(
      {Finding::kBucketsKept, Severity::kInfo,
       decoded ? fmt::format("{} tensors are buckets of the distributed optimizer, shown as the "
                             "state of the model's parameters: their order is that of the model's "
                             "entries, and the borders of chunks agree",
                             decoding.buckets)
               : fmt::format("{} tensors are buckets of the distributed optimizer, kept as they "
                             "are: {}; they can be loaded at another data-parallel size, not at "
                             "another tensor- or pipeline-parallel one",
                             decoding.buckets, decoding.missing),
       "", ""});
  return decoded ? take_group_options(manifest) : ValueDict();
}

void add_file(const Directory& directory, std::string_view name, Manifest& manifest) {
  const auto info = directory.stat(name);
  if (info) manifest.files.push_back({std::string(name), info->size_bytes, info->mtime_ns});
}

void read_common(const Place& place, Manifest& manifest, const ReadOptions& options,
                 Findings& findings, const ValueDict& optimizer) {
  if (place.directory->stat(kCommonFile)) {
    try {
      append_common_file(*place.directory, std::string(kCommonFile), manifest, options, optimizer);
    } catch (const Error& error) {
      if (error.code() != Code::kCorrupt || !findings.tolerate()) throw;
      findings.error(Finding::kUnreadableFile,
                     unreadable_text("arguments, iteration and optimizer groups", error.status()),
                     kCommonFile);
    }
    return;
  }
  const bool inside = manifest.state.find(kCommonObject) != nullptr;
  if (inside) return expand_common_entry(manifest, kCommonObject, optimizer);
  findings.error(Finding::kMissingFile,
                 "the file is missing: arguments, iteration and optimizer "
                 "groups stand in it",
                 kCommonFile);
}

}  // namespace

Manifest read_manifest(const Place& place, const ReadOptions& options) {
  const auto config = read_config(*place.directory);
  const std::string backend = config ? config->backend : std::string(kTorchDist);
  Manifest manifest;
  ValueDict optimizer;
  if (backend == kTorchDist) {
    manifest = dcp::read_manifest(place, options);
    optimizer = read_buckets(manifest);
  } else if (backend == kZarr) {
    manifest = read_zarr(place, options);
  } else {
    fail(Code::kUnsupported,
         fmt::format("metadata.json names the backend \"{}\"; torch_dist and zarr are read",
                     printable(backend)));
  }
  manifest.format = "megatron-dist";
  manifest.dialect = fmt::format("Megatron-core dist_checkpointing, backend {}", backend) +
                     (manifest.dialect.empty() ? "" : "; " + manifest.dialect);
  Findings findings(options.tolerate_damage, manifest.notes);
  const auto config_info = place.directory->stat(kConfigFile);
  const auto odd = config_info ? megatron_torch::odd_file(config_info->type) : std::nullopt;
  if (odd) findings.error(Finding::kMissingFile, std::string(*odd), kConfigFile);
  if (!config && !odd) {
    findings.error(config_info ? Finding::kUnreadableFile : Finding::kUnfinished,
                   config_info ? "it is damaged: it should be JSON that names the backend"
                               : "incomplete: it is written last and is missing: the save was "
                                 "interrupted",
                   kConfigFile);
  }
  add_file(*place.directory, kConfigFile, manifest);
  read_common(place, manifest, options, findings, optimizer);
  return manifest;
}

}  // namespace tessera::megatron_dist
