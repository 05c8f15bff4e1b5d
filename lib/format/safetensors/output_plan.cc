#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/json.h>
#include <tessera/encoding/safetensors_header.h>
#include <tessera/format/safetensors.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lib/format/dtype_refusal.h"
#include "lib/format/safetensors/names.h"
#include "lib/format/safetensors/parts.h"
#include "lib/format/safetensors/state.h"

namespace tessera::st {
namespace {

constexpr std::uint64_t kHfShardBytes = 5'000'000'000;
constexpr const char* kOneFile = "model.safetensors";
// Files this large start their data at a page: direct I/O and mmap like it, and 4 KiB do not
// matter.
constexpr std::uint64_t kLargeFileBytes = std::uint64_t{16} << 20;

using Metadata = std::vector<std::pair<std::string, std::string>>;

/// Literals are few (a header per file, the index): they are kept as they will be written.
class Literals : public OutputRenderer {
 public:
  Bytes render(const OutputPlan& plan, std::size_t segment, const SegmentCrc&) const override {
    return literals_.at(plan.segments[segment].payload);
  }
  std::uint64_t add(Bytes bytes) {
    literals_.push_back(std::move(bytes));
    return literals_.size() - 1;
  }
  std::uint64_t length(std::uint64_t literal) const { return literals_[literal].size(); }

 private:
  std::vector<Bytes> literals_;
};

std::int64_t asked_world_size(const TargetRequest& request) {
  return request.mesh ? request.mesh->world_size() : request.world_size.value_or(1);
}

struct Shard {
  std::string path;
  std::vector<NamedTensor> tensors;
};

/// Tensors in state order, cut where the next one would exceed the limit; one that alone exceeds it
/// stands alone.
std::vector<Shard> split_shards(const Manifest& source, std::vector<NamedTensor> tensors,
                                std::uint64_t limit) {
  std::vector<Shard> shards(1);
  std::uint64_t filled = 0;
  for (NamedTensor& tensor : tensors) {
    const auto size = static_cast<std::uint64_t>(source.tensors[tensor.tensor].spec.size_bytes());
    if (limit > 0 && !shards.back().tensors.empty() && (size > limit || filled > limit - size)) {
      shards.emplace_back();
      filled = 0;
    }
    filled += size;
    shards.back().tensors.push_back(std::move(tensor));
  }
  for (std::size_t i = 0; i < shards.size(); ++i)
    shards[i].path = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
  return shards;
}

std::string some_of(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 5;
  std::string text;
  for (std::size_t i = 0; i < std::min(kMost, names.size()); ++i)
    text += fmt::format("{}\"{}\"", i == 0 ? "" : ", ", printable(names[i]));
  return text + (names.size() > kMost ? ", ..." : "");
}

/// Tensors in the files that the index names, those inside of values in the first of them.
std::vector<Shard> named_shards(const Manifest& source, const std::vector<NamedTensor>& tensors,
                                const ShardNames& names, std::vector<Note>& notes) {
  std::map<std::string, std::vector<NamedTensor>> files;
  std::vector<NamedTensor> inner;
  std::vector<std::string> unlisted;
  std::set<std::string_view> here;
  for (const NamedTensor& tensor : tensors) {
    here.insert(tensor.name);
    const auto file = names.file_of.find(tensor.name);
    if (file != names.file_of.end())
      files[file->second].push_back(tensor);
    else if (source.tensors[tensor.tensor].embedded)
      inner.push_back(tensor);
    else
      unlisted.push_back(tensor.name);
  }
  if (!unlisted.empty())
    fail(Code::kInvalidArgument,
         fmt::format("{} does not list {} of the {} tensors: {}", printable(names.index),
                     unlisted.size(), tensors.size(), some_of(unlisted)),
         "rename to the index's names (--to hf, --root, --rules, --rename), leave out what it does "
         "not list (--exclude), or split by size: --max-shard-size");
  std::vector<std::string> absent;
  for (const auto& [name, file] : names.file_of)
    if (!here.contains(name)) absent.push_back(name);
  if (!absent.empty())
    notes.push_back({Finding::kIndexWritten, Severity::kInfo,
                     fmt::format("{} of the tensors that {} lists are not in the result: {}",
                                 absent.size(), printable(names.index), some_of(absent)),
                     "", ""});
  std::vector<Shard> shards;
  for (auto& [file, held] : files) shards.push_back({file, std::move(held)});
  if (shards.empty()) shards.push_back({std::string(kOneFile), {}});
  auto& first = shards[0].tensors;
  first.insert(first.end(), inner.begin(), inner.end());
  return shards;
}

class PlanBuilder {
 public:
  PlanBuilder(const Manifest& source, const TargetRequest& request)
      : source_(source),
        request_(request),
        names_(request.own.find(kShardNames)),
        delta_(request.own.get(kWrittenDelta)),
        literals_(std::make_shared<Literals>()) {}

