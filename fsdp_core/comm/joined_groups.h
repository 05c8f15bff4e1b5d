#pragma once
// JoinedGroups: the groups that ranks of this process have joined and still hold. A group of a
// generation is joined once: whoever asks again (each unit after a failure, the world, another
// model) gets the same communicator. Thread-safe; nothing is locked while a group is joined.
#include <tessera/fsdp/communicator.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

namespace tessera::fsdp {

class JoinedGroups {
 public:
  template <class F>
  std::shared_ptr<Communicator> get(const Communicator::Identity& identity,
                                    std::uint64_t generation, F&& join) {
    const Key key(generation, identity.name, identity.rank);
    if (auto known = find(key)) return known;
    std::shared_ptr<Communicator> joined = std::forward<F>(join)();
    const std::lock_guard lock(mutex_);
    if (why_lost_) throw Error(*why_lost_);
    joined_[key] = joined;
    return joined;
  }

  /// Why no group can be joined any more.
  std::optional<Status> why_lost() const {
    const std::lock_guard lock(mutex_);
    return why_lost_;
  }
  /// All of them, and all that are being joined, end with `why`.
  void lose(const Status& why) noexcept {
    const std::lock_guard lock(mutex_);
    if (why_lost_) return;
    why_lost_ = why;
    for (const auto& [key, weak] : joined_)
      if (const auto group = weak.lock()) group->lose(why);
  }

 private:
  using Key = std::tuple<std::uint64_t, std::string, int>;
  std::shared_ptr<Communicator> find(const Key& key) {
    const std::lock_guard lock(mutex_);
    const auto known = joined_.find(key);
    return known == joined_.end() ? nullptr : known->second.lock();
  }

  mutable std::mutex mutex_;
  std::map<Key, std::weak_ptr<Communicator>> joined_;
  std::optional<Status> why_lost_;
};

}  // namespace tessera::fsdp
