#pragma once
// How long a busy machine kept this process from running: what limits in wall time are widened by.
#include <atomic>
#include <chrono>
#include <thread>

namespace tessera::fsdp::test {

/// Measures while it lives: by how much short sleeps were longer than asked for, in all.
class MachineStall {
 public:
  MachineStall()
      : ticker_([this] {
          while (!stop_) {
            const auto start = std::chrono::steady_clock::now();
            std::this_thread::sleep_for(kTick);
            const auto late = std::chrono::steady_clock::now() - start - kTick;
            if (late > kUsual) stalled_us_ += (late - kUsual) / std::chrono::microseconds(1);
          }
        }) {}
  ~MachineStall() {
    stop_ = true;
    ticker_.join();
  }
  std::int64_t ms() const { return stalled_us_ / 1000; }

 private:
  static constexpr std::chrono::milliseconds kTick{10};
  static constexpr std::chrono::milliseconds kUsual{1};
  std::atomic<bool> stop_ = false;
  std::atomic<std::int64_t> stalled_us_ = 0;
  std::thread ticker_;
};

}  // namespace tessera::fsdp::test
