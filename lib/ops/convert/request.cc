#include "lib/ops/convert/request.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/format/registry.h>
#include <tessera/format/safetensors.h>
#include <tessera/format/training_folder.h>
#include <tessera/storage/checksum.h>
#include <tessera/storage/stage.h>

#include <algorithm>
#include <map>
#include <optional>
#include <type_traits>
#include <vector>

#include "lib/ops/convert/flags.h"

namespace tessera {

namespace {

constexpr std::size_t kNameDigits = 16;

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
  template <class T>
    requires std::is_enum_v<T> || std::is_same_v<T, bool>
  FieldHash& add(T value) {
    return add(static_cast<std::uint64_t>(value));
  }
  FieldHash& add(const std::string& text) { return add(std::string_view(text)); }
  FieldHash& add(const char* text) { return add(std::string_view(text)); }
  FieldHash& add(std::int64_t number) { return add(static_cast<std::uint64_t>(number)); }
  template <class T>
  FieldHash& add(const std::optional<T>& value) {
    add(value.has_value());
    return value ? add(*value) : *this;
  }
  template <class T>
  FieldHash& add(const std::vector<T>& list) {
    return add_all(list);
  }
  template <class K, class V>
  FieldHash& add(const std::map<K, V>& map) {
    return add_all(map);
  }
  template <class A, class B>
  FieldHash& add(const std::pair<A, B>& pair) {
    return add(pair.first).add(pair.second);
  }
  FieldHash& add(const Mesh& mesh) { return add(mesh.to_string()); }
  FieldHash& add(const Placement& placement) { return add(placement.to_string()); }
  FieldHash& add(const DTypeRule& rule) { return add(rule.glob).add(rule.dtype); }
  FieldHash& add(const RulesRequest& rules) {
    return add(rules.name).add(rules.text).add(rules.side).add(rules.parameters);
  }
  std::string finish() { return hex(hash_.finish()); }

 private:
  template <class List>
  FieldHash& add_all(const List& list) {
    add(static_cast<std::uint64_t>(list.size()));
    for (const auto& item : list) add(item);
    return *this;
  }

  Sha256 hash_;
};

/// Feeds the name and the field of every flag that the result depends on.
class FlagHash {
 public:
  explicit FlagHash(FieldHash& hash) : hash_(hash) {}
  void group(const char* /*heading*/) {}
  template <class Field>
  void run_flag(const ConvertFlag& /*flag*/, const Field& /*field*/) {}
  template <class Field>
  void flag(const ConvertFlag& flag, const Field& field) {
    hash_.add(flag.names).add(field);
  }
  template <class Renames>
  void flag(const ConvertFlag& flag, NameFile<Renames> field) {
    hash_.add(flag.names).add(field.field);
  }
  template <class Bool, class Type>
  void flag(const ConvertFlag& flag, DTypeOrIndex<Bool, Type> field) {
    hash_.add(flag.names).add(field.dtype).add(field.as_index);
  }
  template <class Type>
  void flag(const ConvertFlag& flag, DTypeOrDefault<Type> field) {
    hash_.add(flag.names).add(field.dtype);
  }
  template <class Bool, class Text>
  void flag(const ConvertFlag& flag, OptionalFolder<Bool, Text> field) {
    hash_.add(flag.names).add(field.given).add(field.folder);
  }

 private:
  FieldHash& hash_;
};

const FormatDriver& known_format(const std::string& id) {
  if (const FormatDriver* driver = find_format(id)) return *driver;
  std::vector<std::string_view> known;
  for (const FormatDriver* format : all_formats()) {
    known.push_back(format->id());
    if (const std::string_view preset = format->capabilities().preset; !preset.empty())
      known.push_back(preset);
  }
  fail(Code::kInvalidArgument, fmt::format("there is no format \"{}\"", id),
       fmt::format("did you mean {}? known: {}", nearest(id, known), fmt::join(known, ", ")));
}

void check_ranks(const FormatDriver& driver, const TargetRequest& request) {
  const std::int64_t ranks = writing_ranks(driver, request);
  if (ranks < 1) fail(Code::kInvalidArgument, fmt::format("world size {} is not positive", ranks));
  if (ranks == 1 || driver.capabilities().many_ranks) return;
  const std::string asked = request.mesh
                                ? fmt::format("{} {}", kMeshFlag.flag, request.mesh->to_string())
                                : fmt::format("{} {}", kWorldSizeFlag.flag, ranks);
  fail(Code::kUnsupported, fmt::format("{}: {} holds one rank, not {}", asked, driver.id(), ranks),
       "add --to torch-dcp");
}

}  // namespace

