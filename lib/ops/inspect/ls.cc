#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/json.h>
#include <tessera/ops/hash.h>
#include <tessera/ops/ls.h>
#include <tessera/state/listed_tensors.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>
#include <tuple>

#include "lib/ops/inspect/content_digests.h"
#include "lib/ops/inspect/listing.h"
#include "lib/ops/open/value_budget.h"

namespace tessera {
namespace {

std::string_view source_name(Source::Kind kind) {
  switch (kind) {
    case Source::Kind::kPending:
      return "item";
    case Source::Kind::kExtent:
      return "extent";
    case Source::Kind::kCoded:
      return "coded";
    case Source::Kind::kInline:
      return "inline";
    case Source::Kind::kFill:
      return "fill";
    case Source::Kind::kMemory:
      return "memory";
    case Source::Kind::kComputed:
      return "computed";
  }
  return "";
}

bool has_file(Source::Kind kind) {
  return kind != Source::Kind::kInline && kind != Source::Kind::kFill &&
         kind != Source::Kind::kComputed;
}

/// "dim 0 x 4", "dims 0,1 x 2x2", "flat x 3", "" for one chunk: distinct chunks alone count.
std::string sharding_text(const std::vector<ChunkRow>& table) {
  if (table.size() < 2) return "";
  const bool flat = std::ranges::any_of(table, &ChunkRow::is_flat);
  std::size_t distinct = 0;
  for (const ChunkRow& row : table) distinct += row.replica == 0;
  if (distinct < 2) return "";
  if (flat) return fmt::format("flat x {}", distinct);
  std::string dims, ways;
  int count = 0;
  for (std::size_t d = 0; d < table[0].offsets.size(); ++d) {
    std::set<std::int64_t> starts;
    for (const ChunkRow& row : table) starts.insert(row.offsets[d]);
    if (starts.size() < 2) continue;
    dims += fmt::format("{}{}", count ? "," : "", d);
    ways += fmt::format("{}{}", count ? "x" : "", starts.size());
    ++count;
  }
  if (count == 0) return fmt::format("x {}", distinct);
  return fmt::format("dim{} {} x {}", count > 1 ? "s" : "", dims, ways);
}

bool wanted(const LsTensor& tensor, const LsOptions& options) {
  const auto& table = tensor.table;
  if (options.rank &&
      std::ranges::none_of(table, [&](const ChunkRow& row) { return row.rank == options.rank; }))
    return false;
  return options.file.empty() || std::ranges::any_of(table, [&](const ChunkRow& row) {
           return glob_match(options.file, row.file);
         });
}

/// A rank or file that the checkpoint does not have is a typing error, not an empty list.
void check_filters(const Manifest& manifest, const LsOptions& options) {
  const auto is_rank = [&](const StoredFile& file) {
    return writing_rank(file.path) == options.rank;
  };
  const auto says_rank = [](const StoredFile& file) { return writing_rank(file.path).has_value(); };
  if (options.rank && std::ranges::none_of(manifest.files, says_rank))
    fail(Code::kInvalidArgument,
         fmt::format("--rank {}: the names of its files do not say which rank wrote them",
                     *options.rank),
         "--file GLOB lists what lies in a file");
  const bool known = !options.rank || (manifest.world_size && *options.rank < *manifest.world_size);
  if (!known && std::ranges::none_of(manifest.files, is_rank)) {
    fail(Code::kInvalidArgument, fmt::format("no file is of rank {}", *options.rank),
         manifest.world_size ? fmt::format("{} ranks wrote it, from 0", *manifest.world_size)
                             : "the names of its files say who wrote them");
  }
  const auto is_file = [&](const StoredFile& file) { return glob_match(options.file, file.path); };
  if (options.file.empty() || std::ranges::any_of(manifest.files, is_file)) return;
  std::vector<std::string_view> names;
  for (const StoredFile& file : manifest.files) names.push_back(file.path);
  const std::string near = nearest(options.file, names);
  fail(Code::kInvalidArgument,
       fmt::format("--file \"{}\" matches no file of the checkpoint", printable(options.file)),
       near.empty() ? "ckpt-inspect ls --chunks shows the files"
                    : fmt::format("did you mean {}?", near));
}

void keep_rows(LsTensor& tensor, const LsOptions& options) {
  std::erase_if(tensor.table, [&](const ChunkRow& row) {
    return (options.rank && row.rank != options.rank) ||
           (!options.file.empty() && !glob_match(options.file, row.file));
  });
}

Value describe_embedded(const StoredTensor& tensor, const std::string& digest) {
  ValueList shape;
  for (std::int64_t extent : tensor.spec.shape.extents()) shape.push_back(Value::integer(extent));
  ValueDict entry;
  entry.emplace_back(Value::string("key"), Value::string(""));
  entry.emplace_back(Value::string("dtype"),
                     Value::string(std::string(torch_name(tensor.spec.dtype))));
  entry.emplace_back(Value::string("shape"), Value::list(std::move(shape)));
  entry.emplace_back(Value::string("sha256"), Value::string(digest));
  return Value::dict(std::move(entry));
}

}  // namespace

LsTensor describe_tensor(const Manifest& manifest, std::uint32_t index) {
  const StoredTensor& stored = manifest.tensors[index];
  LsTensor tensor;
  tensor.index = index;
  tensor.name = stored.name;
  tensor.dtype = torch_name(stored.spec.dtype);
  const auto extents = stored.spec.shape.extents();
  tensor.shape.assign(extents.begin(), extents.end());
  tensor.numel = stored.spec.shape.numel();
  tensor.bytes = static_cast<std::uint64_t>(stored.spec.size_bytes());
  tensor.kind = stored.kind;
  tensor.chunks = stored.chunk_count;
  tensor.table = chunk_table(manifest, stored);
  tensor.sharding = sharding_text(tensor.table);
  for (const ChunkRow& row : tensor.table)
    tensor.replicas = std::max(tensor.replicas, row.replica + 1);
  for (const ChunkRow& row : tensor.table)
    if (!row.file.empty() && std::ranges::find(tensor.files, row.file) == tensor.files.end())
      tensor.files.push_back(row.file);
  return tensor;
}

LsSort parse_ls_sort(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, LsSort>, 5> kSorts = {
      {{"stored", LsSort::kStored},
       {"name", LsSort::kName},
       {"size", LsSort::kSize},
       {"file", LsSort::kFile},
       {"offset", LsSort::kOffset}}};
  for (const auto& [name, sort] : kSorts)
    if (text == name) return sort;
  fail(
      Code::kInvalidArgument,
      fmt::format("--sort \"{}\" is not one of stored, name, size, file, offset", printable(text)));
}

std::vector<ChunkRow> chunk_table(const Manifest& manifest, const StoredTensor& tensor) {
  std::vector<ChunkRow> table;
  table.reserve(tensor.chunk_count);
  std::map<
      std::tuple<std::vector<std::int64_t>, std::vector<std::int64_t>, std::int64_t, std::int64_t>,
      std::int64_t>
      copies;
  for (std::uint32_t i = 0; i < tensor.chunk_count; ++i) {
    const Chunk chunk = manifest.chunk(tensor, i);
    const Source& source = manifest.source(tensor, i);
    ChunkRow row;
    row.offsets = chunk.box.origin;
    const auto extents = chunk.box.shape.extents();
    row.lengths.assign(extents.begin(), extents.end());
    row.flat_begin = chunk.flat_begin;
    row.flat_end = chunk.flat_end;
    row.is_flat = !chunk.is_whole_box();
    row.source = source_name(source.kind);
    if (has_file(source.kind) && source.file < manifest.files.size()) {
      row.file = manifest.files[source.file].path;
      row.file_offset = source.offset;
      row.file_length = source.length;
      row.rank = writing_rank(row.file);
    }
    if (tensor.chunk_count > 1)
      row.replica = copies[{row.offsets, row.lengths, row.flat_begin, row.flat_end}]++;
    table.push_back(std::move(row));
  }
  return table;
}

std::vector<std::pair<std::string, Value>> json_values(OpenedCheckpoint& checkpoint,
                                                       const TransferOptions& transfer) {
  return json_values(checkpoint.manifest, inner_digests(checkpoint, false, transfer));
}

Value json_value(const Manifest& manifest, const Value& value, const TensorDigests& digests,
                 ValueBudget& budget) {
  const DescribeTensor describe = [&](std::uint32_t index) {
    return describe_embedded(manifest.tensors.at(index), digests.at(index));
  };
  return to_json_value(value, describe, budget);
}

std::vector<std::pair<std::string, Value>> json_values(const Manifest& manifest,
                                                       const TensorDigests& digests) {
  ValueBudget budget = printing_budget(manifest.state);
  std::vector<std::pair<std::string, Value>> values;
  for (const StateEntry& entry : manifest.state.entries)
    if (!entry.value.is_tensor())
      values.emplace_back(entry.name, json_value(manifest, entry.value, digests, budget));
  return values;
}

LsRows::LsRows(const Manifest& manifest, const LsOptions& options)
    : manifest_(manifest), options_(options) {
  check_filters(manifest, options);
  tensors_ = listed_tensors(manifest);
  if (is_filtered())
    std::erase_if(tensors_, [&](std::uint32_t index) {
      return !wanted(describe_tensor(manifest, index), options);
    });
  sort();
  if (options.top && tensors_.size() > options.top) tensors_.resize(options.top);
}

LsTensor LsRows::operator[](std::size_t i) const {
  LsTensor tensor = describe_tensor(manifest_, tensors_[i]);
  if (is_filtered()) keep_rows(tensor, options_);
  if (!options_.chunks) tensor.table.clear();
  return tensor;
}

std::uint64_t LsRows::total_bytes() const {
  std::uint64_t bytes = 0;
  for (const std::uint32_t i : tensors_)
    bytes += static_cast<std::uint64_t>(manifest_.tensors[i].spec.size_bytes());
  return bytes;
}

std::int64_t LsRows::total_numel() const {
  std::int64_t numel = 0;
  for (const std::uint32_t i : tensors_) numel += manifest_.tensors[i].spec.shape.numel();
  return numel;
}

void LsRows::sort() {
  const auto stored = [this](std::uint32_t i) -> const StoredTensor& {
    return manifest_.tensors[i];
  };
  if (options_.sort == LsSort::kName)
    std::ranges::stable_sort(tensors_, natural_less, [&](auto i) { return stored(i).name.view(); });
  if (options_.sort == LsSort::kSize)
    std::ranges::stable_sort(tensors_, std::ranges::greater(),
                             [&](auto i) { return stored(i).spec.size_bytes(); });
  if (options_.sort != LsSort::kFile && options_.sort != LsSort::kOffset) return;
  // By where the first of its chunks that is shown lies.
  std::vector<std::pair<std::pair<std::string, std::uint64_t>, std::uint32_t>> places;
  for (const std::uint32_t index : tensors_) {
    LsTensor tensor = describe_tensor(manifest_, index);
    if (is_filtered()) keep_rows(tensor, options_);
    places.emplace_back();
    if (!tensor.table.empty())
      places.back().first = {tensor.table[0].file, tensor.table[0].file_offset};
    places.back().second = index;
  }
  std::ranges::stable_sort(places, {},
                           [](const auto& place) -> const auto& { return place.first; });
  for (std::size_t i = 0; i < places.size(); ++i) tensors_[i] = places[i].second;
}

LsReport list_all_but_rows(OpenedCheckpoint& checkpoint, const LsRows& rows) {
  const Manifest& manifest = checkpoint.manifest;
  LsReport report;
  report.path = checkpoint.path;
  report.format = manifest.format;
  report.dialect = manifest.dialect;
  report.world_size = manifest.world_size;
  report.world_size_source = manifest.world_size_source;
  report.total_bytes = rows.total_bytes();
  report.total_numel = rows.total_numel();
  report.values = json_values(checkpoint);
  report.aliases = recorded_aliases(manifest);
  report.notes = manifest.notes;
  return report;
}

LsReport list_tensors(OpenedCheckpoint& checkpoint, const LsOptions& options) {
  const LsRows rows(checkpoint.manifest, options);
  LsReport report = list_all_but_rows(checkpoint, rows);
  report.tensors.reserve(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) report.tensors.push_back(rows[i]);
  return report;
}

}  // namespace tessera
