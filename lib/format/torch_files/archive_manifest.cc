#include "lib/format/torch_files/archive_manifest.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/tensor/packed_chunks.h>

#include <algorithm>
#include <deque>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "lib/base/append.h"
#include "lib/format/findings.h"
#include "lib/format/torch_files/archive_source.h"
#include "lib/format/torch_files/root_option.h"
#include "lib/state/edit/tensor_remapper.h"

namespace tessera {
namespace {

constexpr std::uint64_t kMaxLeaves = std::uint64_t{1} << 24;

void check_piece(const ArchiveTensor& tensor, const TensorSpec& spec, const ArchivePiece& piece) {
  const std::int64_t numel = piece.chunk.numel(), stored = tensor.shape.numel();
  if (tensor.dtype != spec.dtype)
    fail(Code::kCorrupt, fmt::format("a part of dtype {} of a tensor of dtype {}",
                                     torch_name(tensor.dtype), torch_name(spec.dtype)));
  if (numel < 0 || piece.first_element < 0 || piece.first_element > stored ||
      numel > stored - piece.first_element)
    fail(Code::kCorrupt,
         fmt::format("elements [{}, {} + {}) are asked of a stored tensor of shape {}",
                     piece.first_element, piece.first_element, numel, tensor.shape.to_string()));
  if (!ChunkView(piece.chunk).lies_in(spec.shape))
    fail(Code::kCorrupt, fmt::format("a part {} leaves the tensor of shape {}",
                                     piece.chunk.to_string(), spec.shape.to_string()));
  const bool as_it_stands = piece.chunk.is_whole_box() && piece.chunk.box.shape == tensor.shape;
  if (!as_it_stands && (!is_dense(tensor) || tensor.quant >= 0))
    fail(Code::kUnsupported, "part of a stored tensor that is strided, sparse or quantized");
}

/// Whether an archive was refused for what it names, not for damage: read without that rule, it
/// says something else, or nothing.
bool is_refusal(const Directory& directory, const std::string& path, const Status& refused,
                std::uint64_t pickle_limit_bytes) {
  try {
    ArchiveOptions options;
    options.collect_denied = true;
    options.allow_opaque_root = true;
    options.pickle_limit_bytes = pickle_limit_bytes;
    const auto file = directory.open(path);
    open_torch_archive(ByteWindow::whole(*file), options);
    return true;
  } catch (const Error& error) {
    return error.status().message != refused.message;
  }
}

}  // namespace

struct ArchiveManifestBuilder::Rep {
  struct File {
    TorchArchive archive;
    std::unordered_map<std::uint32_t, std::uint32_t> embedded;  // archive tensor -> ours
    std::unique_ptr<TensorRemapper> remap;
  };

  Rep(const Directory& from, const ReadOptions& read) : directory(from), options(read) {}

  /// The value with references to tensors of the manifest, which are embedded in leaf `name`.
  Value remapped(std::uint32_t file, const Value& value, const std::string& name) {
    leaf = name;
    kept.push_back(value);  // a remapper knows shared nodes by address: they must not be reused
    return (*files.at(file).remap)(value);
  }
  std::uint32_t embed(std::uint32_t file, std::uint32_t index) {
    File& of = files.at(file);
    if (const auto known = of.embedded.find(index); known != of.embedded.end())
      return known->second;
    const std::uint32_t number = add_whole(file, index, leaf);
    out.tensors[number].embedded = true;
    of.embedded.emplace(index, number);
    return number;
  }

  std::uint32_t add_whole(std::uint32_t file, std::uint32_t index, const std::string& name) {
    const ArchiveTensor& tensor = files.at(file).archive.tensors[index];
    const ArchivePiece whole{Chunk::whole_of(Box::whole(tensor.shape)), file, index, 0};
    const std::uint32_t number = add_pieces(name, {tensor.dtype, tensor.shape}, {&whole, 1});
    out.tensors[number].is_parameter = tensor.is_parameter;
    out.tensors[number].requires_grad = tensor.requires_grad;
    return number;
  }

  std::uint32_t add_pieces(const std::string& name, const TensorSpec& spec,
                           std::span<const ArchivePiece> pieces) {
    StoredTensor stored;
    stored.name = name;
    stored.spec = spec;
    stored.first_chunk = out.chunks.size();
    for (const ArchivePiece& piece : pieces) {
      const TorchArchive& archive = files.at(piece.file).archive;
      TESSERA_CHECK(piece.tensor < archive.tensors.size());
      in_file(out.files[piece.file].path,
              [&] { check_piece(archive.tensors[piece.tensor], spec, piece); });
      out.chunks.add(piece.chunk, pending_source(archive, piece.file, piece.tensor,
                                                 piece.first_element, piece.chunk.numel()));
    }
    stored.chunk_count = static_cast<std::uint32_t>(pieces.size());
    const auto number = static_cast<std::uint32_t>(out.tensors.size());
    out.tensors.push_back(std::move(stored));
    if (pieces.size() == 1) add_quant(pieces[0], number);
    return number;
  }
  void add_quant(const ArchivePiece& piece, std::uint32_t number) {
    const TorchArchive& archive = files[piece.file].archive;
    const std::int32_t quant = archive.tensors[piece.tensor].quant;
    if (quant < 0) return;
    QuantParams params = archive.quant[static_cast<std::size_t>(quant)];
    const std::string name = out.tensors[number].name;
    params.scales = remapped(piece.file, params.scales, name);
    params.zero_points = remapped(piece.file, params.zero_points, name);
    out.quant.push_back(std::move(params));
    out.tensors[number].quant = static_cast<std::int32_t>(out.quant.size() - 1);
  }

