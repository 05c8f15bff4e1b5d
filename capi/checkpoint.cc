// Checkpoints held open: their tensors' names, types and bytes.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/json.h>
#include <tessera/ops/ls.h>
#include <tessera/ops/open.h>
#include <tessera/reshard/fill.h>
#include <tessera/reshard/plan.h>
#include <tessera/state/listed_tensors.h>
#include <tessera/state/roles.h>
#include <tessera/storage/file_system.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "capi/support.h"
#include "tools/command.h"
#include "tools/documents/json_report.h"

struct tessera_checkpoint {
  std::unique_ptr<tessera::FileSystem> fs;
  tessera::ReadOptions read;
  tessera::OpenedCheckpoint opened;
  std::vector<std::uint32_t> leaves;
  std::unordered_map<std::string_view, std::uint32_t> by_name;
  std::vector<std::string> names;  // ended by NUL, as SharedText is not; in the order of `leaves`
  std::unordered_map<std::uint32_t, std::size_t> place_in_leaves;
  std::mutex locating;  // locate() changes the manifest
  std::once_flag archives_checked;
};

namespace tessera::capi {
namespace {

void open(tessera_checkpoint& c, const char* path, const char* options) {
  Request request(options, "options");
  OpenOptions open;
  open.from = request.text("from");
  open.selection.root = request.text("root");
  open.selection.include = request.texts("include");
  open.selection.exclude = request.texts("exclude");
  if (const std::string only = request.text("only"); !only.empty())
    open.selection.only = parse_part(only);
  tools::Arguments arguments;
  if (const auto limit = request.size("mem_limit", 0); limit > 0) arguments.mem_limit_bytes = limit;
  if (const auto threads = request.number("threads"))
    arguments.threads = static_cast<int>(std::clamp<std::int64_t>(*threads, 1, 1024));
  request.finish();
  open.read = tools::read_options(arguments);
  c.read = open.read;
  c.fs = make_posix_file_system();
  c.opened = open_checkpoint(*c.fs, path, open);
  c.leaves = listed_tensors(c.opened.manifest);
  c.names.reserve(c.leaves.size());  // views into it are kept
  for (const std::uint32_t index : c.leaves) {
    const SharedText& name = c.opened.manifest.tensors[index].name;
    if (name.view().find('\0') != std::string_view::npos)
      in_tensor(name, [] {
        fail(Code::kUnsupported, "its name holds a zero byte, which would end it here",
             "\"exclude\" leaves it out");
      });
    c.place_in_leaves.emplace(index, c.names.size());
    c.names.emplace_back(name);
    c.by_name.emplace(c.names.back(), index);
  }
}

const StoredTensor& tensor_of(const tessera_checkpoint& c, std::uint32_t index) {
  if (!c.place_in_leaves.contains(index))
    fail(Code::kOutOfRange, fmt::format("{} is no tensor's index", index));
  return c.opened.manifest.tensors[index];
}

tessera_tensor describe(const tessera_checkpoint& c, std::uint32_t index) {
  const StoredTensor& stored = tensor_of(c, index);
  const auto extents = stored.spec.shape.extents();
  return {index,
          static_cast<std::uint32_t>(extents.size()),
          c.names[c.place_in_leaves.at(index)].c_str(),
          torch_name(stored.spec.dtype).data(),
          kind_name(stored.kind).data(),
          extents.data(),
          static_cast<std::uint64_t>(stored.spec.size_bytes())};
}

std::uint32_t find(const tessera_checkpoint& c, const char* name) {
  const auto found = c.by_name.find(name);
  if (found != c.by_name.end()) return found->second;
  std::vector<std::string_view> names(c.names.begin(), c.names.end());
  const std::string near = nearest(name, names);
  fail(Code::kInvalidArgument, fmt::format("no tensor is called \"{}\"", printable(name)),
       near.empty() ? "" : fmt::format("did you mean {}?", near));
}

void locate(tessera_checkpoint& c, std::uint32_t index) {
  const std::lock_guard lock(c.locating);
  const std::uint32_t one[] = {index};
  c.opened.locate(one, c.read);
}

/// [begin, end) of each dim, or all of it.
Box box_of(const StoredTensor& stored, const std::int64_t* begin, const std::int64_t* end) {
  Box box = Box::whole(stored.spec.shape);
  if ((begin == nullptr) != (end == nullptr))
    fail(Code::kInvalidArgument, "begin and end come together");
  if (begin == nullptr) return box;
  std::vector<std::int64_t> extents;
  for (int d = 0; d < stored.spec.shape.rank(); ++d) {
    if (begin[d] < 0 || end[d] < begin[d] || end[d] > stored.spec.shape[d])
      fail(Code::kOutOfRange, fmt::format("[{}, {}) of dim {}, which has {}", begin[d], end[d], d,
                                          stored.spec.shape[d]));
    box.origin[static_cast<std::size_t>(d)] = begin[d];
    extents.push_back(end[d] - begin[d]);
  }
  box.shape = Shape(extents);
  return box;
}

void read(tessera_checkpoint& c, std::uint32_t index, const std::int64_t* begin,
          const std::int64_t* end, void* data, std::size_t bytes, Progress& progress,
          CancelToken& cancel) {
  const StoredTensor& stored = tensor_of(c, index);
  in_tensor(stored.name, [&] {
    const Box box = box_of(stored, begin, end);
    const bool whole = box == Box::whole(stored.spec.shape);
    if (!whole && is_sub_byte(stored.spec.dtype))
      fail(Code::kUnsupported, "its elements are no whole bytes: it is read whole");
    const auto size = static_cast<std::uint64_t>(
        whole ? stored.spec.size_bytes() : box.numel() * element_bytes(stored.spec.dtype));
    if (size != bytes)
      fail(Code::kInvalidArgument, fmt::format("the block has {} bytes, not {}", size, bytes));
    if (size == 0) return;
    require(data, "data");
    locate(c, index);
    TransferOptions transfer;
    transfer.memory_limit_bytes = c.read.memory_limit_bytes;
    transfer.threads = c.read.threads;
    transfer.progress = &progress;
    transfer.cancel = &cancel;
    if (is_sub_byte(stored.spec.dtype)) {
      const TensorReader reader(c.opened.manifest, *c.opened.directory, transfer);
      reader.read(index, 0, stored.spec.shape.numel(),
                  {static_cast<std::byte*>(data), static_cast<std::size_t>(size)});
    } else {
      const MemoryTarget target{index, Chunk::whole_of(box), static_cast<std::byte*>(data), {}};
      const OutputPlan output = memory_plan(c.opened.manifest, {&target, 1});
      const Plan plan(c.opened.manifest, output);
      fill(c.opened.manifest, *c.opened.directory, output, plan, {&target, 1}, transfer);
    }
    std::call_once(c.archives_checked, [&] { c.opened.check_archives(); });
  });
}

/// The extent that all of the tensor is, as it is in memory.
const Source& dense_extent(const tessera_checkpoint& c, const StoredTensor& stored) {
  const Manifest& manifest = c.opened.manifest;
  const bool one = stored.chunk_count == 1 && !stored.cast_from &&
                   manifest.chunk(stored, 0) == Chunk::whole_of(Box::whole(stored.spec.shape));
  if (one) {
    const Source& source = manifest.source(stored, 0);
    if (source.kind == Source::Kind::kExtent && source.flags == 0 && source.side == 0)
      return source;
  }
  fail(Code::kUnsupported, "its bytes do not lie in one row of one file, as they are");
}

Value description(tessera_checkpoint& c) {
  const Manifest& manifest = c.opened.manifest;
  tools::JsonObject out;
  out.add("path", c.opened.display);
  out.add("format", manifest.format);
  out.add("dialect", manifest.dialect);
  out.add("world_size", manifest.world_size);
  ValueList optimizers;
  for (const OptimizerRoot& root : find_roles(manifest.state).optimizers)
    optimizers.push_back(tools::json_text(root.name));
  out.add("optim", Value::list(std::move(optimizers)));
  std::vector<Note> notes = c.opened.notes;
  notes.insert(notes.end(), manifest.notes.begin(), manifest.notes.end());
  out.add("notes", tools::json_notes(notes));
  out.add("values", tools::json_values_object(json_values(c.opened)));
  return out.take();
}

}  // namespace
}  // namespace tessera::capi

