#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/parallel.h>
#include <tessera/base/text.h>
#include <tessera/encoding/zip_reader.h>
#include <tessera/format/registry.h>
#include <tessera/ops/hashed_tensor.h>
#include <tessera/ops/seal.h>
#include <tessera/ops/verify.h>
#include <tessera/storage/aligned_buffer.h>
#include <tessera/storage/checksum.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <set>

#include "lib/base/damage.h"
#include "lib/ops/inspect/listing.h"
#include "lib/ops/open/losses.h"
#include "lib/ops/open/sealed_directory.h"
#include "lib/ops/open/value_budget.h"
#include "lib/ops/scan/other_files.h"
#include "lib/ops/seal/check.h"
#include "lib/ops/seal/integrity.h"
#include "lib/ops/verify/against.h"
#include "lib/ops/verify/beside.h"
#include "lib/ops/verify/causes.h"
#include "lib/ops/verify/replicas.h"
#include "lib/ops/verify/seal.h"

// Codes: docs/verify-codes.md.
namespace tessera {
namespace {

class Verifier {
 public:
  Verifier(FileSystem& fs, const std::string& path, const VerifyOptions& options)
      : fs_(fs), asked_(path), options_(options), checkpoint_(own_) {
    report_.level = options.level;
  }
  Verifier(FileSystem& fs, OpenedCheckpoint& opened, const VerifyOptions& options)
      : fs_(fs), asked_(opened.asked), options_(options), checkpoint_(opened) {
    report_.level = options.level;
  }

  VerifyReport run() {
    if (const auto stale = stale_pointer(fs_, asked_)) add(*stale);
    if (&checkpoint_ == &own_ && !open_it()) return std::move(report_);
    describe();
    check_values();
    list_losses();
    find_seal();
    check_asked_seal();
    if (options_.level != VerifyLevel::kQuick) {
      check_listed_sums();
      locate_each();
      check_sealed_files();
      count_stored();
      check_records();
      check_other_records();
      read_unproved();
      compare_replicas();
    }
    if (options_.require_sums) require_sums();
    if (!options_.against.empty()) compare_against();
    check_beside();
    count_other_files();
    say_what_was_lost();
    say_what_is_not_read();
    std::ranges::stable_sort(report_.findings, std::greater<>(), &Note::severity);
    report_.causes = find_causes(report_.findings, checkpoint_.manifest);
    report_.ok = std::ranges::none_of(report_.findings,
                                      [](const Note& n) { return n.severity == Severity::kError; });
    return std::move(report_);
  }

 private:
  bool open_it() {
    OpenOptions open = options_.open;
    open.read.tolerate_damage = true;
    open.read.memory_limit_bytes = options_.transfer.memory_limit_bytes;
    open.read.threads = options_.transfer.threads;
    open.check_seal = false;
    return open_or_report(open);
  }

  void add(Note note) {
    const std::lock_guard lock(mutex_);
    report_.findings.push_back(std::move(note));
  }

  void add(Finding code, Severity severity, std::string message, std::string file,
           std::string tensor) {
    add({code, severity, std::move(message), std::move(file), std::move(tensor)});
  }

  void add_status(Finding code, const Status& status, const std::string& tensor) {
    if (status.code == Code::kCancelled || status.code == Code::kInternal ||
        status.code == Code::kResourceExhausted)
      throw Error(status);
    add(code, Severity::kError, status.message, status.context.file,
        status.context.tensor.empty() ? tensor : status.context.tensor);
  }

  /// A pointer to nothing is a finding, even where that leaves nothing to open.
  bool open_or_report(const OpenOptions& open) {
    try {
      checkpoint_ = open_checkpoint(fs_, asked_, open);
      return true;
    } catch (const Error& error) {
      if (error.code() != Code::kNotFound || report_.findings.empty()) {
        explain(error);
        throw;
      }
      report_.path = asked_;
      report_.ok = false;
      report_.causes = find_causes(report_.findings, {});
      return false;
    }
  }

  /// Where the seal shows what was damaged, that is why: a turned bit may look like a format that
  /// nobody supports.
  void explain(const Error& error) {
    if (!is_damage(error.code()) || error.code() == Code::kIo) return;
    blame_damage(check_seal_of(fs_, asked_, options_.level, read_tick()), error);
  }

