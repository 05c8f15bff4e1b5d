#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/live/save.h>
#include <tessera/ops/seal.h>
#include <tessera/reshard/executor.h>
#include <tessera/storage/stage.h>
#include <tessera/storage/stage_member.h>

#include <chrono>
#include <string_view>
#include <system_error>
#include <utility>

#include "lib/live/callbacks.h"
#include "lib/live/prepared_save.h"
#include "lib/live/retention.h"
#include "lib/live/saves_at_exit.h"
#include "lib/ops/convert/request.h"
#include "lib/ops/open/path_resolve.h"
#include "lib/state/live/wire.h"

namespace tessera {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view kSavingTool = "tessera 0.1.0";
/// A write, beside a state that fills the memory. A disk takes 8 MiB no faster, and they take more
/// CPU time: 2 MiB are one huge page, and a cache holds them between the copy and the write. Half
/// as much makes a durable save longer by half; a file system in memory takes any.
constexpr std::uint64_t kDiskWriteBytes = std::uint64_t{2} << 20;
constexpr std::uint64_t kMemoryWriteBytes = std::uint64_t{256} << 10;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Makes the folders above `path`, each durable in its own. Safe when several ranks do it.
void make_folders_above(FileSystem& fs, const std::string& path) {
  const std::string parent = split_path(path).first;
  if (parent.empty() || parent == "." || parent == "/" || fs.stat(parent)) return;
  make_folders_above(fs, parent);
  try {
    fs.create_directory(parent);
  } catch (const Error& error) {
    if (error.code() != Code::kAlreadyExists) throw;
  }
  const std::string above = split_path(parent).first;
  fs.sync_directory(above.empty() ? "." : above);
}

/// Without slashes and dots at its end ("run/step_1/."), before which make_folders_above() would
/// make a folder.
std::string without_dots(std::string path) {
  while (path.size() > 1 && (path.ends_with('/') || path.ends_with("/."))) path.pop_back();
  return path;
}

/// What load() would not take back is not written.
void check_place(const std::string& path, const SaveOptions& options) {
  if (path.empty()) fail(Code::kInvalidArgument, "there is no path to save to");
  const std::string name = split_path(without_dots(path)).second;
  if (name.empty() || name == "." || name == "..")
    fail(Code::kInvalidArgument, fmt::format("{} does not end in a name", printable(path)));
  if (options.update_latest && !is_pointer_text(name))
    fail(Code::kInvalidArgument,
         fmt::format("`latest` cannot name \"{}\": readers drop the space around a name",
                     printable(name)),
         "choose another name");
  if (path.find("://") == std::string::npos) return;
  fail(Code::kUnsupported,
       fmt::format("{} is a URL: checkpoints are saved to local paths", printable(path)),
       "save to a local path, then copy it");
}

/// `path` from the root: in the background, the working directory may be another.
std::string from_root(const FileSystem& fs, const std::string& path) {
  std::string place = without_dots(path);
  return place.starts_with('/') ? place : join_path(fs.canonical("."), place);
}

/// A text of the commands, which have words and flags where a save has a path and options: behind
/// `path`, which may look like them.
std::string without_flags(std::string text, std::string_view path) {
  const std::size_t last = text.rfind(path);
  const std::size_t from = last == std::string::npos ? 0 : last + path.size();
  constexpr std::pair<std::string_view, std::string_view> kWords[] = {
      {"add --force to replace it", "save elsewhere, or set SaveOptions::force to replace it"},
      {"--force", "SaveOptions::force"},
      {", or continue it with --resume", ""},
      {"choose another output", "save elsewhere"},
      {"another DST", "another path"}};
  for (const auto& [word, ours] : kWords)
    if (const std::size_t at = text.rfind(word); at != std::string::npos && at >= from)
      text.replace(at, word.size(), ours);
  return text;
}

/// One save from the open stage to the published checkpoint.
class Writing {
 public:
  Writing(const std::string& path, RankGroup& ranks, const SaveOptions& options, FileSystem& fs,
          const PreparedSave& prepared, const std::function<void()>& before_publish)
      : path_(path),
        ranks_(ranks),
        options_(options),
        fs_(fs),
        prepared_(prepared),
        before_publish_(before_publish) {}

