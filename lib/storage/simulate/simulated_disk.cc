#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/storage/simulated_disk.h>

#include <algorithm>
#include <mutex>
#include <random>
#include <unordered_set>

#include "lib/storage/path_rules.h"
#include "lib/storage/simulate/crash_model.h"

namespace tessera {

using namespace storage;

namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kSectorBytes = 512;
constexpr std::size_t kFewUnits = 6;      // as many pending units: all their subsets
constexpr int kSubsetsBeforeGiving = 48;  // random ones, before a poor yield ends them

}  // namespace

// Turns calls into trace steps, with its own view of which name leads to which inode.
struct SimulatedDisk::Recorder {
  std::mutex mutex;
  DiskImage start;
  std::vector<TraceStep> trace;
  std::map<InodeId, FolderImage> live;       // folders
  std::map<std::uint64_t, InodeId> handles;  // files open for writing
  InodeId next_inode = kRootInode + 1;

  struct Place {
    InodeId folder;
    std::string name;
    InodeId inode;  // kNoInode: absent
  };

  InodeId folder_of(const std::string& path) const {
    InodeId at = kRootInode;
    std::string_view rest = path;
    while (!rest.empty()) {
      const std::size_t slash = rest.find('/');
      const std::string part(rest.substr(0, slash));
      rest = slash == std::string_view::npos ? std::string_view{} : rest.substr(slash + 1);
      if (part.empty() || part == ".") continue;
      const FolderImage& folder = live.at(at);
      const auto entry = folder.find(part);
      TESSERA_CHECK(entry != folder.end());
      at = entry->second;
    }
    return at;
  }

  Place find(const std::string& path) const {
    const SplitPath split = split_path(path);
    const InodeId folder = folder_of(split.parent);
    const FolderImage& names = live.at(folder);
    const auto entry = names.find(split.name);
    return {folder, split.name, entry == names.end() ? kNoInode : entry->second};
  }

  void import(const std::map<std::string, std::string>& contents) {
    live[kRootInode] = {};
    for (const auto& [path, content] : contents) {
      TESSERA_CHECK(!path.ends_with('@'));
      const Place place = find("/" + path);
      const InodeId inode = next_inode++;
      live[place.folder][place.name] = inode;
      if (path.ends_with('/')) {
        live[inode] = {};
      } else {
        const ByteView bytes = as_bytes(content);
        start.files[inode] = FileImage(Bytes(bytes.begin(), bytes.end()));
      }
    }
    start.folders = live;
  }

  // Changes names now, and as one pending unit per folder.
  void change(TraceStep& step, const std::vector<std::pair<Place, InodeId>>& edits) {
    std::map<InodeId, NameChange> units;
    for (const auto& [place, inode] : edits) {
      NameChange& unit = units[place.folder];
      unit.folder = place.folder;
      unit.entries.emplace_back(place.name, inode);
      if (inode == kNoInode) {
        live[place.folder].erase(place.name);
      } else {
        live[place.folder][place.name] = inode;
      }
    }
    for (auto& [folder, unit] : units) step.units.emplace_back(std::move(unit));
  }

  void write(TraceStep& step, InodeId inode, std::uint64_t offset, ByteView data) {
    const auto source = std::make_shared<const Bytes>(data.begin(), data.end());
    for (std::size_t at = 0; at < data.size();) {
      const std::size_t room = kPageBytes - (offset + at) % kPageBytes;
      const std::size_t length = std::min(room, data.size() - at);
      step.units.emplace_back(PageWrite{inode, offset + at, source, at, length});
      at += length;
    }
    if (!data.empty()) step.units.emplace_back(SizeChange{inode, offset + data.size(), true});
  }

  void remove_tree(TraceStep& step, const Place& place) {
    if (place.inode == kNoInode) return;
    if (const auto folder = live.find(place.inode); folder != live.end()) {
      const FolderImage children = folder->second;
      for (const auto& [name, child] : children) remove_tree(step, {place.inode, name, child});
    }
    change(step, {{place, kNoInode}});
  }