  /// A pointer or file may be lost without which the checkpoint is one of those below it.
  void check_asked_seal() {
    if (fs_.canonical(checkpoint_.path) == fs_.canonical(asked_)) return;
    for (const Note& note : check_seal_of(fs_, asked_, options_.level, read_tick())) {
      const bool known = std::ranges::any_of(report_.findings, [&](const Note& other) {
        return other.code == note.code && other.message == note.message;
      });
      if (!known) add(note);
    }
  }

  ReadTick read_tick() {
    return [this](std::size_t bytes) { tick(bytes); };
  }

  void list_losses() {
    for (Note& note : find_losses(checkpoint_.manifest, damaged_)) add(note);
  }

  void describe() {
    const Manifest& manifest = checkpoint_.manifest;
    report_.path = checkpoint_.path;
    report_.format = manifest.format;
    for (const Note& note : checkpoint_.notes)
      if (note.code != Finding::kSealDifference) report_.notes.push_back(note);
    report_.files = manifest.files.size();
    report_.tensors = leaf_tensors(manifest).size();
    report_.chunks = manifest.chunks.size();
    for (const Note& note : manifest.notes) {
      const bool reported_later =
          options_.level != VerifyLevel::kQuick &&
          (note.code == Finding::kUncomparedReplicas || note.code == Finding::kBadChecksum);
      if (!reported_later) add(note);
    }
    for (const Note& note : manifest.notes)
      if (note.severity == Severity::kError || note.code == Finding::kUnsupportedDataset)
        damaged_.insert(note.tensor);
    count_stored();
  }

  /// What no verb can list, hash or convert is not sound, though each of its bytes may be.
  void check_values() {
    try {
      require_printable(checkpoint_.manifest.state);
    } catch (const Error& error) {
      add_status(Finding::kBadItem, error.status(), "");
    }
  }

  /// Beside the checkpoint's own files: what was opened, and what was held against sums.
  std::set<std::string> looked_into() const {
    std::set<std::string> names = sealed_files_;
    if (!checkpoint_.beside_folder.empty() &&
        fs_.canonical(checkpoint_.beside_folder) == fs_.canonical(checkpoint_.path))
      for (const VerifiedBeside& beside : report_.beside)
        if (beside.opened) names.insert(beside.beside.path);
    if (capabilities_of(checkpoint_.manifest.format).has_sum_list &&
        options_.level != VerifyLevel::kQuick)
      names.emplace(kIntegrityFile);
    return names;
  }

  /// What lies beside the checkpoint's own files: a note, as nothing vouches for it.
  void count_other_files() {
    const auto asked = fs_.stat(asked_);
    if (!checkpoint_.directory || !asked || asked->type != FileType::kDirectory) return;
    const std::vector<std::string> others = other_files(checkpoint_, looked_into());
    report_.other_files = others.size();
    if (others.empty()) return;
    constexpr std::size_t kNamed = 3;
    std::string names;
    for (std::size_t i = 0; i < std::min(kNamed, others.size()); ++i)
      names += (i ? ", " : "") + printable(others[i]);
    report_.notes.push_back(
        {Finding::kOtherFiles, Severity::kInfo,
         fmt::format(
             "{} of the folder {} not looked into: {}{}; ckpt-inspect scan judges every file",
             others.size() == 1 ? "1 file" : fmt::format("{} files", others.size()),
             others.size() == 1 ? "was" : "were", names, others.size() > kNamed ? ", ..." : ""),
         "", ""});
  }

  /// Items as metadata gives them, and, once they are located, the records inside: each once,
  /// whatever parts of it are tensors, padding, or several tensors at a time.
  void count_stored() {
    const ChunkTable& chunks = checkpoint_.manifest.chunks;
    std::vector<bool> seen(checkpoint_.manifest.records.size());
    report_.tensor_bytes_stored = 0;
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      const Source& source = chunks.source(i);
      if (source.record == 0) {
        report_.tensor_bytes_stored += source.length;
      } else if (!seen[source.record - 1]) {
        seen[source.record - 1] = true;
        report_.tensor_bytes_stored += checkpoint_.manifest.records[source.record - 1].length;
      }
    }
  }

  void find_seal() {
    seal_ = checkpoint_.seal;
    report_.sealed = seal_ != nullptr;
    for (const Note& note : checkpoint_.notes)
      if (note.code == Finding::kNoSeal)
        add(Finding::kBadSeal, Severity::kError, note.message, note.file, "");
    if (!seal_ || options_.level != VerifyLevel::kQuick) return;
    for (const Note& note : checkpoint_.notes)
      if (note.code == Finding::kSealDifference) report_.findings.push_back(note);
  }

