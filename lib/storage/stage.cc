#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/storage/checksum.h>
#include <tessera/storage/stage.h>

#include <map>
#include <mutex>
#include <set>

#include "lib/storage/file_publication.h"
#include "lib/storage/janitor.h"
#include "lib/storage/journal.h"
#include "lib/storage/lease.h"
#include "lib/storage/left_journal.h"
#include "lib/storage/path_rules.h"
#include "lib/storage/publication.h"
#include "lib/storage/stage_file.h"
#include "lib/storage/stage_paths.h"

namespace tessera {

namespace {

using namespace storage;

void check_final(const FileSystem& fs, const StagePaths& paths, const StageOptions& options) {
  const auto there = fs.open_directory(paths.parent)->stat(paths.name);
  if (!there) return;
  const std::string path = paths.final_path();
  if (there->type == FileType::kSymlink)
    fail(Code::kInvalidArgument, fmt::format("{} is a symbolic link", path),
         "name what it points to");
  if (!options.force)
    fail(Code::kAlreadyExists, fmt::format("{} already exists", path), "add --force to replace it");
  if (there->is_mount_point)
    fail(Code::kInvalidArgument,
         fmt::format("{} is a mount point, which a rename cannot replace", path),
         there->type == FileType::kDirectory ? "name a path inside it"
                                             : "mount its folder instead, or name another file");
  const FileType wanted = options.single_file ? FileType::kRegular : FileType::kDirectory;
  if (there->type != wanted) {
    fail(Code::kInvalidArgument,
         fmt::format("{} is not a {}, and --force replaces like by like only", path,
                     options.single_file ? "regular file" : "folder"));
  }
}

// open -> publish() -> published            the lock goes, the old content is removed
//      |           \-> left                 a swap was undone but may not be on the disk: the
//      |                                    janitor removes it after a sync
//      |-> keep() -> kept                   for --resume; also after a publish() that changed no
//      |                                    name
//      \-> discard(), destructor -> gone
enum class State { kOpen, kPublished, kLeft, kKept, kGone };

class StageOnDisk final : public Stage {
 public:
  StageOnDisk(FileSystem& fs, StagePaths paths, const StageOptions& options,
              std::unique_ptr<FileLock> lock)
      : fs_(fs),
        paths_(std::move(paths)),
        options_(options),
        directory_(paths_.stage()),
        final_path_(paths_.final_path()),
        lock_(std::move(lock)) {}

  ~StageOnDisk() override {
    try {
      if (state_ == State::kOpen) discard();
    } catch (...) {  // the next run's janitor finishes this
    }
  }

  void start();
  void resume();
  void start_anew();

  const std::string& directory() const override { return directory_; }
  const std::string& final_path() const override { return final_path_; }
  const std::vector<JournalEntry>& finished() const override { return finished_; }
  bool started_anew() const override { return started_anew_; }

  std::unique_ptr<WriteFile> create(const std::string& relative, IoMode mode) override;
  void journal(const JournalEntry& entry) override {
    check_open();
    journal_->append(entry);
  }
  void flush_journal() override {
    check_open();
    journal_->flush();
  }
  void publish(const std::function<void()>& prove, const std::function<Bytes()>& seal) override;
  bool keep() override;
  void discard() override;

 private:
  void check_open() const { TESSERA_CHECK(state_ == State::kOpen && journal_ != nullptr); }
  std::string seal_name() const {
    return options_.single_file ? fmt::format("{}{}", paths_.name, kSealSuffix)
                                : std::string(kSealName);
  }
  void make_folders_above(const std::vector<std::string>& components);
  void check_files_finished() const;
  void remove_unknown(const Directory& stage, const std::string& relative);
  void sync_tree(const Directory& stage, const std::string& relative);
  void write_seal(const Bytes& bytes);
  void take_journal_out(bool sealed);
  void commit(bool sealed, Publication& publication);
  void clean_up_after_commit() noexcept;

  FileSystem& fs_;
  StagePaths paths_;
  StageOptions options_;
  std::string directory_;
  std::string final_path_;
  State state_ = State::kOpen;
  std::unique_ptr<FileLock> lock_;
  std::unique_ptr<JournalWriter> journal_;
  std::vector<JournalEntry> finished_;
  bool started_anew_ = false;