const FormatDriver& resolve_target(const ConvertOptions& options, std::string_view source_format,
                                   TargetRequest& request) {
  if (!options.delta_from.empty()) source_format = safetensors_driver().id();
  const FormatDriver* of_file = find_result_format(options.destination);
  const std::string implied(of_file != nullptr ? of_file->id() : "");
  std::string id = options.to;
  if (const FormatDriver* of_preset = find_preset(id)) {
    id = of_preset->id();
    request.hf_preset = true;
  }
  if (id.empty()) id = implied.empty() ? std::string(source_format) : implied;
  if (!implied.empty() && implied != id) {
    fail(Code::kInvalidArgument,
         fmt::format("{} names one {} file, but the target format is {}", options.destination,
                     implied, id),
         "choose another name, or leave out --to");
  }
  const FormatDriver& driver = known_format(id);
  const Capabilities can = driver.capabilities();
  if (!can.writes && as_training_folder(driver) == nullptr)
    fail(Code::kUnsupported, fmt::format("{} is read, not written", id),
         "choose another format with --to, for example torch-dcp");
  check_ranks(driver, request);
  request.single_file = is_one_file(driver, options.destination);
  std::string stem = last_component(options.destination);
  if (request.single_file) stem = stem.substr(0, stem.find_last_of('.'));
  request.file_stem = stem;
  return driver;
}

std::int64_t writing_ranks(const FormatDriver& driver, const TargetRequest& request) {
  if (!request.mesh) return request.world_size.value_or(1);
  std::int64_t ranks = request.mesh->world_size();
  for (const MeshDim& dim : request.mesh->dims())
    if (dim.name == "vpp" && driver.capabilities().has_model_chunks) ranks /= dim.size;
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

void check_apart(const std::string& source, const std::string& destination,
                 std::string_view called) {
  auto inside = [](const std::string& outer, const std::string& inner) {
    return inner.starts_with(outer) &&
           (inner.size() == outer.size() || outer.ends_with('/') || inner[outer.size()] == '/');
  };
  if (source == destination) {
    fail(Code::kInvalidArgument, fmt::format("{} and DST are the same: {}", called, source),
         "write to a new path");
  }
  if (inside(source, destination) || inside(destination, source)) {
    fail(Code::kInvalidArgument,
         fmt::format("one of {} {} and DST {} lies inside the other", called, source, destination),
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
  FieldHash hash;
  hash.add("tessera.request/2").add(fs.canonical(options.source)).add(destination);
  hash.add(options.from).add(options.to).add(options.own.texts());
  const Selection& selection = options.selection;
  hash.add(selection.root).add(selection.include).add(selection.exclude).add(selection.only);
  FlagHash flags(hash);
  visit_convert_flags(options, flags);
  return hash.finish().substr(0, kNameDigits);
}

std::string times_hash(const Manifest& source) {
  FieldHash hash;
  for (const StoredFile& file : source.files) hash.add(static_cast<std::uint64_t>(file.mtime_ns));
  return hash.finish();
}

std::string plan_hash(const std::string& request, const Manifest& source, const OutputPlan& output,
                      const std::string& content) {
  FieldHash hash;
  hash.add("tessera.plan/2").add(request).add(source.format).add(content);
  hash.add(static_cast<std::uint64_t>(source.files.size()));
  for (const StoredFile& file : source.files) {
    hash.add(file.path).add(file.size_bytes);
  }
  hash.add(output.format).add(static_cast<std::uint64_t>(output.files.size()));
  for (const OutputFile& file : output.files) {
    hash.add(file.path).add(file.size_bytes).add(file.segment_count);
  }
  for (const Segment& segment : output.segments) {
    hash.add(segment.kind).add(segment.offset).add(segment.length);
    if (segment.kind != Segment::Kind::kTensor) continue;
    hash.add(source.tensors[segment.tensor].name.view());
    hash.add(output.chunks[segment.payload].to_string());
  }
  return request + hash.finish();
}

}  // namespace tessera