  OutputPlan build() {
    check_request();
    EncodedState state = encode_state(source_, request_);
    plan_.notes = std::move(state.notes);
    plan_.left_out = std::move(state.left_out);
    if (delta_) take_rest(state);
    std::uint64_t limit = request_.own.get(kMaxShardSizeFlag);
    const bool sharded = limit > 0 || request_.hf_preset || names_ != nullptr || delta_;
    if (sharded && limit == 0) limit = kHfShardBytes;
    const auto shards = names_ != nullptr
                            ? named_shards(source_, state.tensors, *names_, plan_.notes)
                            : split_shards(source_, std::move(state.tensors), limit);
    if (request_.single_file && shards.size() > 1)
      fail(Code::kInvalidArgument, fmt::format("{} shards do not fit in one file", shards.size()),
           "name a folder as DST");
    const bool one = request_.single_file || !sharded;
    for (std::size_t i = 0; i < shards.size(); ++i) {
      const std::string path = request_.single_file ? "" : one ? kOneFile : shards[i].path;
      if (!delta_)
        add_shard(path, shards[i].tensors, file_metadata(i == 0 ? state.metadata : Metadata{}));
      else if (!shards[i].tensors.empty())
        add_shard(path, shards[i].tensors, sums_of(shards[i].tensors));
    }
    // An index of no tensor names no file: only a delta of no change is one.
    if (delta_ || (!one && !index_.empty())) add_index();
    plan_.format = "safetensors";
    plan_.single_file = request_.single_file;
    plan_.renderer = literals_;
    return std::move(plan_);
  }

 private:
  void check_request() const {
    const std::int64_t world_size = asked_world_size(request_);
    if (world_size > 1)
      fail(Code::kUnsupported,
           fmt::format("safetensors holds one rank; {} were asked for", world_size),
           "use --to torch-dcp");
  }

  /// Strings of a safetensors source come along; what other writers said about their own layout
  /// does not.
  Metadata file_metadata(const Metadata& ours) const {
    Metadata out;
    if (source_.format == "safetensors" && !request_.hf_preset)
      for (const auto& [key, value] : source_.provenance) {
        if (!key.starts_with(kProvenancePrefix)) continue;
        const std::string name = key.substr(kProvenancePrefix.size());
        if (name != kDcpVersion && name != kShardingInfo) out.emplace_back(name, value);
      }
    if (request_.hf_preset) out.emplace_back("format", "pt");
    out.insert(out.end(), ours.begin(), ours.end());
    return out;
  }

  /// What the delta's files hold of the state stays; the rest is for the index.
  void take_rest(EncodedState& state) {
    using As = WrittenDelta::As;
    for (const NamedTensor& tensor : state.tensors) {
      const As as = delta_->tensors[tensor.tensor];
      const std::string& sum = delta_->sums[tensor.tensor];
      if (as == As::kWhole) rest_.whole.insert(tensor.name);
      if (as == As::kUnchanged && !sum.empty()) rest_.unchanged.emplace(tensor.name, sum);
    }
    std::erase_if(state.tensors, [&](const NamedTensor& tensor) {
      return delta_->tensors[tensor.tensor] == As::kUnchanged;
    });
    for (auto& [key, text] : file_metadata(state.metadata)) rest_.metadata.emplace(key, text);
  }
  Metadata sums_of(const std::vector<NamedTensor>& tensors) const {
    Metadata out = {{std::string(kDeltaFile), delta_->index.version}};
    for (const NamedTensor& tensor : tensors)
      if (delta_->tensors[tensor.tensor] == WrittenDelta::As::kBlob)
        out.emplace_back(tensor.name, delta_->sums[tensor.tensor]);
    return out;
  }
  Value delta_metadata() const {
    const auto texts = [](const auto& pairs) {
      ValueDict out;
      for (const auto& [key, text] : pairs)
        out.emplace_back(Value::string(key), Value::string(text));
      return Value::dict(std::move(out));
    };
    const auto names = [](const auto& all) {
      ValueList out;
      for (const std::string& name : all) out.push_back(Value::string(name));
      return Value::list(std::move(out));
    };
    const DeltaIndex& index = delta_->index;
    return Value::dict({{Value::string("version"), Value::string(index.version)},
                        {Value::string("base_version"), Value::string(index.base_version)},
                        {Value::string("delta_encoding"), Value::string(index.encoding)},
                        {Value::string("compression_format"), Value::string(index.compression)},
                        {Value::string("checksum_format"), Value::string(index.checksum)},
                        {Value::string(std::string(kDeltaRest)),
                         Value::dict({{Value::string("whole"), names(rest_.whole)},
                                      {Value::string("unchanged"), texts(rest_.unchanged)},
                                      {Value::string("gone"), names(delta_->gone)},
                                      {Value::string("metadata"), texts(rest_.metadata)}})}});
  }