  std::mutex mutex_;  // guards what follows: create() may be called from several threads
  std::map<std::string, std::shared_ptr<StageFileState>> files_;
  std::set<std::string> folders_;
};

void StageOnDisk::start() {
  try {
    fs_.create_directory(directory_);
  } catch (const Error& error) {
    if (error.code() != Code::kAlreadyExists) throw;
    state_ = State::kGone;  // not ours to remove
    fail(
        Code::kAlreadyExists,
        fmt::format("another run may be writing {} (its stage {} exists)", final_path_, directory_),
        "if none is, remove the stage, or continue it with --resume");
  }
  journal_ = JournalWriter::start(fs_, directory_, paths_.plan_hash, options_.binding);
}

void StageOnDisk::resume() {
  state_ =
      State::kGone;  // until it is known to be a stage of this plan, nothing here is ours to remove
  const auto parent = fs_.open_directory(paths_.parent);
  const auto info = parent->stat(split_path(directory_).name);
  if (!info || info->type != FileType::kDirectory) {
    const std::string other = other_stage(fs_, paths_);
    fail(Code::kNotFound,
         fmt::format("nothing to resume for {} (no stage {} of this same request)", final_path_,
                     directory_),
         other.empty()
             ? "run again without --resume"
             : fmt::format("{} is another request's: repeat its arguments to continue it; "
                           "a run without --resume removes it",
                           other));
  }
  std::optional<LeftJournal> left = find_left_journal(fs_, paths_);
  if (!left) {
    fail(Code::kNotFound,
         fmt::format("nothing to continue in {}: the run that left it ended before it had written "
                     "anything, or while it published",
                     directory_),
         "run again without --resume");
  }
  remove_stale(fs_, paths_);
  const bool bound = left->content.same_plan &&
                     (!options_.still_bound || options_.still_bound(left->content.binding));
  if (!bound) return start_anew();
  // A publication may have been undone; what it renamed has its old place on the disk, too, before
  // a byte of it changes.
  fs_.sync_directory(paths_.parent);
  const std::string beside = split_path(paths_.journal()).name;
  if (left->is_beside) {
    fs_.rename(paths_.journal(), join_path(directory_, kJournalName));
  } else if (parent->stat(beside)) {
    fs_.remove_file(paths_.journal());
  }
  // Seals in it belong to a publication that failed.
  for (const std::string& name : {seal_name(), std::string(kOldSealName)})
    if (fs_.open_directory(directory_)->stat(name)) fs_.remove_file(join_path(directory_, name));
  journal_ = JournalWriter::resume(fs_, directory_, left->content.valid_bytes);
  finished_ = std::move(left->content.entries);
  state_ = State::kOpen;
}

void StageOnDisk::start_anew() {
  fs_.sync_directory(paths_.parent);
  remove_own_leftovers(fs_, paths_, /*keep_stage=*/false);
  state_ = State::kOpen;
  started_anew_ = true;
  start();
}

void StageOnDisk::make_folders_above(const std::vector<std::string>& components) {
  std::string path = directory_;
  for (std::size_t i = 0; i + 1 < components.size(); ++i) {
    path = join_path(path, components[i]);
    if (!folders_.insert(path).second) continue;
    try {
      fs_.create_directory(path);
    } catch (const Error& error) {
      if (error.code() != Code::kAlreadyExists || !options_.resume) throw;
      const auto info = fs_.open_directory(split_path(path).parent)->stat(split_path(path).name);
      if (info && info->type == FileType::kSymlink) fail_link(path);
    }
  }
}

std::unique_ptr<WriteFile> StageOnDisk::create(const std::string& relative, IoMode mode) {
  check_open();
  TESSERA_CHECK(options_.single_file == relative.empty());
  const auto components =
      confined_components(options_.single_file ? paths_.name : relative, directory_);
  std::string name;
  for (const std::string& component : components) name = join_path(name, component);
  if (name == kJournalName || name == kOldSealName || name == seal_name())
    fail(Code::kInvalidArgument, fmt::format("the file name {} is reserved", name));
  const std::lock_guard lock(mutex_);
  make_folders_above(components);
  const std::string path = join_path(directory_, name);
  const bool again = options_.resume && fs_.open_directory(directory_)->stat(name).has_value();
  auto file = again ? fs_.reopen(path, mode) : fs_.create(path, mode);
  auto state = std::make_shared<StageFileState>();
  state->relative = name;
  files_[name] = state;
  return make_stage_file(std::move(file), std::move(state));
}

void StageOnDisk::check_files_finished() const {
  for (const auto& [name, file] : files_) {
    if (!file->synced || !file->closed)
      fail(Code::kInternal, fmt::format("{} was not synced and closed before publishing",
                                        join_path(directory_, name)));
  }
}

// What the interrupted run left and this one does not write is no part of the output: an asset that
// is beside the source no more, or anything that was put there.
void StageOnDisk::remove_unknown(const Directory& stage, const std::string& relative) {
  for (const FileInfo& entry : stage.list(relative)) {
    const std::string name = join_path(relative, entry.name);
    const std::string path = join_path(directory_, name);
    if (entry.type != FileType::kDirectory) {
      if (!files_.contains(name) && name != seal_name() && name != kJournalName)
        fs_.remove_file(path);
    } else if (folders_.contains(path)) {
      remove_unknown(stage, name);
    } else {
      fs_.remove_tree(path);
    }
  }
}

// Folders below the stage bottom up, and files that others wrote in it.
void StageOnDisk::sync_tree(const Directory& stage, const std::string& relative) {
  for (const FileInfo& entry : stage.list(relative)) {
    const std::string name = join_path(relative, entry.name);
    if (entry.type == FileType::kDirectory) {
      sync_tree(stage, name);
    } else if (!files_.contains(name) && name != seal_name() && name != kJournalName) {
      const auto file = fs_.reopen(join_path(directory_, name), IoMode::kBuffered);
      file->sync();
      file->close();
    }
  }
  if (!relative.empty()) fs_.sync_directory(join_path(directory_, relative));
}

void StageOnDisk::write_seal(const Bytes& bytes) {
  const auto file = fs_.create(join_path(directory_, seal_name()), IoMode::kBuffered);
  file->write_at(0, bytes);
  file->sync();
  file->close();
}

void StageOnDisk::publish(const std::function<void()>& prove, const std::function<Bytes()>& seal) {
  check_open();
  check_files_finished();
  if (prove) prove();
  const Bytes seal_bytes = seal ? seal() : Bytes();
  const bool sealed = !seal_bytes.empty();
  if (sealed) journal_->append({kSealRecord, crc32(0, seal_bytes), 0, seal_bytes.size()});
  journal_->close();
  journal_.reset();
  if (sealed) write_seal(seal_bytes);
  const auto stage = fs_.open_directory(directory_);
  if (options_.resume) remove_unknown(*stage, "");
  sync_tree(*stage, "");
  std::unique_ptr<FileLock> turn = take_turn(fs_, paths_, options_.wait_ms);
  check_final(fs_, paths_, options_);  // another run may have published meanwhile
  // A file leaves it behind with the stage.
  if (!options_.single_file) take_journal_out(sealed);
  fs_.sync_directory(directory_);
  Publication publication(fs_);
  try {
    commit(sealed, publication);
  } catch (...) {
    publication.undo();
    if (publication.started()) {
      state_ = State::kLeft;
      lock_.reset();
    }
    throw;
  }
  state_ = State::kPublished;
  turn.reset();
  clean_up_after_commit();
  lock_.reset();
}

/// Out of the folder that is about to be renamed, but there until it is: a run that is killed in
/// between can be resumed. Only by its seal is the stage known from what an exchange put in its
/// place; without one the journal goes.
void StageOnDisk::take_journal_out(bool sealed) {
  const std::string journal = join_path(directory_, kJournalName);
  if (sealed && options_.resumable) return fs_.rename(journal, paths_.journal());
  fs_.remove_file(journal);
}

void StageOnDisk::commit(bool sealed, Publication& publication) {
  const auto parent = fs_.open_directory(paths_.parent);
  const bool replaces = options_.force && parent->stat(paths_.name);
  if (options_.single_file) {
    const std::string seal = sealed ? join_path(directory_, seal_name()) : "";
    publish_file(fs_, paths_, seal, replaces, publication);
  } else if (replaces) {
    publication.replace_folder(directory_, final_path_, paths_.trash());
    fs_.sync_directory(paths_.parent);  // the commit point
  } else {
    publication.place_new(directory_, final_path_);
    fs_.sync_directory(paths_.parent);  // the commit point
  }
}

// The result is committed: what fails from here on is left to the next run's janitor.
void StageOnDisk::clean_up_after_commit() noexcept {
  try {
    const auto parent = fs_.open_directory(paths_.parent);
    if (parent->stat(split_path(paths_.journal()).name)) fs_.remove_file(paths_.journal());
    // The trash gives up its name first, so that a "trash" beside an absent final name always means
    // an interrupted replacement.
    if (parent->stat(split_path(paths_.trash()).name)) fs_.rename_new(paths_.trash(), directory_);
    fs_.remove_tree(directory_);
  } catch (...) {
  }
}

bool StageOnDisk::keep() {
  if (state_ != State::kOpen) return false;
  state_ = State::kKept;
  const std::unique_ptr<FileLock> released = std::move(lock_);
  try {
    if (journal_) journal_->close();
  } catch (const Error&) {  // a disk that is full: what is not noted is written again
  }
  journal_.reset();
  return true;
}

void StageOnDisk::discard() {
  if (state_ != State::kOpen) return;
  state_ = State::kGone;
  const std::unique_ptr<FileLock> released = std::move(lock_);
  journal_.reset();
  fs_.remove_tree(directory_);
  if (fs_.open_directory(paths_.parent)->stat(split_path(paths_.journal()).name))
    fs_.remove_file(paths_.journal());
}

}  // namespace

void Stage::check(const FileSystem& fs, const std::string& final_path,
                  const StageOptions& options) {
  check_final(fs, make_stage_paths(fs, final_path, "0"), options);
}

std::unique_ptr<Stage> Stage::open(FileSystem& fs, const std::string& final_path,
                                   const std::string& plan_hash, const StageOptions& options) {
  StagePaths paths = make_stage_paths(fs, final_path, plan_hash);
  repair_interrupted(fs, paths);
  check_final(fs, paths, options);
  auto lock = take_lease(fs, paths);
  // What another request left may be what the user meant to resume: it goes once this one is found.
  if (!options.resume) remove_stale(fs, paths);
  if (lock) remove_own_leftovers(fs, paths, /*keep_stage=*/options.resume);
  auto stage = std::make_unique<StageOnDisk>(fs, std::move(paths), options, std::move(lock));
  if (options.resume) {
    stage->resume();
  } else {
    stage->start();
  }
  return stage;
}

}  // namespace tessera