  void run(SaveReport& report) {
    ranks_.together([&] { open_as_sent(); });
    join();
    ranks_.together([&] { write(report); });
    gather_sums();
    ranks_.together([&] { publish(); });
    ranks_.together([&] { settle_run(report); });
  }

 private:
  bool leads() const { return ranks_.rank() == 0; }

  void open_as_sent() {
    try {
      open();
    } catch (const Error& error) {
      Status status = error.status();
      status.message = without_flags(std::move(status.message), path_);
      status.hint = without_flags(std::move(status.hint), path_);
      throw Error(std::move(status));
    }
  }

  void open() {
    if (!leads()) return;
    make_folders_above(fs_, path_);
    destination_ = resolve_destination(fs_, path_);
    if (options_.update_latest) check_can_point(fs_, destination_);
    if (options_.force) check_replaceable(fs_, destination_);
    const std::string parent = split_path(destination_).first;
    const std::uint64_t free = fs_.free_bytes(parent);
    if (prepared_.total_bytes > free)
      fail(Code::kResourceExhausted,
           fmt::format("the checkpoint takes {} bytes, {} are free at {}", prepared_.total_bytes,
                       free, printable(parent)),
           "make room, or save elsewhere");
    StageOptions options;
    options.force = options_.force;
    stage_ = Stage::open(fs_, destination_, hex(prepared_.fingerprint), options);
  }

  /// Rank 0 sends the place of the stage.
  void join() {
    WireWriter message;
    if (leads()) message.text(stage_->directory()).text(destination_);
    const auto all = ranks_.all_gather(message.finish());
    ranks_.together([&] {
      if (leads()) return;
      WireReader in(all[0]);
      const std::string directory = in.text();
      destination_ = in.text();
      stage_ = join_stage(fs_, directory, destination_);
    });
  }

  void write(SaveReport& report) {
    TransferOptions options;
    options.memory_limit_bytes = options_.memory_limit_bytes;
    options.block_bytes = fs_.in_memory(stage_->directory()) ? kMemoryWriteBytes : kDiskWriteBytes;
    options.threads = std::max(1, options_.threads);
    options.progress = options_.progress;
    options.cancel = options_.cancel;
    const auto directory = fs_.open_directory(stage_->directory());
    moved_ = transfer(prepared_.merged.manifest, *directory, prepared_.output, *prepared_.plan, fs_,
                      *stage_, options);
    report.bytes_written = moved_.bytes_written;
    report.total_bytes = prepared_.total_bytes;
    report.balance = prepared_.balance;
  }

  /// The checksums of every rank's files come to rank 0, which seals them.
  void gather_sums() {
    WireWriter mine;
    mine.number(prepared_.output.files.size());
    for (std::size_t f = 0; f < prepared_.output.files.size(); ++f) {
      mine.text(prepared_.output.files[f].path);
      mine.bytes(std::as_bytes(std::span(moved_.crc32_per_mib[f])));
    }
    const auto all = ranks_.all_gather(mine.finish());
    ranks_.together([&] {
      for (const auto& bytes : all) read_sums(bytes);
      if (before_publish_) before_publish_();
      // The last time that one rank's word stops all: rank 0 publishes, and the others wait for it.
      if (options_.cancel != nullptr) options_.cancel->check();
    });
  }

  void read_sums(ByteView bytes) {
    WireReader in(bytes);
    const std::size_t files = in.count(2);
    for (std::size_t f = 0; f < files; ++f) {
      std::string path = in.text();
      const ByteView sums = in.bytes();
      std::vector<std::uint32_t> crcs(sums.size() / sizeof(std::uint32_t));
      for (std::size_t i = 0; i < crcs.size(); ++i)
        crcs[i] = load_le<std::uint32_t>(sums.data() + i * sizeof(std::uint32_t));
      sums_[std::move(path)] = std::move(crcs);
    }
  }

  void publish() {
    if (!leads()) return;
    stage_->publish([&] { prove(); }, [&] { return encode_seal(make_seal()); });
  }

