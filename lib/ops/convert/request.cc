#include "lib/ops/convert/request.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/format/registry.h>
#include <tessera/storage/checksum.h>
#include <tessera/storage/stage.h>

#include <algorithm>
#include <array>
#include <vector>

namespace tessera {

namespace {

constexpr std::uint64_t kHfShardBytes = 5'000'000'000;
constexpr std::size_t kNameDigits = 16;

constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kSuffixes{{
    {".safetensors", "safetensors"},
    {".pt", "torch-save"},
    {".h5", "hdf5"},
}};

std::string last_component(const std::string& path) {
  return path.substr(path.find_last_of('/') + 1);
}

/// Feeds fields to a hash so that no two different lists of fields feed the same bytes.
class FieldHash {
 public:
  FieldHash& add(std::string_view text) {
    add(static_cast<std::uint64_t>(text.size()));
    hash_.update(as_bytes(text));
    return *this;
  }
  FieldHash& add(std::uint64_t number) {
    std::byte bytes[8];
    store_le(bytes, number);
    hash_.update(bytes);
    return *this;
  }
  template <class List>
  FieldHash& add_all(const List& list) {
    add(static_cast<std::uint64_t>(list.size()));
    for (const auto& item : list) add(item);
    return *this;
  }
  FieldHash& add(const std::pair<std::string, std::string>& pair) {
    return add(pair.first).add(pair.second);
  }
  std::string finish() { return hex(hash_.finish()); }

