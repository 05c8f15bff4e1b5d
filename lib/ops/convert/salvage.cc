#include "lib/ops/convert/salvage.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/reshard/tensor_reader.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <map>
#include <set>

#include "lib/base/damage.h"
#include "lib/ops/open/seal_damage.h"
#include "lib/ops/seal/check.h"

namespace tessera {

namespace {

void read_through(const Manifest& manifest, const Directory& directory, std::uint32_t tensor,
                  const TransferOptions& transfer) {
  std::uint32_t list[] = {tensor};
  TensorReader(manifest, directory, transfer).stream(list, [](const TensorReader::Block&) {});
}

class Salvage {
 public:
  Salvage(OpenedCheckpoint& source, const ReadOptions& read, const TransferOptions& transfer)
      : source_(source), read_(read), transfer_(transfer) {
    transfer_.progress = nullptr;
    transfer_.check_crc = true;
    read_.tolerate_damage = false;  // here damage must show, chunk by chunk
  }

  SalvageLoss run() {
    require_own_files();
    SalvageLoss loss;
    loss.files = lost_files();
    auto count = static_cast<std::uint32_t>(source_.manifest.tensors.size());
    leave_out_changed();
    for (std::uint32_t t = 0; t < count; ++t) {
      if (std::string reason = problem(t); !reason.empty()) find_bad_chunks(t, reason);
    }
    find_bad_records();
    if (!bad_.empty()) leave_out_bad_chunks();
    for (auto it = reasons_.begin(); it != reasons_.end();) {
      std::string reason = problem(it->first);
      if (reason.empty()) {  // replicas made it whole
        it = reasons_.erase(it);
      } else {
        ++it;
      }
    }
    loss.entries = drop_lost();
    require_some(loss);
    return loss;
  }

 private:
  /// What another rank's file holds is whole and wrong: no tensor is known to be the one it is
  /// called.
  void require_own_files() const {
    for (const Note& note : source_.manifest.notes)
      if (note.code == Finding::kOtherRanksFile && note.severity == Severity::kError)
        in_file(note.file, [&] {
          fail(Code::kCorrupt, note.message,
               "give the files their own names back, or take the one of this rank away: then what "
               "it held is lost");
        });
  }

  /// Files that the reader misses and that no chunk lies in: what they held is remembered nowhere.
  std::vector<LostTensor> lost_files() const {
    const Manifest& manifest = source_.manifest;
    std::set<std::string_view> remembered;
    for (std::size_t c = 0; c < manifest.chunks.size(); ++c) {
      const Source& source = manifest.chunks.source(c);
      if (source.kind != Source::Kind::kInline && source.kind != Source::Kind::kFill)
        remembered.insert(manifest.files[source.file].path);
    }
    std::vector<LostTensor> lost;
    for (const Note& note : manifest.notes) {
      const bool is_loss = note.code == Finding::kMissingFile || note.code == Finding::kShortFile ||
                           note.code == Finding::kUnreadableFile ||
                           note.code == Finding::kUnfinished;
      if (is_loss && note.severity == Severity::kError && note.tensor.empty() &&
          !note.file.empty() && remembered.insert(note.file).second)
        lost.push_back({note.file, note.message});
    }
    return lost;
  }

  void require_some(const SalvageLoss& loss) const {
    if (!source_.manifest.state.entries.empty()) return;
    const std::vector<LostTensor>& lost = loss.files.empty() ? loss.entries : loss.files;
    if (lost.empty()) return;
    fail(Code::kCorrupt, fmt::format("nothing of it is whole: \"{}\" is lost: {}",
                                     printable(lost[0].name), lost[0].reason));
  }

  /// What the seal says: bytes that can be read, and are others than were written.
  void leave_out_changed() {
    const auto changed = changed_chunks(source_, read_, transfer_);
    const std::vector<StoredTensor>& tensors = source_.manifest.tensors;
    for (const auto& [chunk, reason] : changed) {
      bad_.insert(chunk);
      for (std::uint32_t t = 0; t < tensors.size(); ++t)
        if (tensors[t].first_chunk <= chunk &&
            chunk < tensors[t].first_chunk + tensors[t].chunk_count)
          reasons_[t] = reason;
    }
  }

  /// Why this tensor cannot be read as it stands; "" when it can.
  std::string problem(std::uint32_t t) {
    if (transfer_.cancel != nullptr) transfer_.cancel->check();
    try {
      std::uint32_t list[] = {t};
      source_.locate(list, read_);
      read_through(source_.manifest, *source_.directory, t, transfer_);
    } catch (const Error& error) {
      if (!is_damage(error.code())) throw;
      const Status& status = error.status();
      return status.context.file.empty() ? status.message
                                         : status.message + " [" + status.context.file + "]";
    }
    return {};
  }