  void add_shard(const std::string& path, const std::vector<NamedTensor>& tensors,
                 const Metadata& metadata) {
    std::vector<SafetensorsTensor> layout;
    std::unordered_map<std::string, std::uint32_t> source_of;
    for (const NamedTensor& tensor : tensors) {
      const StoredTensor& stored = source_.tensors[tensor.tensor];
      if (!safetensors_name(stored.spec.dtype)) refuse_dtype(stored, "safetensors");
      layout.push_back({tensor.name, stored.spec, 0, 0});
      source_of.emplace(tensor.name, tensor.tensor);
    }
    layout_safetensors(layout);
    const std::uint64_t data_bytes = layout.empty() ? 0 : layout.back().end;
    const std::uint64_t alignment = data_bytes >= kLargeFileBytes ? 4096 : 8;
    begin_file(path);
    add_literal(render_safetensors_header(layout, metadata, alignment));
    for (const SafetensorsTensor& tensor : layout) {
      add_tensor(source_of.at(tensor.name), tensor);
      index_.emplace_back(tensor.name, path);
      total_size_ += tensor.end - tensor.begin;
    }
  }
  void add_index() {
    std::sort(index_.begin(), index_.end());
    ValueDict weight_map;
    for (const auto& [name, path] : index_)
      weight_map.emplace_back(Value::string(name), Value::string(path));
    const Value total = Value::dict(
        {{Value::string("total_size"), Value::integer(static_cast<std::int64_t>(total_size_))}});
    const Value json =
        Value::dict({{Value::string("metadata"), delta_ ? delta_metadata() : total},
                     {Value::string("weight_map"), Value::dict(std::move(weight_map))}});
    const std::string text = dump_json(json, 2) + "\n";
    begin_file(names_ != nullptr ? names_->index : "model.safetensors.index.json");
    add_literal(Bytes(as_bytes(text).begin(), as_bytes(text).end()));
  }

  void begin_file(const std::string& path) {
    plan_.files.push_back({path, 0, plan_.segments.size(), 0});
  }
  void add_segment(Segment segment) {
    OutputFile& file = plan_.files.back();
    segment.offset = file.size_bytes;
    file.size_bytes += segment.length;
    ++file.segment_count;
    plan_.segments.push_back(segment);
  }
  void add_literal(Bytes bytes) {
    Segment segment;
    segment.payload = literals_->add(std::move(bytes));
    segment.length = literals_->length(segment.payload);
    add_segment(segment);
  }
  void add_tensor(std::uint32_t tensor, const SafetensorsTensor& stored) {
    Segment segment;
    segment.kind = Segment::Kind::kTensor;
    segment.tensor = tensor;
    segment.length = stored.end - stored.begin;
    segment.payload = plan_.chunks.size();
    plan_.chunks.push_back(Chunk::whole_of(Box::whole(stored.spec.shape)));
    add_segment(segment);
  }

  const Manifest& source_;
  const TargetRequest& request_;
  const ShardNames* names_;                          // nullptr: cut by size
  const std::shared_ptr<const WrittenDelta> delta_;  // nullptr: whole weights
  DeltaRest rest_;
  std::shared_ptr<Literals> literals_;
  OutputPlan plan_;
  std::vector<std::pair<std::string, std::string>> index_;
  std::uint64_t total_size_ = 0;
};

}  // namespace

OutputPlan plan_output(const Manifest& source, const TargetRequest& request) {
  return PlanBuilder(source, request).build();
}

}  // namespace tessera::st
