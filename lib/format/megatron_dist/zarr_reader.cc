#include "lib/format/megatron_dist/zarr_reader.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <string>
#include <utility>
#include <vector>

#include "lib/format/findings.h"
#include "lib/format/megatron_dist/common_state.h"
#include "lib/format/megatron_dist/config.h"
#include "lib/format/megatron_dist/zarr_array.h"
#include "lib/format/megatron_torch/odd_file.h"

namespace tessera::megatron_dist {
namespace {

constexpr std::string_view kArrayFile = ".zarray";
constexpr std::string_view kObjectSuffix = ".pt";
constexpr std::uint64_t kMostHeaderBytes = 1 << 20;

/// "0", "3.0.12": what zarr names chunks.
bool is_chunk_name(std::string_view name) {
  return !name.empty() && name.find_first_not_of("0123456789.") == name.npos &&
         name.front() != '.' && name.back() != '.';
}

class ZarrFolder {
 public:
  ZarrFolder(const Place& place, const ReadOptions& options)
      : directory_(*place.directory),
        options_(options),
        findings_(options.tolerate_damage, manifest_.notes) {}

  Manifest read() {
    for (const FileInfo& info : directory_.list()) {
      if (info.type == FileType::kSymlink)  // perhaps a key: nothing is left out in silence
        findings_.error(Finding::kMissingFile, std::string(*megatron_torch::odd_file(info.type)),
                        info.name);
      if (info.type != FileType::kDirectory) continue;
      const std::string header = info.name + "/" + std::string(kArrayFile);
      directory_.stat(header) ? add_array(info.name, header) : add_objects(info.name);
    }
    return std::move(manifest_);
  }

 private:
  Bytes read_header(const std::string& path) const {
    const auto file = directory_.open(path);
    if (file->size_bytes() > kMostHeaderBytes)
      fail(Code::kCorrupt, fmt::format("a header of {} bytes", file->size_bytes()));
    Bytes text(file->size_bytes());
    file->read_at(0, text);
    return text;
  }

  void add_array(const std::string& key, const std::string& header) {
    const ZarrArray array = in_file(header, [&] { return parse_zarray(read_header(header)); });
    StoredTensor tensor;
    tensor.name = key;
    tensor.spec = array.spec;
    tensor.first_chunk = manifest_.chunks.size();
    std::vector<std::string> names;
    std::size_t odd_chunks = 0;
    for (const FileInfo& info : directory_.list(key)) {
      const auto odd = megatron_torch::odd_file(info.type);
      if (odd && is_chunk_name(info.name)) {
        findings_.error(Finding::kMissingFile, std::string(*odd), key + "/" + info.name, key);
        ++odd_chunks;
      }
      if (!odd && add_chunk(array, key, info)) names.push_back(info.name);
    }
    tensor.chunk_count = static_cast<std::uint32_t>(names.size());
    if (odd_chunks == 0 && static_cast<std::int64_t>(names.size()) < array.chunk_count()) {
      findings_.error(Finding::kMissingFile,
                      fmt::format("the chunk file is missing, one of {} that are",
                                  array.chunk_count() - static_cast<std::int64_t>(names.size())),
                      key + "/" + first_missing_chunk(array, names), key);
    }
    if (array.raw_dtype) {
      findings_.note(Finding::kRawBfloat16, Severity::kInfo,
                     "its dtype is two raw bytes, read as bfloat16", header, key);
    }
    const auto number = static_cast<std::uint32_t>(manifest_.tensors.size());
    manifest_.tensors.push_back(std::move(tensor));
    manifest_.state.entries.push_back({key, {key_item(key)}, Value::tensor(number)});
  }

  bool add_chunk(const ZarrArray& array, const std::string& key, const FileInfo& info) {
    const std::string path = key + "/" + info.name;
    const auto box = in_file(path, [&] { return zarr_chunk_box(array, info.name); });
    if (!box) return false;
    if (info.size_bytes != array.chunk_bytes()) {
      findings_.error(
          Finding::kShortFile,
          fmt::format("it has {} bytes, a chunk of {} {} has {}", info.size_bytes,
                      torch_name(array.spec.dtype), array.chunk.to_string(), array.chunk_bytes()),
          path, key);
    }
    Source source;
    source.kind = Source::Kind::kExtent;
    source.flags = array.byte_swap ? Source::kByteSwap : 0;
    source.file = static_cast<std::uint32_t>(manifest_.files.size());
    source.length = array.chunk_bytes();
    if (box->shape != array.chunk) {  // an edge: the file holds more than the array
      manifest_.strides.push_back(array.chunk.strides());
      source.side = static_cast<std::uint32_t>(manifest_.strides.size());
      source.length = span_bytes(array, *box);
    }
    manifest_.files.push_back({path, info.size_bytes, info.mtime_ns});
    manifest_.chunks.add(Chunk::whole_of(*box), source);
    return true;
  }

  static std::uint64_t span_bytes(const ZarrArray& array, const Box& box) {
    if (box.empty()) return 0;
    const std::vector<std::int64_t> strides = array.chunk.strides();
    std::int64_t last = 0;
    for (int d = 0; d < box.rank(); ++d)
      last += (box.shape[d] - 1) * strides[static_cast<std::size_t>(d)];
    return static_cast<std::uint64_t>(last + 1) *
           static_cast<std::uint64_t>(element_bytes(array.spec.dtype));
  }

  void add_objects(const std::string& key) {
    for (const FileInfo& info : directory_.list(key)) {
      if (is_chunk_name(info.name)) {
        findings_.error(Finding::kMissingFile,
                        "the header of the array is missing, but its chunks are there",
                        key + "/" + std::string(kArrayFile), key);
        return;
      }
      if (info.type != FileType::kRegular || !info.name.ends_with(kObjectSuffix)) continue;
      const std::string path = key + "/" + info.name;
      const std::string name = path.substr(0, path.size() - kObjectSuffix.size());
      Value value = read_object_file(directory_, path, name, manifest_, options_);
      manifest_.state.entries.push_back({name, {key_item(name)}, std::move(value)});
    }
  }

  const Directory& directory_;
  const ReadOptions& options_;
  Manifest manifest_;
  Findings findings_;
};

}  // namespace

Manifest read_zarr(const Place& place, const ReadOptions& options) {
  return ZarrFolder(place, options).read();
}

}  // namespace tessera::megatron_dist