  /// Once items are located: then it is known which tensor a byte is of.
  void check_sealed_files() {
    if (!seal_) return;
    if (options_.transfer.progress)
      for (const SealedFile& file : seal_->files)
        options_.transfer.progress->total_bytes += file.size_bytes;
    parallel_for(seal_->files.size(), options_.transfer.threads,
                 [&](std::size_t i, int) { check_sealed(seal_->files[i]); });
  }

  void check_sealed(const SealedFile& sealed) {
    const std::string& name = sealed.path;
    try {
      const auto is_whole = [this](const std::string& tensor) { return has_sealed_sum(tensor); };
      const auto note =
          check_sealed_file(*checkpoint_.directory, name, sealed, &checkpoint_.manifest,
                            read_tick(), seal_->tensors.empty() ? IsWhole() : is_whole);
      if (note) add(*note);
      const std::lock_guard lock(mutex_);
      sealed_files_.insert(name);
    } catch (const Error& error) {
      Status status = error.status();
      status.context.file = name;
      add_status(Finding::kSealDifference, status, "");
    }
  }

  /// Has the tensor the SHA-256 that it was sealed with?
  bool has_sealed_sum(const std::string& name) const {
    const Manifest& manifest = checkpoint_.manifest;
    const auto sealed = std::ranges::find(seal_->tensors, name, &HashedTensor::name);
    const auto tensor = std::ranges::find_if(manifest.tensors, [&](const StoredTensor& t) {
      return !t.embedded && t.name.view() == name;
    });
    if (sealed == seal_->tensors.end() || tensor == manifest.tensors.end()) return false;
    TransferOptions quiet = looking(options_.transfer);
    quiet.progress = nullptr;
    quiet.threads = 1;
    const auto number = static_cast<std::uint32_t>(tensor - manifest.tensors.begin());
    try {
      return hash_tensors(manifest, *checkpoint_.directory, {number}, quiet)[0] == sealed->sha256;
    } catch (const Error& error) {
      if (!is_damage(error.code())) throw;
      return false;
    }
  }

  /// Megatron-core's own list of sums.
  void check_listed_sums() {
    if (!capabilities_of(checkpoint_.manifest.format).has_sum_list) return;
    for (Note& note : check_integrity(*checkpoint_.directory, [&](std::size_t n) { tick(n); }))
      add(note);
  }

  void tick(std::size_t bytes) {
    if (options_.transfer.cancel) options_.transfer.cancel->check();
    bytes_read_ += bytes;
    report_bytes();
    if (options_.transfer.progress) options_.transfer.progress->done_bytes += bytes;
  }
  void report_bytes() {
    const std::lock_guard lock(mutex_);
    report_.bytes_read = bytes_read_;
  }

  /// All at once where nothing is damaged; one by one where something is, so that each damage is
  /// named.
  void locate_each() {
    std::vector<std::uint32_t> sound;
    for (std::uint32_t i = 0; i < checkpoint_.manifest.tensors.size(); ++i)
      if (!damaged_.contains(checkpoint_.manifest.tensors[i].name)) sound.push_back(i);
    const std::size_t known = checkpoint_.manifest.notes.size();
    try {
      locate(sound);
    } catch (const Error& error) {
      if (!is_damage(error.code())) throw;
      for (std::uint32_t i : sound) locate_one(i);
    }
    // What the reader noted on the way is a finding too; what it left unlocated cannot be read.
    for (std::size_t i = known; i < checkpoint_.manifest.notes.size(); ++i) {
      const Note& note = checkpoint_.manifest.notes[i];
      add(note);
    }
    for (std::uint32_t i : sound)
      if (is_located(checkpoint_.manifest.tensors[i])) located_.push_back(i);
  }

  void locate(std::span<const std::uint32_t> tensors) {
    ReadOptions read;
    read.memory_limit_bytes = options_.transfer.memory_limit_bytes;
    read.threads = options_.transfer.threads;
    read.tolerate_damage = true;
    checkpoint_.locate(tensors, read);
  }

  void locate_one(std::uint32_t i) {
    try {
      locate(std::span(&i, 1));
    } catch (const Error& error) {
      add_status(Finding::kUnreadableFile, error.status(), checkpoint_.manifest.tensors[i].name);
    }
  }

  bool is_located(const StoredTensor& tensor) const {
    for (std::uint32_t c = 0; c < tensor.chunk_count; ++c)
      if (checkpoint_.manifest.source(tensor, c).kind == Source::Kind::kPending) return false;
    return true;
  }