  InodeId add_inode(TraceStep& step, const Place& place, bool folder) {
    const InodeId inode = next_inode++;
    if (folder) live[inode] = {};
    // A new folder's own (empty) entry list exists as soon as its name does.
    if (folder) start.folders[inode] = {};
    change(step, {{place, inode}});
    return inode;
  }

  void record(const IoEvent& event);
};

void SimulatedDisk::Recorder::record(const IoEvent& event) {
  TraceStep step;
  step.what = fmt::format("{} {}", io_op_name(event.op), event.path);
  switch (event.op) {
    case IoOp::kCreate:
      handles[event.handle] = add_inode(step, find(event.path), false);
      break;
    case IoOp::kReopen:
      handles[event.handle] = find(event.path).inode;
      return;
    case IoOp::kWrite:
      write(step, handles.at(event.handle), event.offset, event.data);
      break;
    case IoOp::kAllocate:
      step.units.emplace_back(SizeChange{handles.at(event.handle), event.length, false});
      break;
    case IoOp::kSync:
      step.synced = handles.at(event.handle);
      break;
    case IoOp::kCreateDirectory:
      add_inode(step, find(event.path), true);
      break;
    case IoOp::kRename:
    case IoOp::kRenameNew: {
      const Place from = find(event.path);
      change(step, {{from, kNoInode}, {find(std::string(event.other)), from.inode}});
      break;
    }
    case IoOp::kExchange: {
      const Place a = find(event.path);
      const Place b = find(std::string(event.other));
      change(step, {{a, b.inode}, {b, a.inode}});
      break;
    }
    case IoOp::kRemoveFile:
    case IoOp::kRemoveTree:
      remove_tree(step, find(event.path));
      break;
    case IoOp::kSyncDirectory:
      step.synced = folder_of(event.path);
      break;
    case IoOp::kLock: {
      const Place place = find(event.path);
      if (place.inode != kNoInode) return;
      add_inode(step, place, false);
      break;
    }
    default:
      return;  // looking changes nothing
  }
  trace.push_back(std::move(step));
}

SimulatedDisk::SimulatedDisk(MemoryFileSystem& live)
    : ObservedFileSystem(live), recorder_(std::make_unique<Recorder>()) {
  recorder_->import(live.contents());
}
SimulatedDisk::~SimulatedDisk() = default;

std::size_t SimulatedDisk::operations() const {
  const std::lock_guard lock(recorder_->mutex);
  return recorder_->trace.size();
}

void SimulatedDisk::after(const IoEvent& event) const {
  const std::lock_guard lock(recorder_->mutex);
  recorder_->record(event);
}

namespace {

using Visit = std::function<void(MemoryFileSystem&, const CrashState&)>;

// The states that a crash at one point of the trace can leave.
class CrashPoint {
 public:
  CrashPoint(const CrashModel& model, std::size_t prefix, std::string what,
             const CrashOptions& options, std::unordered_set<std::uint64_t>& seen,
             CrashCounts& counts, const Visit& visit)
      : model_(model),
        units_(model.pending()),
        prefix_(prefix),
        what_(std::move(what)),
        options_(options),
        seen_(seen),
        counts_(counts),
        visit_(visit) {}

  void run(std::mt19937_64& random) {
    emit("nothing pending", [](std::size_t) { return false; });
    emit("everything", [](std::size_t) { return true; });
    for (std::size_t lost = 0; lost < units_.size(); ++lost)
      emit(fmt::format("all but unit {}", lost), [&](std::size_t i) { return i != lost; });
    emit("names only", [&](std::size_t i) { return is<NameChange>(i); });
    emit("names and sizes, no data", [&](std::size_t i) { return !is<PageWrite>(i); });
    emit("data, no names", [&](std::size_t i) { return !is<NameChange>(i); });
    tear_last_write();
    if (units_.size() < 2) return;
    const bool few = units_.size() <= kFewUnits && options_.random_subsets > 0;
    few ? all_subsets() : random_subsets(random);
  }

