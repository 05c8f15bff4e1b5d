#include "lib/format/torch_checkpointing/metadata.h"

#include <fmt/format.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/json.h>
#include <tessera/encoding/pickle_reader.h>

#include <algorithm>
#include <set>

#include "lib/state/fields.h"
#include "lib/state/role_names.h"

namespace tessera::checkpointing {
namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 30;
constexpr std::string_view kDTensor = "DTensorShardingMetadata";
constexpr std::string_view kGeometry = "default_tensor_v1";

Value read_plain(const Directory& directory, std::uint64_t limit_bytes) {
  const auto file = directory.open(kMetadataFile);
  if (file->size_bytes() > kMostBytes) fail(Code::kCorrupt, "it is far too large");
  Bytes bytes(file->size_bytes());
  file->read_at(0, bytes);
  std::vector<GlobalUse> globals;
  const PickleGraph graph = read_pickle(bytes, {.collect_denied = false, .globals = &globals});
  if (!globals.empty())
    fail(Code::kCorrupt,
         fmt::format("it names {}, where torch_checkpointing writes plain data alone",
                     printable(globals.front().name)),
         "do not load it with Python");
  return decode_pickle(graph, graph.root(), {}, limit_bytes);
}

std::string json_file_name(const Field& field) {
  const std::string& name = field.text();
  bool safe = !name.empty() && name.front() != '/' && name.find('\0') == name.npos &&
              name.find('\\') == name.npos;
  for (const std::string_view part : split(name, '/'))
    safe = safe && !part.empty() && part != "." && part != "..";
  if (!safe) field.corrupt("a file that is not below the folder");
  return name;
}

DType dtype_of(const Field& field) {
  constexpr std::string_view kPrefix = "torch.";
  std::string_view name = field.text();
  if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
  const auto dtype = dtype_from_torch_name(name);
  if (!dtype) fail(Code::kUnsupported, fmt::format("element type \"{}\"", printable(field.text())));
  return *dtype;
}

Placement placement_of(const Field& field, const Shape& shape) {
  const std::string& type = field.at("type").text();
  if (type == "Replicate") return Placement::replicate();
  if (type != "Shard" && type != "StridedShard")
    fail(Code::kUnsupported, fmt::format("placement {}", printable(type)),
         "a partial tensor must be reduced before it is saved");
  const Field dim = field.at("dim");
  if (dim.count() >= shape.rank()) dim.refuse("a dim of the tensor");
  const int d = static_cast<int>(dim.count());
  if (type == "Shard") return Placement::shard(d);
  const Field factor = field.at("split_factor");
  if (factor.integer() < 1 || factor.integer() > kMostRanks) factor.refuse("a positive factor");
  return Placement::strided_shard(d, factor.integer());
}

void read_dtensor(const Field& data, Group& group) {
  const Field mesh = data.at("mesh_spec");
  std::vector<MeshDim> dims;
  std::int64_t size = 1;
  for (const std::int64_t extent : mesh.at("mesh_shape").integers()) {
    if (extent < 1 || extent > kMostRanks / size) mesh.corrupt("a mesh of impossible size");
    size *= extent;
    dims.push_back({fmt::format("dim_{}", dims.size()), extent});
  }
  group.device_type = mesh.at("device_type").text();
  group.mesh_data = mesh.at("mesh_data").counts();
  if (group.mesh_data.size() != static_cast<std::size_t>(size))
    mesh.corrupt("mesh_shape and mesh_data disagree");
  std::vector<Placement> placements;
  for (const Field& placement : data.at("placements").items())
    placements.push_back(placement_of(placement, group.spec.shape));
  if (placements.size() != dims.size()) data.corrupt("a mesh and placements of different lengths");
  group.layout = Layout(Mesh(std::move(dims)), std::move(placements));
}

Box box_of(const Field& begin, const Field& size) {
  Box box{begin.counts(), size.shape()};
  if (box.origin.size() != static_cast<std::size_t>(box.shape.rank()))
    size.corrupt("an offset and a size of different lengths");
  return box;
}

void read_geometry(const Field& data, Group& group) {
  const auto whole = data.at("global_offsets").items(), local = data.at("local_offsets").items(),
             sizes = data.at("local_sizes").items();
  if (whole.size() != sizes.size() || local.size() != sizes.size())
    data.corrupt("lists of pieces of different lengths");
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    Piece piece{box_of(local[i], sizes[i]), box_of(whole[i], sizes[i])};
    if (piece.whole.rank() != group.spec.shape.rank())
      sizes[i].corrupt("a piece with other dims than the tensor");
    for (int d = 0; d < piece.whole.rank(); ++d)
      if (piece.whole.shape[d] > group.spec.shape[d] ||
          piece.whole.begin(d) > group.spec.shape[d] - piece.whole.shape[d])
        sizes[i].corrupt("a piece that leaves the tensor");
    group.pieces.push_back(std::move(piece));
  }
}

Group read_group(const Field& field, std::int64_t world_size) {
  Group group;
  const Field sharding = field.at("sharding_metadata"), data = sharding.at("data");
  group.spec = {dtype_of(data.at("dtype")), data.at("global_shape").shape()};
  group.ranks = field.at("ranks").counts();
  for (const std::int64_t rank : group.ranks)
    if (rank >= world_size) field.at("ranks").corrupt("a rank outside of the world");
  const std::string& type = sharding.at("type").text();
  if (type == kDTensor)
    read_dtensor(data, group);
  else if (type == kGeometry)
    read_geometry(data, group);
  else
    fail(Code::kUnsupported, fmt::format("sharding of type \"{}\"", printable(type)));
  return group;
}

