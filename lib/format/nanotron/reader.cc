#include "lib/format/nanotron/reader.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/json.h>
#include <tessera/encoding/safetensors_header.h>
#include <tessera/layout/coverage.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "lib/format/findings.h"
#include "lib/format/nanotron/slices.h"
#include "lib/state/fields.h"

namespace tessera::nanotron {
namespace {

constexpr std::string_view kSuffix = ".safetensors";
constexpr std::string_view kFilePrefix = "model_";
constexpr std::string_view kData = "data";  // the one tensor of a file
constexpr std::string_view kRankMark = "_pp-rank-";
constexpr int kMostDepth = 64;
constexpr std::uint64_t kMostMetadataBytes = std::uint64_t{1} << 20;

/// One rank's file of a parameter.
struct PartFile {
  std::string path;
  std::string ranks;  // "_pp-rank-0-of-1_tp-rank-1-of-2"; "": of no rank's own
};

class Reader {
 public:
  Reader(const Place& place, const ReadOptions& options)
      : directory_(*place.directory), findings_(options.tolerate_damage, out_.notes) {}

  Manifest read() {
    out_.format = "nanotron";
    read_metadata();
    collect(std::string(kModelFolder), "", 0);
    if (parts_.empty())
      fail(Code::kUnsupported, "no model_*.safetensors of a parameter lies below model/");
    for (const auto& part : parts_)
      in_tensor(part.first, [&] { add_parameter(part.first, part.second); });
    note_rest();
    out_.dialect = fmt::format("nanotron{}, {} files of parameters", version_, files_of_model_);
    if (!ranks_.empty()) {
      out_.world_size = static_cast<std::int64_t>(ranks_.size());
      out_.world_size_source = "tensor- and pipeline-parallel ranks in file names";
    }
    return std::move(out_);
  }

 private:
  void read_metadata() {
    const std::string name(kMetadataFile);
    const auto info = directory_.stat(name);
    if (!info || info->type != FileType::kRegular)
      fail(Code::kUnsupported, fmt::format("it has no {}", kMetadataFile));
    in_file(name, [&] {
      const auto file = directory_.open(name);
      if (file->size_bytes() > kMostMetadataBytes) fail(Code::kCorrupt, "it is far too large");
      Bytes text(file->size_bytes());
      file->read_at(0, text);
      out_.files.push_back({name, file->size_bytes(), info->mtime_ns});
      const Value root = parse_json(text);
      const Value* version = root.find("version");
      if (version && version->is_string()) {
        out_.provenance["nanotron.version"] = printable(version->as_string());
        version_ = " " + out_.provenance["nanotron.version"];
      }
    });
  }

  /// "model/model/decoder/0/attn/model_weight_pp-rank-..." is "model.decoder.0.attn.weight".
  void collect(const std::string& folder, const std::string& prefix, int depth) {
    if (depth > kMostDepth) fail(Code::kCorrupt, "folders are nested too deeply");
    for (const FileInfo& info : directory_.list(folder)) {
      const std::string path = folder + "/" + info.name;
      if (info.type == FileType::kDirectory) {
        collect(path, prefix + info.name + ".", depth + 1);
        continue;
      }
      std::string_view name = info.name;
      if (!name.starts_with(kFilePrefix) || !name.ends_with(kSuffix)) continue;
      if (info.type != FileType::kRegular) {
        findings_.error(Finding::kMissingFile, std::string(no_regular_file(info.type)), path);
        continue;
      }
      name.remove_prefix(kFilePrefix.size());
      name.remove_suffix(kSuffix.size());
      const std::size_t mark = std::min(name.find(kRankMark), name.size());
      parts_[prefix + std::string(name.substr(0, mark))].push_back(
          {path, std::string(name.substr(mark))});
    }
  }

  void add_parameter(const std::string& name, const std::vector<PartFile>& files) {
    StoredTensor tensor;
    tensor.name = name;
    tensor.kind = TensorKind::kParam;
    tensor.first_chunk = out_.chunks.size();
    std::vector<Chunk> chunks;
    bool first = true;
    for (const PartFile& file : files) {
      if (!file.ranks.empty()) ranks_.insert(file.ranks);
      in_file(file.path, [&] { add_part(file, first, tensor.spec, chunks); });
    }
    tensor.chunk_count = static_cast<std::uint32_t>(chunks.size());
    if (chunks.empty()) return;  // findings say why
    const CoverageReport report = check_coverage(tensor.spec.shape, chunks);
    if (!report.complete)
      findings_.error(report.first_overlap ? Finding::kOverlap : Finding::kHole, report.to_string(),
                      "", name);
    const auto number = static_cast<std::uint32_t>(out_.tensors.size());
    out_.state.entries.push_back({name, {key_item(name)}, Value::tensor(number)});
    out_.tensors.push_back(std::move(tensor));
  }

