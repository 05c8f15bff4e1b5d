#include "fsdp_core/comm/watched_connect.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <future>
#include <thread>

#include "fsdp_core/comm/within.h"

namespace tessera::fsdp {

namespace {

using std::chrono::milliseconds;

constexpr CommTag kConnectTag{"save and load", CommPhase::kSetup};
constexpr milliseconds kLongestPause{20};

enum class Stage : std::uint8_t { kConnecting, kConnected, kFailed };

using Made = std::shared_ptr<Communicator>;

/// How far all are. Throws at once when one is gone.
std::vector<Stage> stages(Communicator& connected, Stage mine) {
  const std::array byte{static_cast<std::byte>(mine)};
  std::vector<Stage> all;
  for (const auto& theirs : connected.all_gather_bytes(byte, kConnectTag))
    all.push_back(theirs.empty() ? Stage::kFailed : static_cast<Stage>(theirs[0]));
  return all;
}

}  // namespace

std::shared_ptr<Communicator> watched_connect(Communicator& connected,
                                              std::function<Made()> connect) {
  stages(connected, Stage::kConnecting);
  std::future<Made> future = started<Made>(std::move(connect));
  Made made;
  Stage mine = Stage::kConnecting;
  std::exception_ptr failure;
  for (milliseconds pause(1);; pause = std::min(2 * pause, kLongestPause)) {
    if (mine == Stage::kConnecting && future.wait_for(pause) == std::future_status::ready) {
      try {
        made = future.get();
        mine = Stage::kConnected;
      } catch (...) {
        failure = std::current_exception();
        mine = Stage::kFailed;
      }
    } else if (mine != Stage::kConnecting) {
      std::this_thread::sleep_for(pause);
    }
    const std::vector<Stage> all = stages(connected, mine);
    if (failure) std::rethrow_exception(failure);
    const auto failed = std::ranges::find(all, Stage::kFailed);
    if (failed != all.end())
      fail(Code::kIo, fmt::format("rank {} could not connect the group of saves in the background",
                                  failed - all.begin()));
    if (std::ranges::all_of(all, [](Stage stage) { return stage == Stage::kConnected; }))
      return made;
  }
}

}  // namespace tessera::fsdp
