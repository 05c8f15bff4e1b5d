#include "lib/state/merge_parts.h"

#include <tessera/base/error.h>
#include <tessera/state/aliases.h>
#include <tessera/state/roles.h>

#include <optional>
#include <utility>

#include "lib/base/append.h"

namespace tessera {
namespace {

/// Adds one part at a time; what was there before gives the offset of every index.
class PartsMerger {
 public:
  explicit PartsMerger(Manifest& out) : out_(out) {}

  void add(PartManifest& part) {
    part_ = &part.manifest;
    folder_ = part.folder.empty() ? "" : part.folder + "/";
    if (!part.key.empty()) put_below(part.key);
    add_description();
    add_tensors();
    add_state();
    add_side_tables();  // last: the offsets above are the sizes before
  }

 private:
  void put_below(const std::string& key) {
    const auto named = [&key](const std::string& name) {
      return name.empty() ? key : key + "." + name;
    };
    const auto place = [&key](Path& path) { path.insert(path.begin(), key_item(key)); };
    for (StoredTensor& tensor : part_->tensors) tensor.name = named(tensor.name);
    for (ContainerNote& note : part_->state.containers) place(note.path);
    for (StateEntry& entry : part_->state.entries) {
      if (!entry.path.empty() || entry.name.empty()) place(entry.path);
      entry.name = named(entry.name);
    }
    for (Note& note : part_->notes)
      if (!note.tensor.empty()) note.tensor = named(note.tensor);
    edit_aliases(*part_, [&](const Alias& alias) {
      return std::optional(Alias(named(alias.first), named(alias.second)));
    });
  }

  void add_description() {
    if (out_.files.empty() && out_.tensors.empty() && out_.state.entries.empty()) {
      out_.format = part_->format;
      out_.names_own_bytes = part_->names_own_bytes;
      out_.dialect = part_->dialect;
      out_.world_size = part_->world_size;
      out_.world_size_source = part_->world_size_source;
    } else if (out_.world_size != part_->world_size) {
      out_.world_size.reset();
      out_.world_size_source = "the parts were written by different numbers of ranks";
    }
    for (const auto& [key, value] : part_->provenance) out_.provenance.emplace(key, value);
    for (Note& note : part_->notes) {
      if (!note.file.empty()) note.file = folder_ + note.file;
      out_.notes.push_back(std::move(note));
    }
    for (GlobalUse& use : part_->globals) {
      use.file = folder_ + use.file;
      out_.globals.push_back(std::move(use));
    }
  }

  void add_tensors() {
    first_tensor_ = static_cast<std::uint32_t>(out_.tensors.size());
    for (StoredTensor& tensor : part_->tensors) {
      const std::uint64_t begin = out_.chunks.size();
      for (std::uint32_t c = 0; c < tensor.chunk_count; ++c)
        out_.chunks.add(part_->chunk(tensor, c), moved(part_->source(tensor, c)));
      tensor.first_chunk = begin;
      if (tensor.quant >= 0) tensor.quant += static_cast<std::int32_t>(out_.quant.size());
      out_.tensors.push_back(std::move(tensor));
    }
  }

  Source moved(Source source) const {
    const auto offset = [](const auto& table) { return static_cast<std::uint32_t>(table.size()); };
    source.file += offset(out_.files);
    if (source.record != 0) source.record += offset(out_.records);
    switch (source.kind) {
      case Source::Kind::kPending:  // torch-dcp: 1 + codec chain of the item, 0 = none
        if (source.side != 0) source.side += offset(out_.codecs);
        break;
      case Source::Kind::kExtent:
        if (source.side != 0) source.side += offset(out_.strides);
        break;
      case Source::Kind::kCoded:
        source.side += source.view != 0 ? offset(out_.views) : offset(out_.codecs);
        break;
      case Source::Kind::kInline:
      case Source::Kind::kFill:
        source.side += offset(out_.inline_bytes);
        break;
      case Source::Kind::kMemory:
      case Source::Kind::kComputed:
        fail(Code::kInternal, "parts of a checkpoint on disk are neither in memory nor computed");
    }
    return source;
  }

  void add_state() {
    std::vector<std::uint32_t> index(out_.tensors.size() - first_tensor_);
    for (std::uint32_t i = 0; i < index.size(); ++i) index[i] = first_tensor_ + i;
    const std::size_t before = out_.state.entries.size();
    for (StateEntry& entry : part_->state.entries) {
      entry.value = remap_tensors(entry.value, index);
      out_.state.entries.push_back(std::move(entry));
    }
    for (ContainerNote& note : part_->state.containers) {
      if (note.path.empty() && before > 0) continue;  // the whole has one top
      if (note.entries_before <= part_->state.entries.size()) note.entries_before += before;
      out_.state.containers.push_back(std::move(note));
    }
    for (QuantParams& quant : part_->quant) {
      quant.scales = remap_tensors(quant.scales, index);
      quant.zero_points = remap_tensors(quant.zero_points, index);
    }
  }

  void add_side_tables() {
    for (Record& record : part_->records)
      record.file += static_cast<std::uint32_t>(out_.files.size());
    for (StoredFile& file : part_->files) file.path = folder_ + file.path;
    for (CodedView& view : part_->views)
      view.codecs += static_cast<std::uint32_t>(out_.codecs.size());
    append(out_.views, std::move(part_->views));
    append(out_.files, std::move(part_->files));
    append(out_.records, std::move(part_->records));
    append(out_.strides, std::move(part_->strides));
    append(out_.codecs, std::move(part_->codecs));
    append(out_.inline_bytes, std::move(part_->inline_bytes));
    append(out_.quant, std::move(part_->quant));
  }

  Manifest& out_;
  Manifest* part_ = nullptr;
  std::string folder_;
  std::uint32_t first_tensor_ = 0;
};

}  // namespace

Manifest merge_parts(std::vector<PartManifest> parts) {
  Manifest whole;
  PartsMerger merger(whole);
  for (PartManifest& part : parts) merger.add(part);
  return whole;
}

}  // namespace tessera