  void add_part(const PartFile& part, bool& first, TensorSpec& whole, std::vector<Chunk>& chunks) {
    const auto open = directory_.open(part.path);
    const auto info = directory_.stat(part.path);
    const auto number = static_cast<std::uint32_t>(out_.files.size());
    out_.files.push_back({part.path, open->size_bytes(), info ? info->mtime_ns : 0});
    ++files_of_model_;
    if (findings_.tolerate() && open->size_bytes() == 0)
      return findings_.error(Finding::kShortFile, "the file is empty", part.path);
    const SafetensorsHeader header =
        read_safetensors_header(ByteWindow::whole(*open), findings_.tolerate());
    if (header.missing_bytes > 0)
      findings_.error(Finding::kShortFile,
                      fmt::format("the file ends {} bytes early", header.missing_bytes), part.path);
    if (header.tensors.size() != 1 || header.tensors[0].name != kData)
      fail(Code::kUnsupported,
           fmt::format("{} tensors, where nanotron has the one \"data\"", header.tensors.size()));
    const SafetensorsTensor& stored = header.tensors[0];
    const auto slices = header.metadata.find(std::string(kSlices));
    const auto shape = header.metadata.find(std::string(kWholeShape));
    const bool cut = slices != header.metadata.end() && shape != header.metadata.end();
    const TensorSpec spec{stored.spec.dtype, cut ? parse_shape(shape->second) : stored.spec.shape};
    if (first) whole = spec;
    if (whole != spec)
      fail(Code::kCorrupt,
           fmt::format("{} {} here, {} {} in another rank's file", torch_name(spec.dtype),
                       spec.shape.to_string(), torch_name(whole.dtype), whole.shape.to_string()));
    first = false;
    std::vector<SlicePair> pairs = {{Box::whole(spec.shape), Box::whole(spec.shape)}};
    if (cut) pairs = parse_slices(slices->second, stored.spec.shape, spec.shape);
    for (SlicePair& pair : pairs)
      add_chunk(number, header.data_offset + stored.begin, stored.spec, pair, chunks);
  }

  void add_chunk(std::uint32_t file, std::uint64_t begin, const TensorSpec& stored, SlicePair& pair,
                 std::vector<Chunk>& chunks) {
    const std::vector<std::int64_t> strides = stored.shape.strides();
    std::int64_t offset = 0, last = 0;
    for (int d = 0; d < stored.shape.rank(); ++d) {
      const auto at = static_cast<std::size_t>(d);
      offset += pair.local.origin[at] * strides[at];
      last += std::max<std::int64_t>(pair.local.shape[d] - 1, 0) * strides[at];
    }
    const std::int64_t item = element_bytes(stored.dtype);
    Source source;
    source.kind = Source::Kind::kExtent;
    source.file = file;
    source.offset = begin + static_cast<std::uint64_t>(offset * item);
    source.length =
        pair.local.shape.numel() == 0 ? 0 : static_cast<std::uint64_t>((last + 1) * item);
    if (pair.local.shape.strides() != strides) {
      out_.strides.push_back(strides);
      source.side = static_cast<std::uint32_t>(out_.strides.size());
    }
    chunks.push_back(Chunk::whole_of(std::move(pair.whole)));
    out_.chunks.add(chunks.back(), source);
  }

  /// What lies beside the model is of single ranks, and stays behind.
  void note_rest() {
    std::string rest;
    for (const FileInfo& info : directory_.list(""))
      if (info.type == FileType::kDirectory && info.name != kModelFolder &&
          !info.name.starts_with('.'))
        rest += (rest.empty() ? "" : ", ") + printable(info.name);
    if (!rest.empty())
      out_.notes.push_back(
          {Finding::kRelatedState, Severity::kWarning,
           fmt::format("nanotron's model is read; these folders are not: {}", rest), "", ""});
  }

  const Directory& directory_;
  Manifest out_;
  Findings findings_;
  std::map<std::string, std::vector<PartFile>> parts_;  // by parameter
  std::set<std::string> ranks_;
  std::size_t files_of_model_ = 0;
  std::string version_;
};

}  // namespace

Manifest read_manifest(const Place& place, const ReadOptions& options) {
  return Reader(place, options).read();
}

}  // namespace tessera::nanotron
