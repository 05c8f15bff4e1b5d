#include "fsdp_core/simulate/noted_streams.h"

#include <utility>

namespace tessera::fsdp {

int Notes::add_lane(std::string name) {
  lane_names_.push_back(std::move(name));
  last_.push_back(-1);
  pending_.emplace_back();
  return static_cast<int>(lane_names_.size()) - 1;
}

int Notes::note(TimedOperation operation) {
  operation.lane = current_lane;
  const auto lane = static_cast<std::size_t>(current_lane);
  if (last_[lane] >= 0) operation.after.push_back(last_[lane]);
  if (host_ >= 0) operation.after.push_back(host_);
  operation.after.insert(operation.after.end(), pending_[lane].begin(), pending_[lane].end());
  pending_[lane].clear();
  return last_[lane] = timeline.add(std::move(operation));
}

int Notes::note_collective(const Communicator* group, TimedOperation operation) {
  const auto before = last_of_group_.find(group);
  if (before != last_of_group_.end()) operation.after.push_back(before->second);
  operation.collective = true;
  return last_of_group_[group] = note(std::move(operation));
}

int Notes::point(int lane) {
  const int running = std::exchange(current_lane, lane);
  const int at = note({});
  current_lane = running;
  return at;
}

namespace {

struct NotedEvent final : Event::Impl {
  NotedEvent(std::shared_ptr<Notes> notes_, int operation_)
      : notes(std::move(notes_)), operation(operation_) {}
  void synchronize() override { notes->host_waited(operation); }
  bool ready() const override { return notes->is_settled(operation); }
  const std::shared_ptr<Notes> notes;
  const int operation;
};

class NotedStream final : public Stream {
 public:
  NotedStream(std::string name, std::shared_ptr<Notes> notes, int lane)
      : Stream(std::move(name), /*immediate=*/false, /*launches_now=*/true),
        notes_(std::move(notes)),
        lane_(lane) {}
  Event record() override {
    return Event(std::make_shared<NotedEvent>(notes_, notes_->point(lane_)));
  }
  void wait(const Event& event) override {
    if (const auto* noted = dynamic_cast<const NotedEvent*>(event.impl().get()))
      notes_->wait(lane_, noted->operation);
  }
  int lane() const { return lane_; }

 private:
  void launch(std::function<void()> work, const Communicator* comm) override {
    launch_now(work, comm);
  }
  void launch_now(c10::function_ref<void()> work, const Communicator*) override {
    struct Restore {
      Notes& notes;
      int before;
      ~Restore() { notes.current_lane = before; }
    } restore{*notes_, std::exchange(notes_->current_lane, lane_)};
    work();
  }

  const std::shared_ptr<Notes> notes_;
  const int lane_;
};

class NotedStreams final : public StreamFactory {
 public:
  NotedStreams(std::shared_ptr<Notes> notes, bool serial_all_reduce)
      : notes_(std::move(notes)), serial_all_reduce_(serial_all_reduce) {
    compute_ = notes_->add_lane("compute");
  }
  std::shared_ptr<Stream> compute() override {
    return std::make_shared<NotedStream>("compute", notes_, compute_);
  }
  std::shared_ptr<Stream> make(std::string name, bool) override {
    if (name == "all-reduce" && serial_all_reduce_ && reduce_ >= 0)
      return std::make_shared<NotedStream>(std::move(name), notes_, reduce_);
    const int lane = notes_->add_lane(name);
    if (name == "reduce") reduce_ = lane;
    return std::make_shared<NotedStream>(std::move(name), notes_, lane);
  }

 private:
  const std::shared_ptr<Notes> notes_;
  const bool serial_all_reduce_;
  int compute_ = 0, reduce_ = -1;
};

}  // namespace

std::shared_ptr<StreamFactory> noted_streams(std::shared_ptr<Notes> notes, bool serial_all_reduce) {
  return std::make_shared<NotedStreams>(std::move(notes), serial_all_reduce);
}

}  // namespace tessera::fsdp
