// Streams that run late: each has a thread and waits a random time before each piece of work, so
// that work that forgot to wait for other work meets it unfinished. Compute is the caller's thread.
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "fsdp_core/stream/stream.h"

namespace tessera::fsdp {
namespace {

/// Passed once set; carries the first exception of the work before it.
class Latch final : public Event::Impl {
 public:
  void set(std::exception_ptr error) {
    std::lock_guard lock(mutex_);
    error_ = error;
    set_ = true;
    changed_.notify_all();
  }
  void synchronize() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return set_; });
    if (error_) std::rethrow_exception(error_);
  }
  bool ready() const override {
    std::lock_guard lock(mutex_);
    return set_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool set_ = false;
  std::exception_ptr error_;
};

/// The order in which the streams may call a communicator: that in which the calls were enqueued.
class Turns {
 public:
  using Ticket = std::pair<const Communicator*, std::uint64_t>;
  Ticket take(const Communicator* comm) {
    std::lock_guard lock(mutex_);
    return {comm, comm ? lines_[comm].taken++ : 0};
  }
  /// Runs `work` when all before it had their turn; its turn passes however it ends.
  template <class F>
  void in_turn(const Ticket& ticket, F&& work) {
    if (!ticket.first) return work();
    std::unique_lock lock(mutex_);
    Line& line = lines_[ticket.first];
    changed_.wait(lock, [&] { return line.served == ticket.second; });
    lock.unlock();
    struct Pass {
      Turns& turns;
      Line& line;
      ~Pass() {
        std::lock_guard guard(turns.mutex_);
        ++line.served;
        turns.changed_.notify_all();
      }
    } pass{*this, line};
    work();
  }

 private:
  struct Line {
    std::uint64_t taken = 0;
    std::uint64_t served = 0;
  };
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<const Communicator*, Line> lines_;
};

class LateStream final : public Stream {
 public:
  LateStream(std::string name, std::shared_ptr<Turns> turns, std::uint64_t seed, int max_delay_us)
      : Stream(std::move(name), /*immediate=*/false),
        turns_(std::move(turns)),
        random_(seed),
        max_delay_us_(max_delay_us) {
    thread_ = std::thread([this] { loop(); });
  }
  ~LateStream() override {
    {
      std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Event record() override {
    auto latch = std::make_shared<Latch>();
    push([this, latch] { latch->set(error_); }, false);
    return Event(latch);
  }
  void wait(const Event& event) override {
    if (event.ready()) return;
    push([event] { event.synchronize(); }, false);
  }

 private:
  void launch(std::function<void()> work, const Communicator* comm) override {
    // After a failure work is passed over, but not its turn.
    push(
        [this, work = std::move(work), ticket = turns_->take(comm)] {
          turns_->in_turn(ticket, [&] {
            if (!error_) work();
          });
        },
        true);
  }

  void push(std::function<void()> work, bool late) {
    {
      std::lock_guard lock(mutex_);
      queue_.push_back({std::move(work), late});
    }
    changed_.notify_all();
  }

  void loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stopped_ || !queue_.empty(); });
      if (queue_.empty()) return;
      auto [work, late] = std::move(queue_.front());
      queue_.pop_front();
      const int delay = late && max_delay_us_ > 0
                            ? static_cast<int>(random_() % static_cast<unsigned>(max_delay_us_))
                            : 0;
      lock.unlock();
      if (delay > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay));
      try {
        work();
      } catch (...) {
        if (!error_) error_ = std::current_exception();
      }
      work = nullptr;
      lock.lock();
    }
  }

  std::shared_ptr<Turns> turns_;
  std::mt19937_64 random_;
  int max_delay_us_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<std::function<void()>, bool>> queue_;
  bool stopped_ = false;
  std::exception_ptr error_;  // the stream's thread alone
  std::thread thread_;
};

/// The caller's own work is always done by the time it asks.
class CallerStream final : public Stream {
 public:
  explicit CallerStream(std::shared_ptr<Turns> turns)
      : Stream("compute", /*immediate=*/false), turns_(std::move(turns)) {}
  Event record() override { return {}; }
  void wait(const Event& event) override { event.synchronize(); }

 private:
  void launch(std::function<void()> work, const Communicator* comm) override {
    turns_->in_turn(turns_->take(comm), work);
  }

  std::shared_ptr<Turns> turns_;
};

class SimulatedStreams final : public StreamFactory {
 public:
  SimulatedStreams(std::uint64_t seed, int max_delay_us)
      : seed_(seed), max_delay_us_(max_delay_us) {}
  std::shared_ptr<Stream> compute() override { return std::make_shared<CallerStream>(turns_); }
  std::shared_ptr<Stream> make(std::string name, bool) override {
    return std::make_shared<LateStream>(std::move(name), turns_, seed_++, max_delay_us_);
  }

 private:
  std::shared_ptr<Turns> turns_ = std::make_shared<Turns>();
  std::uint64_t seed_;
  int max_delay_us_;
};

}  // namespace

std::shared_ptr<StreamFactory> simulated_streams(std::uint64_t seed, int max_delay_us) {
  return std::make_shared<SimulatedStreams>(seed, max_delay_us);
}

}  // namespace tessera::fsdp