  /// Every record with a CRC, read whole, in file order.
  void check_records() {
    const Manifest& manifest = checkpoint_.manifest;
    std::map<std::uint32_t, std::string> owner;  // record -> a tensor in it
    for (std::uint32_t t : located_) {
      const StoredTensor& tensor = manifest.tensors[t];
      for (std::uint32_t c = 0; c < tensor.chunk_count; ++c)
        if (const std::uint32_t record = manifest.source(tensor, c).record)
          owner.emplace(record - 1, tensor.name);
    }
    std::vector<std::uint32_t> records;
    for (const auto& [record, name] : owner) records.push_back(record);
    std::ranges::sort(records, {}, [&](std::uint32_t r) {
      return std::pair(manifest.records[r].file, manifest.records[r].offset);
    });
    if (options_.transfer.progress)
      for (std::uint32_t r : records)
        options_.transfer.progress->total_bytes += manifest.records[r].length;
    parallel_for(records.size(), options_.transfer.threads, [&](std::size_t i, int) {
      const Record& record = manifest.records[records[i]];
      if (check_record(record, owner.at(records[i]))) bytes_with_sums_ += record.length;
    });
    for (const std::uint32_t r : records)
      checked_.emplace(manifest.records[r].file, manifest.records[r].offset);
  }

  /// What no tensor here is made of, such as copies on other ranks and counters, has a CRC as well.
  void check_other_records() {
    const std::vector<StoredFile>& files = checkpoint_.manifest.files;
    parallel_for(files.size(), options_.transfer.threads, [&](std::size_t f, int) {
      if (!files[f].is_archive) return;
      try {
        const auto file = checkpoint_.directory->open(files[f].path);
        ZipReader zip(ByteWindow::whole(*file));
        if (!zip.has_checksums()) return;
        for (const ZipEntry& entry : zip.entries()) {
          const Record record{static_cast<std::uint32_t>(f), entry.crc32, zip.data_offset(entry),
                              entry.size_bytes};
          if (entry.method != 0 || checked_.contains({record.file, record.offset})) continue;
          if (options_.transfer.progress) options_.transfer.progress->total_bytes += record.length;
          check_record(record, "");
        }
      } catch (const Error& error) {
        Status status = error.status();
        status.context.file = files[f].path;
        add_status(Finding::kBadChecksum, status, "");
      }
    });
  }

  /// False where it cannot be read; what differs is a finding.
  bool check_record(const Record& record, const std::string& tensor) {
    const std::string& name = checkpoint_.manifest.files[record.file].path;
    try {
      const auto file = checkpoint_.directory->open(name);
      const std::uint32_t crc = record_crc(*file, record, read_tick());
      if (crc != record.crc32)
        add(Finding::kBadChecksum, Severity::kError,
            fmt::format("the bytes at {} have CRC-32 {:08x} where the archive says {:08x}",
                        record.offset, crc, record.crc32),
            name, tensor);
      return true;
    } catch (const Error& error) {
      add_status(Finding::kBadChecksum, error.status(), tensor);
      return false;
    }
  }

  bool has_sum(const StoredTensor& tensor, std::uint32_t c) const {
    const Source& source = checkpoint_.manifest.source(tensor, c);
    if (source.kind == Source::Kind::kInline || source.kind == Source::Kind::kFill ||
        source.length == 0)
      return true;
    return source.record != 0 ||
           sealed_files_.contains(checkpoint_.manifest.files[source.file].path);
  }

  /// Tensors without a record CRC are read all the same: their bytes must be there and decode.
  void read_unproved() {
    const Manifest& manifest = checkpoint_.manifest;
    std::vector<std::uint32_t> rest;
    for (std::uint32_t t : located_) {
      const StoredTensor& tensor = manifest.tensors[t];
      bool proved = true;
      for (std::uint32_t c = 0; c < tensor.chunk_count; ++c) {
        const Source& source = manifest.source(tensor, c);
        proved = proved && (source.record != 0 || source.kind == Source::Kind::kInline ||
                            source.kind == Source::Kind::kFill);
        if (source.record == 0 && has_sum(tensor, c)) bytes_with_sums_ += source.length;
      }
      if (!proved) rest.push_back(t);
    }
    const TensorReader reader(manifest, *checkpoint_.directory, looking(options_.transfer));
    for (std::uint32_t t : rest) {
      try {
        reader.stream(std::span(&t, 1),
                      [&](const TensorReader::Block& block) { tick(block.bytes.size()); });
      } catch (const Error& error) {
        if (!is_damage(error.code())) throw;
        add_status(Finding::kUnreadableBytes, error.status(), manifest.tensors[t].name);
      }
    }
    report_.bytes_with_sums = bytes_with_sums_;
  }

