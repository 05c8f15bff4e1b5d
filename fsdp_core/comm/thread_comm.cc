#include "fsdp_core/comm/thread_comm.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <tuple>

#include "fsdp_core/comm/failure.h"
#include "fsdp_core/comm/reduce_parts.h"

namespace tessera::fsdp {

namespace {

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

/// Real data movement between the memory of threads: everybody reads what it needs where it lies,
/// while the meeting holds all of them in the call.
class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(Identity identity, std::uint64_t generation, std::chrono::milliseconds timeout,
                     std::shared_ptr<ThreadHub> hub, std::shared_ptr<ThreadMeeting> meeting)
      : Communicator(std::move(identity)),
        generation_(generation),
        timeout_(timeout),
        hub_(std::move(hub)),
        meeting_(std::move(meeting)) {}

  ~ThreadCommunicator() override {
    meeting_->fail(
        {Code::kIo, fmt::format("rank {} has left group \"{}\"", global_rank(), name()), {}, {}});
  }

  std::string_view backend() const override { return "threads"; }

  void abort(std::string_view reason) noexcept override {
    meeting_->fail(aborted_status(global_rank(), reason));
  }

  std::shared_ptr<Communicator> rebuild(std::uint64_t generation) const override {
    return hub_->join(identity(), std::max(generation, generation_ + 1), timeout_);
  }

 private:
  /// What a member lays down: its call, to be compared, and its memory.
  struct Offer {
    const Call* call = nullptr;
    int global_rank = 0;
    std::byte* data = nullptr;
    std::span<const std::byte> bytes;
  };

  static Status equal_calls(std::span<const void* const> payloads) {
    const auto& first = *static_cast<const Offer*>(payloads[0]);
    for (const void* payload : payloads) {
      const auto& other = *static_cast<const Offer*>(payload);
      const auto key = [](const Call& c) {
        return std::tuple(c.op, c.dtype, c.numel, c.reduce, c.root, c.unit);
      };
      if (key(*first.call) == key(*other.call)) continue;
      return {Code::kInvalidArgument,
              fmt::format("ranks {} and {} disagree: rank {} calls {}, rank {} calls {}",
                          first.global_rank, other.global_rank, first.global_rank,
                          first.call->to_string(), other.global_rank, other.call->to_string()),
              {},
              {}};
    }
    return {};
  }

  Offer offer(const at::Tensor& tensor) const {
    return {&current_call(), global_rank(), static_cast<std::byte*>(tensor.data_ptr()), {}};
  }
  const Offer& offer_of(int member) const {
    return *static_cast<const Offer*>(meeting_->payload(member));
  }
  std::vector<const void*> parts_at(std::size_t offset_bytes) const {
    std::vector<const void*> parts(size());
    for (int member = 0; member < size(); ++member)
      parts[member] = offer_of(member).data + offset_bytes;
    return parts;
  }

  void do_all_gather_into(at::Tensor& out, at::Tensor& in) override {
    const Offer mine = offer(in);
    auto* to = static_cast<std::byte*>(out.data_ptr());
    const std::size_t bytes = in.nbytes();
    const ThreadMeeting::Visit visit(*meeting_, rank(), &mine, equal_calls);
    for (int member = 0; member < size(); ++member)
      copy_bytes(to + member * bytes, offer_of(member).data, bytes);
  }

  void do_reduce_scatter_into(at::Tensor& out, at::Tensor& in, Reduce op) override {
    const Offer mine = offer(in);
    void* to = out.data_ptr();
    const ThreadMeeting::Visit visit(*meeting_, rank(), &mine, equal_calls);
    reduce_parts(to, parts_at(rank() * out.nbytes()), out.numel(), out.scalar_type(), op);
  }

  /// Each member reduces its slice of everybody's tensor, and writes the result to all of them.
  void do_all_reduce(at::Tensor& tensor, Reduce op) override {
    const Offer mine = offer(tensor);
    const std::int64_t begin = tensor.numel() * rank() / size();
    const std::int64_t count = tensor.numel() * (rank() + 1) / size() - begin;
    const std::size_t offset_bytes = begin * tensor.itemsize();
    const ThreadMeeting::Visit visit(*meeting_, rank(), &mine, equal_calls);
    reduce_parts(mine.data + offset_bytes, parts_at(offset_bytes), count, tensor.scalar_type(), op);
    for (int member = 0; member < size(); ++member)
      copy_bytes(offer_of(member).data + offset_bytes, mine.data + offset_bytes,
                 count * tensor.itemsize());
  }

  void do_broadcast(at::Tensor& tensor, int root) override {
    const Offer mine = offer(tensor);
    const ThreadMeeting::Visit visit(*meeting_, rank(), &mine, equal_calls);
    copy_bytes(mine.data, offer_of(root).data, tensor.nbytes());
  }

  std::vector<std::vector<std::byte>> do_all_gather_bytes(
      std::span<const std::byte> bytes) override {
    const Offer mine{&current_call(), global_rank(), nullptr, bytes};
    std::vector<std::vector<std::byte>> all(size());
    const ThreadMeeting::Visit visit(*meeting_, rank(), &mine, equal_calls);
    for (int member = 0; member < size(); ++member)
      all[member].assign(offer_of(member).bytes.begin(), offer_of(member).bytes.end());
    return all;
  }

  void do_barrier() override {
    const Offer mine{&current_call(), global_rank(), nullptr, {}};
    const ThreadMeeting::Visit visit(*meeting_, rank(), &mine, equal_calls);
  }

  const std::uint64_t generation_;
  const std::chrono::milliseconds timeout_;
  std::shared_ptr<ThreadHub> hub_;
  std::shared_ptr<ThreadMeeting> meeting_;
};

}  // namespace

std::shared_ptr<Communicator> ThreadHub::join(const Communicator::Identity& identity,
                                              std::uint64_t generation,
                                              std::chrono::milliseconds timeout) {
  return joined_.get(identity, generation,
                     [&] { return join_anew(identity, generation, timeout); });
}

std::shared_ptr<Communicator> ThreadHub::join_anew(const Communicator::Identity& identity,
                                                   std::uint64_t generation,
                                                   std::chrono::milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  auto& meeting = meetings_[{generation, identity.name}];
  if (!meeting) meeting = std::make_shared<ThreadMeeting>(identity.global_ranks, timeout);
  for (const int member : identity.global_ranks) {
    const auto failed = failed_ranks_.find({generation, member});
    if (failed != failed_ranks_.end()) meeting->fail(failed->second);
  }
  return std::make_shared<ThreadCommunicator>(identity, generation, timeout, shared_from_this(),
                                              meeting);
}

void ThreadHub::fail_rank(std::uint64_t generation, int global_rank,
                          const Status& status) noexcept {
  const std::lock_guard lock(mutex_);
  failed_ranks_.try_emplace({generation, global_rank}, status);
  for (const auto& [key, meeting] : meetings_) {
    const auto& members = meeting->rank_names();
    if (key.first == generation && std::ranges::find(members, global_rank) != members.end())
      meeting->fail(status);
  }
}

std::vector<std::shared_ptr<Communicator>> thread_communicators(int size,
                                                                std::chrono::milliseconds timeout) {
  if (size < 1) fail(Code::kInvalidArgument, fmt::format("a group of {} ranks", size));
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto hub = std::make_shared<ThreadHub>();
  std::vector<std::shared_ptr<Communicator>> communicators;
  for (int rank = 0; rank < size; ++rank)
    communicators.push_back(hub->join({"world", rank, ranks}, 0, timeout));
  return communicators;
}

}  // namespace tessera::fsdp
