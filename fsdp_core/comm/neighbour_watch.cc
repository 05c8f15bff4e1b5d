#include "fsdp_core/comm/neighbour_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <utility>

#include "fsdp_core/comm/no_sigpipe.h"

namespace tessera::fsdp {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kForever = std::chrono::hours(24 * 365);
/// For a goodbye to arrive, and for those who wait for that rank to notice, and tell what they did,
/// by themselves.
constexpr milliseconds kGoodbyeGrace{1000};
constexpr milliseconds kAskAgain{20};

/// Where a program calls exit() with its world in place, threads shall not touch what is being
/// destructed: all ranks end at that time, and their connections with them.
std::atomic<bool> exiting = false;

void watch_for_exit() {
  static const int registered = std::atexit([] { exiting = true; });
  (void)registered;
}

/// `rank`'s end of the connection of `first` to the next rank.
std::unique_ptr<GlooWire> link_of(int first, int rank, int size, const StoreLink& link) {
  const auto [low, high] = std::minmax({first, (first + 1) % size});
  const Communicator::Identity identity{
      fmt::format("the watch of rank {}", first), rank == low ? 0 : 1, {low, high}};
  return std::make_unique<GlooWire>(connect_gloo(identity, 0, link), kForever);
}

}  // namespace

NeighbourWatch::NeighbourWatch(StoreLink link, int rank, int size)
    : link_(std::move(link)), next_((rank + 1) % size), next_member_(next_ > rank ? 1 : 0) {
  const int previous = (rank + size - 1) % size;
  // In one order of all connections, even ranks' first: nobody waits in a circle, nor in a long row.
  const auto order = [](int first) { return std::pair(first % 2, first); };
  const auto connect_next = [&] { to_next_ = link_of(rank, rank, size, link_); };
  if (order(rank) < order(previous)) connect_next();
  to_previous_ = link_of(previous, rank, size, link_);
  if (!to_next_) connect_next();
  watch_for_exit();
  thread_ = std::thread([this] { run(); });
}

NeighbourWatch::~NeighbourWatch() {
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  leaves_.notify_all();
  to_next_->cut({Code::kCancelled, "this rank leaves", {}, {}});
  thread_.join();
}

bool NeighbourWatch::leaves_within(milliseconds time) {
  std::unique_lock lock(mutex_);
  return leaves_.wait_for(lock, time, [this] { return leaving_; }) || exiting;
}

void NeighbourWatch::wait_for_end() {
  try {
    to_next_->begin();
    to_next_->receive(0, &never_, 1, next_member_, 0);
    to_next_->wait(0);
  } catch (const std::exception&) {
    // It ends in no other way.
  }
}

std::optional<Status> NeighbourWatch::cause() {
  const Status gone{Code::kIo,
                    fmt::format("rank {} is gone: its process or its connections have ended", next_),
                    {"", "", "", next_},
                    {}};
  const auto deadline = Clock::now() + kGoodbyeGrace;
  for (milliseconds pause{0};; pause = kAskAgain) {
    if (leaves_within(pause)) return std::nullopt;
    const auto departure = link_.board->departure(next_);
    if (!departure)
      return next_ == 0 ? gone
                        : Status{Code::kIo,
                                 "the store, which rank 0 or the launcher keeps, does not answer",
                                 {},
                                 {}};
    if (departure->gone) return departure->gone;
    if (departure->goodbye) return std::nullopt;
    if (Clock::now() > deadline) link_.board->post_gone(gone);
  }
}

void NeighbourWatch::run() {
  const NoSigpipe no_sigpipe;
  wait_for_end();
  if (const auto why = cause()) link_.joined->lose(*why);
  to_next_->close();
  to_previous_->close();
}

}  // namespace tessera::fsdp