namespace capi = tessera::capi;

tessera_error tessera_open(const char* path, const char* options, tessera_checkpoint** checkpoint) {
  return capi::guarded([&] {
    capi::require(path, "path");
    capi::require(checkpoint, "checkpoint");
    auto opened = std::make_unique<tessera_checkpoint>();
    capi::open(*opened, path, options);
    *checkpoint = opened.release();
  });
}

void tessera_close(tessera_checkpoint* checkpoint) { delete checkpoint; }

tessera_error tessera_describe(tessera_checkpoint* checkpoint, char** json) {
  return capi::guarded([&] {
    capi::require(checkpoint, "checkpoint");
    capi::require(json, "json");
    const std::lock_guard lock(checkpoint->locating);
    *json = capi::text_for_caller(tessera::dump_json(capi::description(*checkpoint)));
  });
}

size_t tessera_tensor_count(const tessera_checkpoint* checkpoint) {
  return checkpoint == nullptr ? 0 : checkpoint->leaves.size();
}

tessera_error tessera_tensor_at(tessera_checkpoint* checkpoint, size_t i, tessera_tensor* tensor) {
  return capi::guarded([&] {
    capi::require(checkpoint, "checkpoint");
    capi::require(tensor, "tensor");
    if (i >= checkpoint->leaves.size())
      tessera::fail(tessera::Code::kOutOfRange,
                    fmt::format("tensor {} of {}", i, checkpoint->leaves.size()));
    *tensor = capi::describe(*checkpoint, checkpoint->leaves[i]);
  });
}