/// "[\"state\",\"a.b\",0]": texts are keys, whole numbers are places in lists.
std::vector<Value> path_parts(const std::string& text) {
  const Value parsed = parse_json(as_bytes(text));
  if (parsed.kind() != Value::Kind::kList) fail(Code::kCorrupt, "a path that is no list");
  for (const Value& part : parsed.as_list())
    if (!part.is_string() && !(part.is_int() && part.as_int() >= 0))
      fail(Code::kCorrupt, fmt::format("a path with a part of another kind: {}", printable(text)));
  return parsed.as_list();
}

void add_path(Item& item, std::span<const Value> parts, const Field& groups,
              std::int64_t world_size) {
  PathEntry entry;
  for (const Value& part : parts) {
    const std::string name = part.is_string() ? part.as_string() : std::to_string(part.as_int());
    entry.stored_name += (entry.path.empty() ? "" : ".") + name;
    entry.path.push_back(part.is_string() ? key_item(name) : index_item(part.as_int()));
  }
  in_tensor(entry.stored_name, [&] {
    for (const Field& group : groups.items()) entry.groups.push_back(read_group(group, world_size));
    if (entry.groups.empty()) groups.corrupt("a path that no rank has");
    for (const Group& group : entry.groups)
      if (group.spec != entry.groups.front().spec)
        groups.corrupt("groups of ranks with other shapes or types");
    const std::string name = entry.stored_name;
    if (!item.paths.emplace(name, std::move(entry)).second)
      fail(Code::kUnsupported, "two paths join to this one name");
  });
}

void add_layout(Item& item, std::int64_t rank, const Field& layout) {
  if (layout.value().is_none()) return;
  item.layouts[rank] = {json_file_name(layout.at("file_path")),
                        layout.at("serialization_format").at("type").text()};
}

std::int64_t rank_of(const Field& key, std::int64_t world_size) {
  const std::int64_t rank =
      key.value().is_string() ? decimal_number(key.text()).value_or(-1) : key.count();
  if (rank < 0 || rank >= world_size) key.refuse("a rank of the world");
  return rank;
}

void read_version_2(const Field& metadata, Metadata& out) {
  for (const auto& [key, item] : metadata.entries()) {
    Item& made = out.items[key.text()];
    for (const auto& [path, groups] : item.at("nested_path_to_metadata").entries())
      add_path(made, path_parts(path.text()), groups, out.world_size);
    for (const auto& [rank, layout] : item.at("rank_to_layout_info").entries())
      add_layout(made, rank_of(rank, out.world_size), layout);
  }
}

void read_version_1(const Field& root, Metadata& out) {
  for (const auto& [path, groups] : root.at("metadata").entries()) {
    const std::vector<Value> parts = path_parts(path.text());
    if (parts.empty() || !parts[0].is_string()) path.corrupt("a path without its item");
    add_path(out.items[parts[0].as_string()], std::span(parts).subspan(1), groups, out.world_size);
  }
  for (const auto& [rank, layouts] : root.at("rank_to_layout_info_mappings").entries())
    for (const auto& [item, layout] : layouts.entries())
      add_layout(out.items[item.text()], rank_of(rank, out.world_size), layout);
}

std::string first_device_type(const Metadata& metadata) {
  for (const auto& [name, item] : metadata.items)
    for (const auto& [path, entry] : item.paths)
      for (const Group& group : entry.groups)
        if (!group.device_type.empty()) return group.device_type;
  return "";
}

void check_files(const Metadata& metadata) {
  std::set<std::string> files;
  for (const auto& [name, item] : metadata.items)
    for (const auto& [rank, layout] : item.layouts)
      if (!files.insert(layout.file).second)
        fail(Code::kCorrupt, fmt::format("two layouts name the file {}", printable(layout.file)));
}

}  // namespace

std::vector<Chunk> chunks_on(const Group& group, std::int64_t rank) {
  if (!group.layout) return {};
  const auto at = std::ranges::find(group.mesh_data, rank);
  if (at == group.mesh_data.end()) return {};
  return group.layout->chunks_of(at - group.mesh_data.begin(), group.spec.shape);
}

std::optional<Metadata> read_metadata(const Directory& directory,
                                      std::uint64_t pickle_limit_bytes) {
  const auto info = directory.stat(kMetadataFile);
  if (!info) return std::nullopt;
  return in_file(std::string(kMetadataFile), [&] {
    if (info->type != FileType::kRegular) fail(Code::kCorrupt, "it is no regular file");
    const Value value = read_plain(directory, pickle_limit_bytes);
    const Field root(value);
    Metadata out;
    const auto version = root.find_present("version");
    out.version = version ? version->text() : "1.0";
    if (out.version != "2.0" && out.version != "1.0")
      fail(Code::kUnsupported, fmt::format("metadata.pkl of version \"{}\"; 1.0 and 2.0 are read",
                                           printable(out.version)));
    const Field world = root.at("world_size");
    out.world_size = world.count();
    if (out.world_size < 1 || out.world_size > kMostRanks) world.refuse("a number of ranks");
    if (out.version == "2.0")
      read_version_2(root.at("metadata"), out);
    else
      read_version_1(root, out);
    check_files(out);
    out.device_type = first_device_type(out);
    return std::optional(std::move(out));
  });
}

}  // namespace tessera::checkpointing