 private:
  template <class T>
  bool is(std::size_t i) const {
    return std::holds_alternative<T>(units_[i]);
  }

  template <class Keep>
  void emit(const std::string& how, const Keep& keep) {
    DiskImage image = model_.durable();
    for (std::size_t i = 0; i < units_.size(); ++i)
      if (keep(i)) image.apply(units_[i]);
    finish(image, how);
  }

  void tear_last_write() {
    std::size_t last = units_.size();
    while (last > 0 && !is<PageWrite>(last - 1)) --last;
    if (last == 0) return;
    --last;
    const PageWrite whole = std::get<PageWrite>(units_[last]);
    for (std::size_t cut = kSectorBytes; cut < whole.length; cut += kSectorBytes) {
      DiskImage image = model_.durable();
      for (std::size_t i = 0; i < units_.size(); ++i) {
        if (i != last) image.apply(units_[i]);
      }
      PageWrite torn = whole;
      torn.length = cut;
      image.apply(torn);
      finish(image, fmt::format("everything, the last write torn after {} bytes", cut));
    }
  }

  void all_subsets() {
    for (std::uint32_t kept = 0; kept < std::uint32_t{1} << units_.size(); ++kept)
      emit(fmt::format("subset {:b}", kept), [&](std::size_t i) { return (kept >> i & 1) != 0; });
  }

  // Half of them keep all names: what lies below a lost name differs in nothing that can be seen.
  void random_subsets(std::mt19937_64& random) {
    const std::uint64_t before = counts_.distinct;
    for (int n = 0; n < options_.random_subsets; ++n) {
      std::vector<bool> keep(units_.size());
      // Between almost nothing and almost everything, so that large pending sets are not always
      // halved.
      const std::uint64_t odds = random() % 15 + 1;
      for (std::size_t i = 0; i < keep.size(); ++i)
        keep[i] = random() % 16 < odds || (n % 2 == 1 && is<NameChange>(i));
      emit(fmt::format("random subset {}", n), [&](std::size_t i) { return keep[i]; });
      const std::uint64_t found = counts_.distinct - before;
      if (n >= kSubsetsBeforeGiving && found * 8 < static_cast<std::uint64_t>(n)) return;
    }
  }

  void finish(const DiskImage& image, const std::string& how) {
    ++counts_.generated;
    const auto phase = std::count_if(options_.marks.begin(), options_.marks.end(),
                                     [this](std::size_t mark) { return mark <= prefix_; });
    const bool first = seen_.insert(image.hash() + static_cast<std::uint64_t>(phase)).second;
    if (first) ++counts_.distinct;
    if (!first && options_.distinct_only) return;
    MemoryFileSystem fs;
    image.materialise(fs);
    visit_(fs, {prefix_, fmt::format("after {} operations ({}), {} of {} pending units", prefix_,
                                     what_, how, units_.size())});
  }

  const CrashModel& model_;
  const std::vector<Unit>& units_;
  std::size_t prefix_;
  std::string what_;
  const CrashOptions& options_;
  std::unordered_set<std::uint64_t>& seen_;
  CrashCounts& counts_;
  const Visit& visit_;
};

}  // namespace

CrashCounts SimulatedDisk::for_each_crash_state(
    const CrashOptions& options,
    const std::function<void(MemoryFileSystem&, const CrashState&)>& visit) const {
  const std::lock_guard lock(recorder_->mutex);
  CrashModel model(recorder_->start);
  std::unordered_set<std::uint64_t> seen;
  CrashCounts counts;
  std::mt19937_64 random(options.seed);
  const auto& trace = recorder_->trace;
  for (std::size_t prefix = 0; prefix <= trace.size(); ++prefix) {
    if (prefix > 0) model.play(trace[prefix - 1]);
    if (prefix < options.first_prefix) continue;
    CrashPoint(model, prefix, prefix == 0 ? "the start" : trace[prefix - 1].what, options, seen,
               counts, visit)
        .run(random);
  }
  return counts;
}

}  // namespace tessera