  const Directory& directory;
  ReadOptions options;
  std::deque<File> files;
  std::deque<Value> kept;
  std::string leaf;  // the entry whose value is being taken
  Manifest out;
};

ArchiveManifestBuilder::ArchiveManifestBuilder(const Directory& directory,
                                               const ReadOptions& options)
    : rep_(std::make_unique<Rep>(directory, options)) {}

const ReadOptions& ArchiveManifestBuilder::options() const { return rep_->options; }
ArchiveManifestBuilder::~ArchiveManifestBuilder() = default;

std::uint32_t ArchiveManifestBuilder::open(const std::string& path) {
  Rep& rep = *rep_;
  ArchiveOptions options;
  options.collect_denied = rep.options.list_globals;
  options.allow_opaque_root = rep.options.list_globals || rep.options.own.get(kAnyRoot);
  options.modules_as_state = true;
  options.pickle_limit_bytes = rep.options.pickle_limit_bytes;
  StoredFile stored{path, 0, 0};
  TorchArchive archive;
  in_file(path, [&] {
    const auto file = rep.directory.open(path);
    stored.size_bytes = file->size_bytes();
    if (const auto info = rep.directory.stat(path)) stored.mtime_ns = info->mtime_ns;
    archive = open_torch_archive(ByteWindow::whole(*file), options);
    stored.is_archive = !archive.legacy;
  });
  for (GlobalUse& use : archive.globals) use.file = path;
  for (Note& note : archive.notes) note.file = path;
  Manifest& out = rep.out;
  out.globals.insert(out.globals.end(), archive.globals.begin(), archive.globals.end());
  append(out.notes, archive.notes);
  const auto number = static_cast<std::uint32_t>(rep.files.size());
  TESSERA_CHECK(number == out.files.size());
  out.files.push_back(std::move(stored));
  rep.files.push_back({std::move(archive), {}, nullptr});
  rep.files.back().remap = std::make_unique<TensorRemapper>(
      [&rep, number](std::uint32_t index) { return rep.embed(number, index); });
  return number;
}

std::optional<std::uint32_t> ArchiveManifestBuilder::try_open(const std::string& path,
                                                              Status& why) {
  try {
    return open(path);
  } catch (const Error& error) {
    const bool lost = error.code() != Code::kUnsupported && tolerates(rep_->options, error.code());
    if (!lost ||
        is_refusal(rep_->directory, path, error.status(), rep_->options.pickle_limit_bytes))
      throw;
    why = error.status();
    return std::nullopt;
  }
}

const TorchArchive& ArchiveManifestBuilder::archive(std::uint32_t file) const {
  return rep_->files.at(file).archive;
}

void ArchiveManifestBuilder::add_state(std::uint32_t file, const Value& value, const Path& prefix,
                                       std::optional<std::int64_t> rank) {
  StateDict& out = rep_->out.state;
  ValueBudget budget(kMaxLeaves);
  StateDict state = flatten(value, budget);
  const std::size_t before = out.entries.size();
  for (LeftOut& left : std::exchange(rep_->files.at(file).archive.left_out, {})) {
    if (!prefix.empty())
      left.name =
          left.name.empty() ? dotted(prefix) : fmt::format("{}.{}", dotted(prefix), left.name);
    rep_->out.left_out.push_back(std::move(left));
  }
  const auto place = [&](Path& path) { path.insert(path.begin(), prefix.begin(), prefix.end()); };
  for (StateEntry& entry : state.entries) {
    place(entry.path);
    entry.rank = rank;
    if (!prefix.empty()) entry.name = dotted(entry.path);
    in_tensor(entry.name, [&] {
      entry.value =
          entry.value.is_tensor()
              ? Value::tensor(rep_->add_whole(file, entry.value.tensor_index(), entry.name))
              : rep_->remapped(file, entry.value, entry.name);
    });
    out.entries.push_back(std::move(entry));
  }
  for (ContainerNote& note : state.containers) {
    place(note.path);
    note.attributes = rep_->remapped(file, note.attributes, dotted(note.path));
    note.entries_before = before + std::min(note.entries_before, state.entries.size());
    out.containers.push_back(std::move(note));
  }
}

std::uint32_t ArchiveManifestBuilder::add_tensor(const Path& path, const TensorSpec& spec,
                                                 std::span<const ArchivePiece> pieces) {
  std::string name = dotted(path);
  const std::uint32_t number =
      in_tensor(name, [&] { return rep_->add_pieces(name, spec, pieces); });
  rep_->out.state.entries.push_back({std::move(name), path, Value::tensor(number)});
  return number;
}

StoredTensor& ArchiveManifestBuilder::tensor(std::uint32_t index) {
  return rep_->out.tensors.at(index);
}

void ArchiveManifestBuilder::add_value(std::uint32_t file, const Path& path, const Value& value) {
  std::string name = dotted(path);
  Value mine = adopt(file, value, name);
  rep_->out.state.entries.push_back({std::move(name), path, std::move(mine)});
}

Value ArchiveManifestBuilder::adopt(std::uint32_t file, const Value& value,
                                    const std::string& name) {
  return in_tensor(name, [&] { return rep_->remapped(file, value, name); });
}

Manifest& ArchiveManifestBuilder::manifest() { return rep_->out; }

Manifest ArchiveManifestBuilder::finish(std::string format, std::string dialect) {
  Manifest& out = rep_->out;
  std::unordered_set<std::string_view> names;
  for (const StateEntry& entry : out.state.entries)
    if (!names.insert(entry.name).second)
      fail(Code::kCorrupt, fmt::format("two entries are named \"{}\"", printable(entry.name)));
  out.format = std::move(format);
  out.dialect = std::move(dialect);
  return std::move(out);
}

}  // namespace tessera
