#include "fsdp_core/comm/neighbour_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <utility>

#include "fsdp_core/comm/no_sigpipe.h"

namespace tessera::fsdp {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kForever = std::chrono::hours(24 * 365);
/// A word is a few hundred bytes: it leaves at once, or its reader is gone.
constexpr milliseconds kSendPatience{1000};
/// Ranks that wait for a process that is gone get this long to notice it themselves and to report
/// the call that they were in.
constexpr milliseconds kGrace{1000};
constexpr std::int32_t kTag = 0;

/// Where a program calls exit() with its world in place, threads shall not touch what is being
/// destructed: all ranks end at that time, and their connections with them.
std::atomic<bool> exiting = false;

void watch_for_exit() {
  static const int registered = std::atexit([] { exiting = true; });
  (void)registered;
}

}  // namespace

NeighbourWatch::Neighbour::Neighbour(c10::intrusive_ptr<c10d::Backend> backend, int rank_,
                                     int member_)
    : rank(rank_), member(member_), hears(backend, kForever), sends(backend, kSendPatience) {}

/// The connection of `first` and the rank after it, one of which is `rank`.
std::unique_ptr<NeighbourWatch::Neighbour> NeighbourWatch::connect(int first, int rank, int size,
                                                                   const StoreLink& link) {
  const int second = (first + 1) % size;
  const int other = rank == first ? second : first;
  const auto [low, high] = std::minmax({first, second});
  const Communicator::Identity identity{
      fmt::format("the watch of rank {}", first), rank == low ? 0 : 1, {low, high}};
  return std::make_unique<Neighbour>(connect_gloo(identity, 0, link), other, other == low ? 0 : 1);
}

NeighbourWatch::NeighbourWatch(StoreLink link, int rank, int size) : link_(std::move(link)) {
  const int before = (rank + size - 1) % size;
  // In one order of all connections, even ranks' first: nobody waits in a circle, nor in a long row.
  const auto order = [](int first) { return std::pair(first % 2, first); };
  if (order(rank) < order(before)) next_ = connect(rank, rank, size, link_);
  previous_ = connect(before, rank, size, link_);
  if (!next_) next_ = connect(rank, rank, size, link_);
  watch_for_exit();
  for (Neighbour* neighbour : {next_.get(), previous_.get()})
    neighbour->thread = std::thread([this, neighbour] { listen(*neighbour); });
}

NeighbourWatch::~NeighbourWatch() {
  bool lost = false;
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
    lost = lost_;
  }
  over_.notify_all();
  for (Neighbour* neighbour : {next_.get(), previous_.get()}) {
    if (!lost) send(*neighbour, Word{.kind = Word::kGoodbye});
    neighbour->hears.cut({Code::kCancelled, "this rank leaves", {}, {}});
    neighbour->thread.join();
  }
}

bool NeighbourWatch::over_within(milliseconds time) {
  std::unique_lock lock(mutex_);
  return over_.wait_for(lock, time, [this] { return leaving_ || lost_; }) || exiting;
}

void NeighbourWatch::send(Neighbour& neighbour, const Word& word) noexcept {
  const NoSigpipe no_sigpipe;
  try {
    neighbour.sends.begin();
    neighbour.sends.send(0, &word, sizeof word, neighbour.member, kTag);
    neighbour.sends.wait(0);
  } catch (const std::exception&) {
    // It is gone itself.
  }
  neighbour.sends.close();
}

void NeighbourWatch::listen(Neighbour& neighbour) {
  const NoSigpipe no_sigpipe;
  Word& word = neighbour.theirs;
  try {
    neighbour.hears.begin();
    neighbour.hears.receive(0, &word, sizeof word, neighbour.member, kTag);
    neighbour.hears.wait(0);
  } catch (const std::exception&) {
    word.kind = 0;  // the connection has ended, or was cut
  }
  if (word.kind == Word::kGoodbye || over_within(milliseconds(0))) return;
  if (word.kind == Word::kLost) {
    lose({static_cast<Code>(word.code), word.text.data(), {"", "", "", word.rank}, {}});
    return;
  }
  if (over_within(kGrace)) return;
  const Status gone{
      Code::kIo,
      fmt::format("rank {} is gone: its process or its connections have ended", neighbour.rank),
      {"", "", "", neighbour.rank},
      {}};
  lose(gone);
  link_.board->post_gone(gone);  // for messages of calls that fail in other ways
}

void NeighbourWatch::lose(const Status& why) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (lost_ || leaving_) return;  // one word, of one thread, to each neighbour
    lost_ = true;
  }
  over_.notify_all();
  Word word{
      .kind = Word::kLost, .rank = why.context.rank, .code = static_cast<std::int32_t>(why.code)};
  why.message.copy(word.text.data(), word.text.size() - 1);
  send(*next_, word);
  send(*previous_, word);
  link_.joined->lose(why);
}

}  // namespace tessera::fsdp
