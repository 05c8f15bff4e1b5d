#pragma once
// Streams: in what order work runs, and who waits for whom. Memory that a stream still uses may
// only be dropped after the stream it was allocated on waited for that use (see params/param_group.h).
//
//   host       work runs at once on the caller's thread; events are always ready (CPUs)
//   thread     work runs on one communication thread, beside the caller's (CPUs)
//   device     work is launched at once on a device stream (CUDA, through LibTorch's generic API)
//   simulated  work runs later on a thread of the stream's own, with random delays: tests find
//              missing waits
//
// "compute" is the stream the caller's own operators run on.
#include <c10/core/Device.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace c10 {
struct Event;
}

namespace tessera::fsdp {

class Communicator;

/// A point in a stream's work. Copies are the same point; default: already passed.
class Event {
 public:
  struct Impl {
    virtual ~Impl() = default;
    virtual void synchronize() = 0;  // host waits; rethrows what the work before it threw
    virtual bool ready() const = 0;
  };
  Event() = default;
  explicit Event(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  void synchronize() const {
    if (impl_) impl_->synchronize();
  }
  bool ready() const { return !impl_ || impl_->ready(); }
  const std::shared_ptr<Impl>& impl() const { return impl_; }

 private:
  std::shared_ptr<Impl> impl_;
};

class Stream {
 public:
  virtual ~Stream() = default;
  const std::string& name() const { return name_; }
  /// Work has run when run() returns.
  bool immediate() const { return immediate_; }

  /// Runs `work` in this stream's order. Work must own (or outlive) what it touches. `comm`: a
  /// communicator that it calls. Work that names the same one runs in the order it was given,
  /// whatever its streams, as collectives of one group must on every rank.
  template <class F>
  void run(F&& work, const Communicator* comm = nullptr) {
    if (immediate_) {
      work();
    } else if (launches_now_) {
      launch_now(work, comm);
    } else {
      launch(std::function<void()>(std::forward<F>(work)), comm);
    }
  }
  /// The point after all work given so far.
  virtual Event record() = 0;
  /// Work given from now on runs after `event`.
  virtual void wait(const Event& event) = 0;
  void wait_for(Stream& other) {
    if (&other != this) wait(other.record());
  }

 protected:
  /// `launches_now`: calls of `work` are over when run() returns, though what they launch is not: so
  /// nothing needs to be kept of them.
  Stream(std::string name, bool immediate, bool launches_now = false)
      : name_(std::move(name)), immediate_(immediate), launches_now_(launches_now) {}
  virtual void launch(std::function<void()> work, const Communicator* comm) = 0;
  /// Called instead of launch() where the stream launches now.
  virtual void launch_now(c10::function_ref<void()> work, const Communicator* /*comm*/) { work(); }

 private:
  std::string name_;
  bool immediate_, launches_now_;
};

/// Makes the streams of one root.
class StreamFactory {
 public:
  virtual ~StreamFactory() = default;
  /// The caller's own stream.
  virtual std::shared_ptr<Stream> compute() = 0;
  virtual std::shared_ptr<Stream> make(std::string name, bool high_priority) = 0;
  /// After a failure: nothing given to the streams runs any more when it returns, and what it failed with
  /// is forgotten. Where work is a thread's of this process.
  virtual void abandon() {}
  /// The caller's thread does its compute itself: it is never ahead of what it gives to the streams.
  virtual bool runs_behind() const { return false; }
};

std::shared_ptr<StreamFactory> host_streams();
/// All factories that one thread makes share one communication thread: a rank's collectives run in the
/// order in which they were asked for, whatever their root.
std::shared_ptr<StreamFactory> thread_streams();
std::shared_ptr<StreamFactory> device_streams(c10::Device device);
/// One that the program recorded.
Event device_event(std::shared_ptr<c10::Event> event);
/// Each stream a thread; before each piece of work a delay drawn from `seed` up to `max_delay_us`.
std::shared_ptr<StreamFactory> simulated_streams(std::uint64_t seed, int max_delay_us);

}  // namespace tessera::fsdp