  /// Every planned file is there, whole, and its writer has sent its checksums.
  void prove() const {
    const auto directory = fs_.open_directory(stage_->directory());
    for (const RankFile& file : prepared_.files) {
      const auto info = directory->stat(file.path);
      const bool whole = info && info->size_bytes == file.size_bytes && sums_.contains(file.path);
      if (!whole)
        in_file(file.path, [&] {
          fail(Code::kIo, fmt::format("rank {} was to write {} bytes, {} are there", file.rank,
                                      file.size_bytes, info ? info->size_bytes : 0));
        });
    }
  }

  Seal make_seal() const {
    Seal seal;
    seal.format = prepared_.format;
    seal.tool = kSavingTool;
    seal.source_path = fmt::format("{} ranks", ranks_.size());
    seal.source_format = "live";
    seal.source_tensors = prepared_.merged.manifest.tensors.size();
    for (const StoredTensor& tensor : prepared_.merged.manifest.tensors)
      seal.source_bytes += static_cast<std::uint64_t>(tensor.spec.size_bytes());
    for (const RankFile& file : prepared_.files)
      seal.files.push_back({file.path, file.size_bytes, sums_.at(file.path)});
    seal.sharded = prepared_.merged.sharded;
    seal.balance = prepared_.balance;
    return seal;
  }

  void settle_run(SaveReport& report) {
    if (!leads()) return;
    try {
      if (options_.update_latest) point_latest(fs_, destination_);
      if (options_.keep_last == 0) return;
      Retention old = remove_old(fs_, destination_, options_.keep_last);
      report.removed = std::move(old.removed);
      report.failed_removals = std::move(old.failed);
    } catch (const Error& error) {
      Status status = error.status();
      const bool there = fs_.stat(destination_).has_value();
      status.message = fmt::format("{} {}: {}", printable(destination_),
                                   there ? "is published and whole, but what follows it failed"
                                         : "was published, but has been removed since",
                                   status.message);
      throw Error(std::move(status));
    }
  }

  const std::string& path_;
  RankGroup& ranks_;
  const SaveOptions& options_;
  FileSystem& fs_;
  const PreparedSave& prepared_;
  const std::function<void()>& before_publish_;
  std::string destination_;
  std::unique_ptr<Stage> stage_;  // rank 0: removed unless published
  TransferResult moved_;
  std::map<std::string, std::vector<std::uint32_t>> sums_;  // by file
};

/// What both kinds of save begin with. `own`: the file system made here, when none was given;
/// `place`: where to save, whatever the working directory will be.
FileSystem& begin(std::string_view call, const std::string& path, std::string& place,
                  const LiveState& state, RankGroup& ranks, const SaveOptions& options,
                  std::shared_ptr<FileSystem>& own, SaveMemory& memory, SaveReport& report,
                  bool lazy = false, std::function<void()>* ready = nullptr) {
  Status mine = memory.settle();
  const Clock::time_point start = Clock::now();
  if (mine.ok()) {
    try {
      check_place(path, options);
      if (lazy && !state.changed)
        fail(Code::kInvalidArgument,
             "a lazy snapshot of a state that does not report when its memory changes",
             "set LiveState::changed, or use SnapshotTiming::kBeforeReturn");
      if (options.file_system == nullptr) own = make_posix_file_system();
      place = from_root(options.file_system != nullptr ? *options.file_system : *own, path);
      if (lazy && state.before_lazy_save)
        *ready = in_callback("LiveState::before_lazy_save", memory.thrown, state.before_lazy_save);
      else if (state.before_save)
        in_callback("LiveState::before_save", memory.thrown, state.before_save);
    } catch (...) {
      mine = current_exception_status();
    }
  }
  prepare_save(call, path, state, ranks, options, mine, memory, report);
  report.plan_seconds = seconds_since(start);
  return options.file_system != nullptr ? *options.file_system : *own;
}

/// What a save begins and ends with: on the rank whose callback threw, its exception is in the
/// Error.
template <class Work>
auto saving(const std::string& path, RankGroup& ranks, Work&& work) {
  SaveMemory& memory = SaveMemory::of(ranks);
  memory.thrown = nullptr;
  try {
    return in_operation(fmt::format("save to {}", printable(path)), [&] { return work(memory); });
  } catch (const Error& error) {
    rethrow_with(std::exchange(memory.thrown, nullptr), error);
  }
}

}  // namespace

