#include <fmt/format.h>
#include <tessera/storage/counting_file_system.h>

#include <algorithm>
#include <iterator>

namespace tessera {

namespace {

void add_range(std::map<std::uint64_t, std::uint64_t>& ranges, std::uint64_t begin,
               std::uint64_t end) {
  if (begin == end) return;
  auto next = ranges.upper_bound(begin);
  if (next != ranges.begin() && std::prev(next)->second >= begin) {
    --next;
    begin = next->first;
  }
  while (next != ranges.end() && next->first <= end) {
    end = std::max(end, next->second);
    next = ranges.erase(next);
  }
  ranges.emplace(begin, end);
}

void add(IoCounts& to, const IoCounts& from) {
  to.opens += from.opens;
  to.creates += from.creates;
  to.reads += from.reads;
  to.writes += from.writes;
  to.bytes_read += from.bytes_read;
  to.bytes_written += from.bytes_written;
  to.syncs += from.syncs;
}

}  // namespace

void CountingFileSystem::after(const IoEvent& event) const {
  const std::lock_guard lock(mutex_);
  PerPath& path = paths_[event.path];
  IoCounts& counts = path.counts;
  switch (event.op) {
    case IoOp::kRead:
      ++counts.reads;
      counts.bytes_read += event.length;
      add_range(path.read, event.offset, event.offset + event.length);
      return;
    case IoOp::kWrite:
      ++counts.writes;
      counts.bytes_written += event.length;
      return;
    case IoOp::kOpen:
      ++counts.opens;
      break;
    case IoOp::kCreate:
    case IoOp::kReopen:
      ++counts.creates;
      break;
    case IoOp::kSync:
      ++counts.syncs;
      break;
    default:
      break;
  }
  trace_.push_back(fmt::format("{} {}", io_op_name(event.op), event.path));
  if (!event.other.empty()) trace_.back() += fmt::format(" -> {}", event.other);
}

IoCounts CountingFileSystem::total() const { return of(""); }

IoCounts CountingFileSystem::of(std::string_view suffix) const {
  const std::lock_guard lock(mutex_);
  IoCounts sum;
  for (const auto& [path, entry] : paths_)
    if (path.ends_with(suffix)) add(sum, entry.counts);
  return sum;
}

const CountingFileSystem::PerPath* CountingFileSystem::find(std::string_view suffix) const {
  for (const auto& [path, entry] : paths_)
    if (path.ends_with(suffix)) return &entry;
  return nullptr;
}

std::vector<std::pair<std::uint64_t, std::uint64_t>> CountingFileSystem::ranges_read(
    std::string_view suffix) const {
  const std::lock_guard lock(mutex_);
  const PerPath* entry = find(suffix);
  if (entry == nullptr) return {};
  return {entry->read.begin(), entry->read.end()};
}

std::uint64_t CountingFileSystem::bytes_read_within(std::string_view suffix, std::uint64_t begin,
                                                    std::uint64_t end) const {
  std::uint64_t bytes = 0;
  for (const auto& [from, to] : ranges_read(suffix)) {
    const std::uint64_t first = std::max(from, begin);
    const std::uint64_t last = std::min(to, end);
    if (first < last) bytes += last - first;
  }
  return bytes;
}

std::vector<std::string> CountingFileSystem::trace() const {
  const std::lock_guard lock(mutex_);
  return trace_;
}

void CountingFileSystem::reset() {
  const std::lock_guard lock(mutex_);
  paths_.clear();
  trace_.clear();
}

}  // namespace tessera