  /// Each chunk as a checkpoint of its own: one tensor of the chunk's shape.
  void find_bad_chunks(std::uint32_t t, const std::string& reason) {
    reasons_[t] = reason;
    const StoredTensor& tensor = source_.manifest.tensors[t];
    for (std::uint32_t c = 0; c < tensor.chunk_count; ++c) {
      Chunk chunk = source_.manifest.chunk(tensor, c);
      if (chunk.numel() == 0) continue;
      if (!chunk.is_whole_box()) chunk.box = {{0}, Shape{chunk.numel()}};
      chunk = Chunk::whole_of(Box::whole(chunk.box.shape));
      Manifest alone = source_.manifest;
      alone.tensors = {tensor};
      alone.tensors[0].spec.shape = chunk.box.shape;
      alone.tensors[0].first_chunk = 0;
      alone.tensors[0].chunk_count = 1;
      alone.chunks = {};
      alone.chunks.add(chunk, source_.manifest.source(tensor, c));
      alone.state = {};
      std::uint32_t list[] = {0};
      try {
        source_.driver->locate(source_.place(), alone, list, read_);
        read_through(alone, *source_.directory, 0, transfer_);
      } catch (const Error& error) {
        if (!is_damage(error.code())) throw;
        bad_.insert(tensor.first_chunk + c);
      }
    }
  }

  /// Records that many chunks share, which reading one tensor does not prove: flat buffers, views
  /// of one storage. Where such a record differs, nobody knows which of its chunks are sound.
  void find_bad_records() {
    const Manifest& manifest = source_.manifest;
    std::map<std::uint32_t, std::vector<std::pair<std::uint32_t, std::uint64_t>>> sharers;
    for (std::uint32_t t = 0; t < manifest.tensors.size(); ++t) {
      const StoredTensor& tensor = manifest.tensors[t];
      for (std::uint32_t c = 0; c < tensor.chunk_count; ++c) {
        const std::uint32_t record = manifest.source(tensor, c).record;
        if (record != 0) sharers[record - 1].emplace_back(t, tensor.first_chunk + c);
      }
    }
    for (const auto& [number, chunks] : sharers) {
      const Record& record = manifest.records[number];
      const Source& first = manifest.chunks.source(chunks[0].second);
      const bool alone = chunks.size() == 1 && first.length == record.length;
      if (alone || holds(record)) continue;
      for (const auto& [t, chunk] : chunks) {
        bad_.insert(chunk);
        reasons_.try_emplace(
            t, fmt::format("it shares {} bytes under one checksum that does not match [{}]",
                           record.length, manifest.files[record.file].path));
      }
    }
  }

  bool holds(const Record& record) const {
    try {
      const auto file = source_.directory->open(source_.manifest.files[record.file].path);
      const auto tick = [this](std::size_t) {
        if (transfer_.cancel != nullptr) transfer_.cancel->check();
      };
      return record_crc(*file, record, tick) == record.crc32;
    } catch (const Error& error) {
      if (!is_damage(error.code())) throw;
      return false;
    }
  }

  void leave_out_bad_chunks() {
    Manifest& manifest = source_.manifest;
    ChunkTable kept;
    for (StoredTensor& tensor : manifest.tensors) {
      std::uint64_t first = kept.size();
      for (std::uint32_t c = 0; c < tensor.chunk_count; ++c) {
        if (bad_.contains(tensor.first_chunk + c)) continue;
        kept.add(manifest.chunk(tensor, c), manifest.source(tensor, c));
      }
      // Where the old table still counts, it is read before this tensor's numbers change.
      tensor.first_chunk = first;
      tensor.chunk_count = static_cast<std::uint32_t>(kept.size() - first);
    }
    manifest.chunks = std::move(kept);
  }

  /// What the format's reader left out already: values it could not decode.
  std::vector<LostTensor> left_out() const {
    const Manifest& manifest = source_.manifest;
    std::set<std::string_view> there;
    for (const StateEntry& entry : manifest.state.entries) there.insert(entry.name);
    for (const StoredTensor& tensor : manifest.tensors) there.insert(tensor.name);
    std::vector<LostTensor> lost;
    for (const Note& note : manifest.notes) {
      if (note.severity != Severity::kError || note.tensor.empty() ||
          !there.insert(note.tensor).second)
        continue;
      lost.push_back(
          {note.tensor, note.file.empty() ? note.message : note.message + " [" + note.file + "]"});
    }
    return lost;
  }

  /// Values that are bytes as they stand in the file, so that nothing shows whether those are whole.
  std::set<std::string> raw_values() const {
    std::set<std::string> names;
    for (const Note& note : source_.manifest.notes)
      if (note.code == Finding::kRawValue) names.insert(note.tensor);
    return names;
  }

  std::vector<LostTensor> drop_lost() {
    std::vector<LostTensor> lost = left_out();
    Manifest& manifest = source_.manifest;
    if (reasons_.empty()) return lost;
    const std::set<std::string> raw = raw_values();
    for (const std::string& name : raw)
      lost.push_back({name,
                      "its item is not a torch archive; as other items are damaged, this one may "
                      "be damaged too"});
    std::vector<bool> keep;
    for (const StateEntry& entry : manifest.state.entries) {
      bool whole = !raw.contains(entry.name);
      for_each_tensor(entry.value,
                      [&](std::uint32_t index) { whole = whole && !reasons_.contains(index); });
      keep.push_back(whole);
    }
    for (const auto& [t, reason] : reasons_) lost.push_back({manifest.tensors[t].name, reason});
    keep_entries(manifest, keep);
    return lost;
  }

  OpenedCheckpoint& source_;
  ReadOptions read_;
  TransferOptions transfer_;
  std::set<std::uint64_t> bad_;                   // in Manifest::chunks
  std::map<std::uint32_t, std::string> reasons_;  // by tensor
};

}  // namespace

SalvageLoss salvage(OpenedCheckpoint& source, const ReadOptions& read,
                    const TransferOptions& transfer) {
  return Salvage(source, read, transfer).run();
}

}  // namespace tessera