  /// Deep reads every copy; else the CRC-32s of records, held to their bytes above, are enough.
  void compare_replicas() {
    const bool read_all = options_.level == VerifyLevel::kDeep;
    const CopyComparison compared =
        compare_copies(checkpoint_, located_, read_all, options_.transfer);
    for (const Note& note : compared.findings) add(note);
    bytes_read_ += compared.bytes_read;
    report_bytes();
  }

  void require_sums() {
    std::uint64_t without = 0;
    std::string first;
    for (const StoredTensor& tensor : checkpoint_.manifest.tensors) {
      for (std::uint32_t c = 0; c < tensor.chunk_count; ++c) {
        const bool unknown = options_.level == VerifyLevel::kQuick && !report_.sealed;
        if (!unknown && has_sum(tensor, c)) continue;
        if (without++ == 0) first = tensor.name;
      }
    }
    if (without)
      add(Finding::kUncheckedBytes, Severity::kError,
          fmt::format("{} of {} chunks have no checksum to hold them against; use --full, or a "
                      "checkpoint with sums",
                      without, report_.chunks),
          "", first);
  }

  void compare_against() {
    std::vector<Note> findings;
    report_.not_compared =
        verify_against(fs_, options_.against, checkpoint_, options_.transfer, findings);
    for (Note& note : findings) add(note);
  }

  void say_what_is_not_read() {
    if (!checkpoint_.others.empty())
      add(Finding::kRelatedState, Severity::kWarning,
          fmt::format("not read, though it belongs to the same state: {}", checkpoint_.others),
          checkpoint_.file, "");
  }

  /// What belongs to the same training state is damaged with it: each is held to the same level by
  /// itself, and what was found in it is a finding here.
  void check_beside() {
    if (options_.checks_beside)
      report_.beside = verify_beside(fs_, checkpoint_, options_, report_.findings);
  }

  /// The result of a salvage is whole by its own sums, and not what its source was.
  void say_what_was_lost() {
    if (!seal_) return;
    for (const LostTensor& lost : seal_->lost)
      add(Finding::kSalvageLoss, Severity::kWarning, "lost when this was salvaged: " + lost.reason,
          "", lost.name);
  }

  FileSystem& fs_;
  std::string asked_;
  const VerifyOptions& options_;
  OpenedCheckpoint own_;          // where none was handed over
  OpenedCheckpoint& checkpoint_;  // that, or the other's
  std::shared_ptr<const Seal> seal_;
  VerifyReport report_;
  std::set<std::string> damaged_;       // tensors that metadata shows to be damaged, or unreadable
  std::set<std::string> sealed_files_;  // every byte summed by our seal
  std::set<std::pair<std::uint32_t, std::uint64_t>> checked_;  // records, by file and offset
  std::vector<std::uint32_t> located_;
  std::atomic<std::uint64_t> bytes_read_{0}, bytes_with_sums_{0};
  std::mutex mutex_;
};

}  // namespace

VerifyReport verify_checkpoint(FileSystem& fs, const std::string& path,
                               const VerifyOptions& options) {
  return Verifier(fs, path, options).run();
}

VerifyReport verify_opened(FileSystem& fs, OpenedCheckpoint& checkpoint,
                           const VerifyOptions& options) {
  TESSERA_CHECK(options.level == VerifyLevel::kQuick);
  return Verifier(fs, checkpoint, options).run();
}

VerifyReport verify_or_report(FileSystem& fs, const std::string& path, const VerifyOptions& options,
                              std::optional<Status>& failure) {
  failure.reset();
  try {
    return verify_checkpoint(fs, path, options);
  } catch (const Error& error) {
    if (error.code() == Code::kCancelled || error.code() == Code::kInternal) throw;
    failure = error.status();
  }
  VerifyReport report;
  report.path = path;
  report.level = options.level;
  report.ok = false;
  report.findings.push_back({Finding::kUnopenable, Severity::kError, failure->message,
                             failure->context.file, failure->context.tensor});
  report.causes = find_causes(report.findings, {});
  return report;
}

}  // namespace tessera
