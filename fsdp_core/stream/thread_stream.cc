// Streams of one communication thread: what they are given runs there in the order it was given, beside
// the caller's thread, which is the compute stream. So they need no waits among each other.
#include <pthread.h>
#include <signal.h>
#include <tessera/fsdp/communicator.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "fsdp_core/stream/stream.h"

namespace tessera::fsdp {
namespace {

/// Work is numbered from 1.
class CommThread final : public PendingCalls {
 public:
  CommThread() : thread_([this] { loop(); }) {}
  ~CommThread() override {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    thread_.join();  // never from that thread: no work holds a stream of it
  }

  void push(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(work));
      ++given_;
    }
    changed_.notify_all();
  }
  std::uint64_t given() const {
    const std::lock_guard lock(mutex_);
    return given_;
  }
  bool passed(std::uint64_t number) const {
    const std::lock_guard lock(mutex_);
    return done_ >= number;
  }
  /// Throws what the work up to that number threw first.
  void wait(std::uint64_t number) {
    if (is_own()) return;  // in order anyway
    std::unique_lock lock(mutex_);
    passed_.wait(lock, [&] { return done_ >= number; });
    if (error_ && failed_ <= number) std::rethrow_exception(error_);
  }
  void settle() override {
    if (is_own()) return;
    std::unique_lock lock(mutex_);
    passed_.wait(lock, [&] { return done_ == given_; });
  }
  void abandon() {
    std::unique_lock lock(mutex_);
    abandoned_ = true;
    passed_.wait(lock, [&] { return done_ == given_; });
    abandoned_ = false;
    error_ = nullptr;
  }

 private:
  bool is_own() const { return std::this_thread::get_id() == thread_.get_id(); }

  void loop() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);  // handlers are for the program's own threads
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stopped_ || !queue_.empty(); });
      if (queue_.empty()) return;
      std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      // After a failure work is passed over: what it needs may not be there.
      const bool runs = !error_ && !abandoned_;
      lock.unlock();
      std::exception_ptr error;
      try {
        if (runs) work();
        work = nullptr;
      } catch (...) {
        error = std::current_exception();
        work = nullptr;
      }
      lock.lock();
      ++done_;
      if (error && !error_) {
        error_ = std::move(error);
        failed_ = done_;
      }
      passed_.notify_all();
    }
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_, passed_;
  std::deque<std::function<void()>> queue_;
  std::uint64_t given_ = 0, done_ = 0, failed_ = 0;
  bool stopped_ = false, abandoned_ = false;
  std::exception_ptr error_;
  std::thread thread_;  // last: it uses the others
};

struct ThreadEvent final : Event::Impl {
  ThreadEvent(std::shared_ptr<CommThread> thread_, std::uint64_t number_)
      : thread(std::move(thread_)), number(number_) {}
  void synchronize() override { thread->wait(number); }
  bool ready() const override { return thread->passed(number); }
  const std::shared_ptr<CommThread> thread;
  const std::uint64_t number;
};

class ThreadStream final : public Stream {
 public:
  ThreadStream(std::string name, std::shared_ptr<CommThread> thread)
      : Stream(std::move(name), /*immediate=*/false), thread_(std::move(thread)) {}
  Event record() override {
    return Event(std::make_shared<ThreadEvent>(thread_, thread_->given()));
  }
  void wait(const Event& event) override {
    const auto* here = dynamic_cast<const ThreadEvent*>(event.impl().get());
    if ((here && here->thread == thread_) || event.ready()) return;
    thread_->push([event] { event.synchronize(); });
  }

 private:
  void launch(std::function<void()> work, const Communicator* comm) override {
    if (comm) comm->follow(thread_);
    thread_->push(std::move(work));
  }
  const std::shared_ptr<CommThread> thread_;
};

class ThreadStreams final : public StreamFactory {
 public:
  explicit ThreadStreams(std::shared_ptr<CommThread> thread) : thread_(std::move(thread)) {}
  std::shared_ptr<Stream> compute() override { return host_streams()->compute(); }
  std::shared_ptr<Stream> make(std::string name, bool) override {
    return std::make_shared<ThreadStream>(std::move(name), thread_);
  }
  void abandon() override { thread_->abandon(); }
  bool runs_behind() const override { return true; }

 private:
  const std::shared_ptr<CommThread> thread_;
};

}  // namespace

std::shared_ptr<StreamFactory> thread_streams() {
  thread_local std::weak_ptr<CommThread> comm_thread;
  std::shared_ptr<CommThread> thread = comm_thread.lock();
  if (!thread) comm_thread = thread = std::make_shared<CommThread>();
  return std::make_shared<ThreadStreams>(std::move(thread));
}

}  // namespace tessera::fsdp