void write_save(const std::string& path, RankGroup& ranks, const SaveOptions& options,
                FileSystem& fs, const PreparedSave& prepared, SaveReport& report,
                const std::function<void()>& before_publish) {
  Writing(path, ranks, options, fs, prepared, before_publish).run(report);
}

SaveReport save(const std::string& path, const LiveState& state, RankGroup& ranks,
                const SaveOptions& options) {
  return saving(path, ranks, [&](SaveMemory& memory) {
    const Clock::time_point start = Clock::now();
    SaveReport report;
    std::shared_ptr<FileSystem> own;
    std::string place;
    FileSystem& fs = begin("save", path, place, state, ranks, options, own, memory, report);
    write_save(place, ranks, options, fs, *memory.prepared, report);
    report.seconds = seconds_since(start);
    return report;
  });
}

PendingSave save_async(const std::string& path, const LiveState& state, RankGroup& ranks,
                       const SaveOptions& options) {
  return saving(path, ranks, [&](SaveMemory& memory) {
    const Clock::time_point start = Clock::now();
    const bool lazy = options.snapshot == SnapshotTiming::kLazy;
    SaveReport report;
    std::shared_ptr<FileSystem> own;
    std::string place;
    std::function<void()> ready;  // waits until what the snapshot is taken of is there
    FileSystem& fs =
        begin("save_async", path, place, state, ranks, options, own, memory, report, lazy, &ready);
    // What fails from here on reaches the others through the background work: no more waiting here.
    Status mine;
    try {
      memory.snapshot.plan(state, memory.prepared->merged);
      const int threads = std::min(std::max(1, options.snapshot_threads), memory.cpus());
      memory.snapshot.take_early(threads);
      if (!lazy) memory.snapshot.take(threads);
      if (!lazy) memory.snapshot.release();
    } catch (...) {
      mine = current_exception_status();
    }
    if (!memory.background) memory.background = ranks.duplicate();
    auto work = std::make_shared<PendingSave::Work>();
    if (lazy) work->changed = state.changed;
    if (!lazy) work->copied();
    const auto write = [path, place, options, own, &fs, &memory, report, start, lazy, mine,
                        ready = std::move(ready), work = work.get()]() mutable {
      saves_on_this_thread();
      return in_operation(fmt::format("save to {}", printable(path)), [&] {
        if (lazy) {
          try {
            if (ready) ready();
            if (mine.ok()) memory.snapshot.take(/*threads=*/1);
          } catch (...) {
            if (mine.ok()) mine = current_exception_status();
          }
          ready = nullptr;
          memory.snapshot.release();
          work->copied();
        }
        memory.background->agree(mine);
        write_save(place, *memory.background, options, fs, *memory.prepared, report,
                   [&] { work->check_unchanged(); });
        memory.snapshot.written();
        report.seconds = seconds_since(start);
        return report;
      });
    };
    try {
      work->result = std::async(std::launch::async, write).share();
    } catch (const std::system_error& error) {  // no thread: the others' wait for this one's word
      Status none;
      none.code = Code::kResourceExhausted;
      none.message = fmt::format("no thread for the background: {}", error.what());
      memory.background->agree(none);
    }
    memory.in_flight = work;
    wait_for_at_exit(work, place);
    return PendingSave(work);
  });
}

PendingSave::PendingSave(std::shared_ptr<Work> work) : work_(std::move(work)) {}

bool PendingSave::done() const {
  return !work_ || work_->result.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

void PendingSave::finish_snapshot() noexcept {
  if (work_) work_->finish_snapshot();
}

SaveReport PendingSave::wait() {
  if (!work_ || !work_->is_of_this_process())
    fail(Code::kInvalidArgument, work_ ? "the save belongs to the process that forked this one"
                                       : "there is no save to wait for");
  try {
    return work_->result.get();
  } catch (...) {
    work_->thrown = true;
    throw;
  }
}

}  // namespace tessera
