#include "fsdp_core/comm/failure_board.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <thread>

#include "fsdp_core/comm/failure.h"
#include "fsdp_core/comm/within.h"

namespace tessera::fsdp {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

constexpr milliseconds kStorePatience{1500};
/// How long peers get to notice what this rank noticed. Longer than the second that a neighbour's
/// watch waits before it reports that a process is gone.
constexpr milliseconds kPeerPatience{1300};
constexpr milliseconds kLastPatience{200};  // for the last that is silent
constexpr milliseconds kPoll{5};

/// f(), or nothing if it fails or the store does not answer in time.
template <class T>
std::optional<T> within(milliseconds patience, std::function<T()> f) noexcept {
  try {
    return answered_within<T>(patience, std::move(f));
  } catch (...) {
    return std::nullopt;
  }
}

std::string failure_key(std::uint64_t generation) {
  return fmt::format("gen{}/failure", generation);
}

std::string goodbye_key(int rank) { return fmt::format("bye/{}", rank); }

constexpr const char* kGone = "gone";

/// The first to write a key stays: "<rank>\n<why>".
void write_once(c10d::Store& store, const std::string& key, const Status& status) {
  store.compareSet(key, std::string(), fmt::format("{}\n{}", status.context.rank, status.message));
}

std::optional<Status> read_status(c10d::Store& store, const std::string& key, Code code) {
  if (!store.check({key})) return std::nullopt;
  const std::string text = store.get_to_str(key);
  const auto end = text.find('\n');
  if (end == std::string::npos) return std::nullopt;
  return Status{code, text.substr(end + 1), {"", "", "", std::stoi(text.substr(0, end))}, {}};
}

std::optional<Status> read_failure(c10d::Store& store, std::uint64_t generation) {
  auto gone = read_status(store, kGone, Code::kIo);
  return gone ? gone : read_status(store, failure_key(generation), Code::kCancelled);
}

/// What each member was doing when it noticed; empty: it has not said so.
std::vector<std::string> wait_for_members(c10d::Store& store, const std::vector<std::string>& keys,
                                          std::uint64_t generation, const JoinedGroups& joined,
                                          std::optional<Status>& cause) {
  const auto start = Clock::now();
  std::vector<std::string> calls(keys.size());
  while (true) {
    std::size_t silent = 0;
    for (std::size_t member = 0; member < keys.size(); ++member) {
      if (calls[member].empty() && store.check({keys[member]}))
        calls[member] = store.get_to_str(keys[member]);
      if (calls[member].empty()) ++silent;
    }
    cause = read_failure(store, generation);
    if (!cause) cause = joined.why_lost();
    const auto waited = Clock::now() - start;
    // One silent member after a moment is the one that is gone.
    if (cause || silent == 0 || waited > kPeerPatience || (silent == 1 && waited > kLastPatience))
      return calls;
    std::this_thread::sleep_for(kPoll);
  }
}

Status compose(Status status, const std::vector<int>& members,
               const std::vector<std::string>& calls) {
  std::vector<int> silent;
  for (std::size_t i = 0; i < members.size(); ++i)
    if (calls[i].empty()) silent.push_back(members[i]);
  if (!silent.empty()) {
    status.message += fmt::format("; no answer from {} {}: dead, hung, or busy elsewhere",
                                  silent.size() == 1 ? "rank" : "ranks", fmt::join(silent, ", "));
    return status;
  }
  for (std::size_t i = 1; i < members.size(); ++i)
    if (calls[i] != calls[0]) {
      status.message =
          fmt::format("ranks {} and {} disagree: rank {} calls {}, rank {} calls {}", members[0],
                      members[i], members[0], calls[0], members[i], calls[i]);
      break;
    }
  return status;
}

}  // namespace

void FailureBoard::write(const std::string& key, const Status& status) const noexcept {
  within<bool>(kStorePatience, [store = store_, key, status] {
    write_once(*store, key, status);
    return true;
  });
}

void FailureBoard::post(std::uint64_t generation, const Status& status) const noexcept {
  // Each group that ends posts the same failure: where the store hangs, one wait is enough.
  if (last_posted_.exchange(generation) != generation) write(failure_key(generation), status);
}

void FailureBoard::post_gone(const Status& status) const noexcept { write(kGone, status); }

std::optional<Status> FailureBoard::posted(std::uint64_t generation) const noexcept {
  const auto found = within<std::optional<Status>>(
      kStorePatience, [store = store_, generation] { return read_failure(*store, generation); });
  return found.value_or(std::nullopt);
}

void FailureBoard::goodbye(int rank, int size, milliseconds patience) const noexcept {
  within<bool>(patience, [store = store_, rank, size, deadline = Clock::now() + patience] {
    store->set(goodbye_key(rank), "1");
    for (int other = 0; other < size; ++other)
      while (!store->check({goodbye_key(other)}) && Clock::now() < deadline)
        std::this_thread::sleep_for(kPoll);
    return true;
  });
}

Status FailureBoard::explain(Status status, const Communicator::Identity& group,
                             std::uint64_t generation, const std::string& call,
                             std::shared_ptr<const JoinedGroups> joined) const noexcept {
  const auto explained =
      within<Status>(kStorePatience, [store = store_, status, group, generation, call, joined] {
        std::vector<std::string> keys;
        for (const int member : group.global_ranks)
          keys.push_back(fmt::format("gen{}/lost/{}/{}", generation, group.name, member));
        store->set(keys[group.rank], call);
        std::optional<Status> cause;
        const auto calls = wait_for_members(*store, keys, generation, *joined, cause);
        return cause ? *cause : compose(status, group.global_ranks, calls);
      });
  if (explained) return *explained;
  status.message += "; the store, which rank 0 or the launcher keeps, does not answer either";
  return status;
}

}  // namespace tessera::fsdp