tessera_error tessera_find(tessera_checkpoint* checkpoint, const char* name,
                           tessera_tensor* tensor) {
  return capi::guarded([&] {
    capi::require(checkpoint, "checkpoint");
    capi::require(name, "name");
    capi::require(tensor, "tensor");
    *tensor = capi::describe(*checkpoint, capi::find(*checkpoint, name));
  });
}

tessera_error tessera_read(tessera_checkpoint* checkpoint, uint32_t index, const int64_t* begin,
                           const int64_t* end, void* data, size_t bytes,
                           const tessera_watch* watch) {
  return capi::guarded([&] {
    capi::require(checkpoint, "checkpoint");
    tessera::Progress progress;
    tessera::CancelToken cancel;
    capi::run_watched(watch, progress, cancel, [&] {
      capi::read(*checkpoint, index, begin, end, data, bytes, progress, cancel);
    });
  });
}

tessera_error tessera_place(tessera_checkpoint* checkpoint, uint32_t index, char** file,
                            uint64_t* offset) {
  return capi::guarded([&] {
    capi::require(checkpoint, "checkpoint");
    capi::require(file, "file");
    capi::require(offset, "offset");
    const tessera::StoredTensor& stored = capi::tensor_of(*checkpoint, index);
    tessera::in_tensor(stored.name, [&] {
      capi::locate(*checkpoint, index);
      const tessera::OpenedCheckpoint& opened = checkpoint->opened;
      const tessera::Source& source = capi::dense_extent(*checkpoint, stored);
      *file = capi::text_for_caller(opened.directory->path() + "/" +
                                    opened.manifest.files[source.file].path);
      *offset = source.offset;
    });
  });
}