 private:
  Sha256 hash_;
};

template <class Enum>
std::uint64_t code(Enum value) {
  return static_cast<std::uint64_t>(value);
}

}  // namespace

std::string format_of_suffix(std::string_view destination) {
  for (const auto& [suffix, format] : kSuffixes) {
    if (destination.ends_with(suffix)) return std::string(format);
  }
  return {};
}

const FormatDriver& resolve_target(const ConvertOptions& options, std::string_view source_format,
                                   TargetRequest& request) {
  std::string implied = format_of_suffix(options.destination);
  std::string id = options.to;
  if (id == "hf") {
    id = "safetensors";
    request.hf_preset = true;
    if (request.max_shard_bytes == 0 && implied.empty()) request.max_shard_bytes = kHfShardBytes;
  }
  if (id.empty()) id = implied.empty() ? std::string(source_format) : implied;
  if (!implied.empty() && implied != id) {
    fail(Code::kInvalidArgument,
         fmt::format("{} names one {} file, but the target format is {}", options.destination,
                     implied, id),
         "choose another name, or leave out --to");
  }
  const FormatDriver* driver = find_format(id);
  if (driver == nullptr) {
    std::vector<std::string_view> known{"hf"};
    for (const FormatDriver* format : all_formats()) known.push_back(format->id());
    fail(Code::kInvalidArgument, fmt::format("there is no format \"{}\"", id),
         fmt::format("did you mean {}? known: {}", nearest(id, known), fmt::join(known, ", ")));
  }
  if (options.target.max_shard_bytes != 0 && id != "safetensors") {
    fail(Code::kInvalidArgument,
         fmt::format("--max-shard-size is for safetensors; {} is not split by size", id),
         "leave it out, or add --to safetensors");
  }
  Capabilities can = driver->capabilities();
  if (!can.writes) {
    fail(Code::kUnsupported, fmt::format("{} is read, not written", id),
         "choose another format with --to, for example torch-dcp");
  }
  if (!implied.empty() && !can.one_file_result) {
    fail(Code::kInvalidArgument, fmt::format("{} does not fit in one file", id));
  }
  const std::int64_t ranks = writing_ranks(*driver, request);
  if (ranks < 1) fail(Code::kInvalidArgument, fmt::format("world size {} is not positive", ranks));
  if (ranks > 1 && !can.many_ranks) {
    fail(Code::kUnsupported, fmt::format("{} holds one rank, not {}", id, ranks),
         "add --to torch-dcp");
  }
  request.single_file = !implied.empty();
  std::string stem = last_component(options.destination);
  if (request.single_file) stem = stem.substr(0, stem.find_last_of('.'));
  request.file_stem = stem;
  return *driver;
}

std::int64_t writing_ranks(const FormatDriver& driver, const TargetRequest& request) {
  if (!request.mesh) return request.world_size.value_or(1);
  std::int64_t ranks = request.mesh->world_size();
  for (const MeshDim& dim : request.mesh->dims())
    if (dim.name == "vpp" && driver.id().starts_with("megatron-")) ranks /= dim.size;
  return ranks;
}

std::string resolve_destination(const FileSystem& fs, const std::string& destination) {
  std::string path = destination;
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  if (path.empty()) fail(Code::kInvalidArgument, "DST is empty");
  const std::string there = existing_parent(fs, path);
  const std::string rest = path.substr(there == "." && !path.starts_with("./") ? 0 : there.size());
  const std::vector<std::string_view> parts = split(rest, '/');
  if (std::ranges::count_if(parts, [](std::string_view part) { return !part.empty(); }) == 1)
    return fs.canonical(path);
  std::string absolute = fs.canonical(there);
  for (const std::string_view part : parts) {
    if (part.empty() || part == ".") continue;
    if (part == "..")
      fail(Code::kInvalidArgument,
           fmt::format("DST {} leads out of a folder that does not exist", printable(path)));
    absolute += (absolute.ends_with('/') ? "" : "/") + std::string(part);
  }
  return absolute;
}

std::string existing_parent(const FileSystem& fs, const std::string& path) {
  std::string parent = path;
  while (true) {
    const std::size_t slash = parent.find_last_of('/');
    if (slash == std::string::npos) return ".";
    if (slash == 0) return "/";
    parent.resize(slash);
    if (fs.stat(parent)) return parent;
  }
}

void make_parents(FileSystem& fs, const std::string& destination) {
  const std::string there = existing_parent(fs, destination);
  for (std::size_t slash = destination.find('/', there.size() + (there == "/" ? 0 : 1));
       slash != std::string::npos; slash = destination.find('/', slash + 1)) {
    const std::string folder = destination.substr(0, slash);
    if (folder.empty() || folder == there) continue;
    try {
      fs.create_directory(folder);
    } catch (const Error& error) {
      if (error.code() != Code::kAlreadyExists) throw;  // another run made it meanwhile
    }
    fs.sync_directory(folder.substr(0, std::max<std::size_t>(1, folder.find_last_of('/'))));
  }
}

void check_apart(const std::string& source, const std::string& destination) {
  auto inside = [](const std::string& outer, const std::string& inner) {
    return inner.starts_with(outer) &&
           (inner.size() == outer.size() || outer.ends_with('/') || inner[outer.size()] == '/');
  };
  if (source == destination) {
    fail(Code::kInvalidArgument, fmt::format("SRC and DST are the same: {}", source),
         "write to a new path");
  }
  if (inside(source, destination) || inside(destination, source)) {
    fail(Code::kInvalidArgument,
         fmt::format("one of SRC {} and DST {} lies inside the other", source, destination),
         "write to a path next to the source");
  }
}

void check_not_a_part(const FileSystem& fs, const OpenedCheckpoint& source,
                      const std::string& destination) {
  std::string root = fs.canonical(source.path);
  if (!source.file.empty()) root.erase(root.find_last_of('/'));
  for (const StoredFile& file : source.manifest.files) {
    std::string path = root + "/" + file.path;
    if (fs.stat(path)) path = fs.canonical(path);  // a link is what it leads to
    const bool holds = path == destination || path.starts_with(destination + "/");
    if (!holds) continue;
    fail(Code::kInvalidArgument,
         fmt::format("SRC {} is made of {}, which DST {} would replace", printable(source.display),
                     printable(file.path), printable(destination)),
         "write to a path next to the source");
  }
}

void check_replaceable(const FileSystem& fs, const std::string& destination) {
  constexpr int kMostLooks = 10;
  std::vector<std::string> before;
  for (int look = 1;; ++look) {
    const std::optional<FileInfo> there = fs.stat(destination);
    if (!there || there->type != FileType::kDirectory) return;
    std::unique_ptr<Directory> directory;
    try {
      directory = fs.open_directory(destination);
    } catch (const Error& error) {
      if (error.code() == Code::kNotFound) return;
      throw;
    }
    std::vector<std::string> names;
    for (const FileInfo& info : directory->list()) names.push_back(info.name);
    if (names.empty() || directory->stat(kSealName)) return;
    if (!detect_format({directory.get(), "", destination}).candidates.empty()) return;
    // Another run may be replacing it: then what was opened here is being removed, file by file.
    if (names == before || look == kMostLooks)
      fail(Code::kInvalidArgument,
           fmt::format("{} is no checkpoint (it holds {}); --force does not remove it", destination,
                       printable(names.front())),
           "choose another DST, or remove it yourself");
    before = std::move(names);
  }
}

std::string request_hash(const FileSystem& fs, const ConvertOptions& options,
                         const std::string& destination) {
  const TargetRequest& target = options.target;
  FieldHash hash;
  hash.add("tessera.request/1").add(fs.canonical(options.source)).add(destination);
  hash.add(options.from).add(options.to);
  hash.add(static_cast<std::uint64_t>(target.world_size.value_or(0)));
  hash.add(static_cast<std::uint64_t>(target.zero_stage));
  hash.add(target.mesh ? target.mesh->to_string() : "");
  hash.add(static_cast<std::uint64_t>(target.placements.size()));
  for (const auto& [glob, placements] : target.placements) {
    hash.add(glob).add(static_cast<std::uint64_t>(placements.size()));
    for (const Placement& placement : placements) hash.add(placement.to_string());
  }
  hash.add_all(target.replicate).add(target.max_shard_bytes);
  hash.add(code(target.values)).add(code(target.opaque)).add(code(options.rank_state));
  const Selection& selection = options.selection;
  hash.add(selection.root).add_all(selection.include).add_all(selection.exclude);
  hash.add(selection.only ? 1 + code(*selection.only) : 0);
  hash.add(code(options.optim_keys)).add(std::uint64_t{options.prefer_master});
  hash.add(options.names.strip_prefix).add_all(options.names.map).add_all(options.names.renames);
  const Transformations& transform = options.transform;
  hash.add(std::uint64_t{transform.rules.has_value()});
  hash.add(std::uint64_t{transform.strict_rules});
  if (transform.rules) {
    const RulesRequest& rules = *transform.rules;
    hash.add(rules.name).add(rules.text).add(rules.side);
    hash.add(static_cast<std::uint64_t>(rules.parameters.size()));
    for (const auto& [name, number] : rules.parameters)
      hash.add(name).add(static_cast<std::uint64_t>(number));
  }
  hash.add(code(transform.tied));
  hash.add(static_cast<std::uint64_t>(transform.vocab_size.value_or(-1)));
  hash.add_all(transform.vocab_tensors);
  hash.add(transform.dtype ? 1 + code(*transform.dtype) : 0);
  hash.add(static_cast<std::uint64_t>(transform.keep_dtypes.size()));
  for (const DTypeRule& rule : transform.keep_dtypes)
    hash.add(rule.glob).add(rule.dtype ? 1 + code(*rule.dtype) : 0);
  hash.add(std::uint64_t{options.as_index.has_value()}).add(options.as_index.value_or(""));
  hash.add(std::uint64_t{options.dtype_as_index}).add(std::uint64_t{options.assume_plain});
  hash.add(std::uint64_t{options.copy_assets}).add(options.assets_directory);
  hash.add(std::uint64_t{options.salvage});
  return hash.finish().substr(0, kNameDigits);
}

std::string times_hash(const Manifest& source) {
  FieldHash hash;
  for (const StoredFile& file : source.files) hash.add(static_cast<std::uint64_t>(file.mtime_ns));
  return hash.finish();
}

std::string plan_hash(const std::string& request, const Manifest& source,
                      const OutputPlan& output) {
  FieldHash hash;
  hash.add("tessera.plan/1").add(request).add(source.format);
  hash.add(static_cast<std::uint64_t>(source.files.size()));
  for (const StoredFile& file : source.files) {
    hash.add(file.path).add(file.size_bytes);
  }
  hash.add(output.format).add(static_cast<std::uint64_t>(output.files.size()));
  for (const OutputFile& file : output.files) {
    hash.add(file.path).add(file.size_bytes).add(file.segment_count);
  }
  for (const Segment& segment : output.segments) {
    hash.add(code(segment.kind)).add(segment.offset).add(segment.length);
    if (segment.kind != Segment::Kind::kTensor) continue;
    hash.add(source.tensors[segment.tensor].name);
    hash.add(output.chunks[segment.payload].to_string());
  }
  return request + hash.finish();
}

}  // namespace tessera
