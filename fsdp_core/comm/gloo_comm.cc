#include "fsdp_core/comm/gloo_comm.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "fsdp_core/comm/failure.h"
#include "fsdp_core/comm/gloo_wire.h"
#include "fsdp_core/comm/no_sigpipe.h"
#include "fsdp_core/comm/reduce_parts.h"
#include "fsdp_core/comm/within.h"

namespace tessera::fsdp {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kPieceBytes = std::size_t{512} << 10;  // per peer and half: 1 MiB per peer
constexpr std::size_t kSmallBytes = std::size_t{32} << 10;   // an all-reduce in one exchange

std::byte* data_of(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 29);
}

class GlooCommunicator final : public Communicator {
 public:
  GlooCommunicator(const Identity& identity, std::uint64_t generation, const StoreLink& link,
                   c10::intrusive_ptr<c10d::Backend> backend)
      : Communicator(identity),
        generation_(generation),
        link_(link),
        wire_(std::move(backend), link.timeout) {}

  std::string_view backend() const override { return "gloo"; }

  void abort(std::string_view reason) noexcept override {
    const Status why = aborted_status(global_rank(), reason);
    link_.board->post(generation_, why);  // before peers notice, so that they can name the reason
    wire_.cut(why);
  }

  void lose(const Status& why) noexcept override { wire_.cut(why); }

  std::shared_ptr<Communicator> rebuild(std::uint64_t generation) const override {
    return make_gloo(identity(), std::max(generation, generation_ + 1), link_);
  }

 private:
  /// A call in progress. When it fails, its messages end with it: declare what they write to first.
  class Running {
   public:
    explicit Running(GlooWire& wire) : wire_(wire), falling_(std::uncaught_exceptions()) {
      wire_.begin();
    }
    ~Running() {
      if (std::uncaught_exceptions() > falling_) wire_.close();
      wire_.end();
    }

   private:
    const NoSigpipe no_sigpipe_;
    GlooWire& wire_;
    const int falling_;
  };

  /// A half-open range of a tensor's elements.
  struct Slice {
    std::int64_t begin = 0;
    std::int64_t count = 0;
  };
  /// Equal slices where `numel` divides.
  Slice slice(std::int64_t numel, int member) const {
    const std::int64_t begin = numel * member / size();
    return {begin, numel * (member + 1) / size() - begin};
  }

  std::int32_t tag(std::int64_t step) const {
    const Call& call = current_call();
    std::uint64_t hash = mix(call.sequence, static_cast<std::uint64_t>(call.op));
    hash = mix(hash, static_cast<std::uint64_t>(call.dtype) << 8 | static_cast<int>(call.reduce));
    hash = mix(hash, static_cast<std::uint64_t>(call.numel));
    hash = mix(hash, static_cast<std::uint64_t>(call.root));
    hash = mix(hash, std::hash<std::string_view>{}(call.unit));
    return static_cast<std::int32_t>(mix(hash, static_cast<std::uint64_t>(step)) >> 33);
  }

  /// The i-th member to send to, and to receive from: at any i all members have different ones.
  int target(int i) const { return (rank() + i) % size(); }
  int source(int i) const { return (rank() - i + size()) % size(); }

  std::byte* staging(std::size_t bytes) {
    if (staging_.size() < bytes) staging_.resize(bytes);
    return staging_.data();
  }

  /// Everybody's slice of `whole` to everybody; this rank's own is in place.
  void gather_slices(std::byte* whole, std::int64_t numel, std::size_t itemsize,
                     std::int64_t step) {
    const Slice mine = slice(numel, rank());
    for (int i = 1; i < size(); ++i) {
      const Slice theirs = slice(numel, source(i));
      wire_.send(0, whole + mine.begin * itemsize, mine.count * itemsize, target(i), tag(step));
      wire_.receive(0, whole + theirs.begin * itemsize, theirs.count * itemsize, source(i),
                    tag(step));
    }
    wire_.wait(0);
  }

  void do_all_gather_into(at::Tensor& out, at::Tensor& in) override {
    const Running running(wire_);
    const std::size_t bytes = in.nbytes();
    std::byte* mine = data_of(out) + rank() * bytes;
    if (bytes > 0 && mine != data_of(in)) std::memcpy(mine, data_of(in), bytes);
    gather_slices(data_of(out), out.numel(), out.itemsize(), 0);
  }

  void post_piece(std::int64_t piece, std::int64_t piece_numel, const std::byte* in,
                  std::int64_t numel, std::size_t itemsize, std::byte* half) {
    const int batch = static_cast<int>(piece % 2);
    const std::int64_t at = piece * piece_numel;
    const auto part = [&](const Slice& s) {
      return std::clamp<std::int64_t>(s.count - at, 0, piece_numel) * itemsize;
    };
    const std::size_t mine = part(slice(numel, rank()));
    for (int i = 1; i < size(); ++i) {
      const Slice theirs = slice(numel, target(i));
      wire_.send(batch, in + (theirs.begin + at) * itemsize, part(theirs), target(i), tag(piece));
      wire_.receive(batch, half + source(i) * piece_numel * itemsize, mine, source(i), tag(piece));
    }
  }

  /// out = the sum over members of this rank's slice of `in`.
  void scatter_slices(std::byte* out, const std::byte* in, std::int64_t numel, at::ScalarType dtype,
                      Reduce reduce) {
    const std::size_t itemsize = c10::elementSize(dtype);
    const Slice mine = slice(numel, rank());
    const std::int64_t longest = (numel + size() - 1) / size();
    const std::int64_t piece_numel = std::min<std::int64_t>(longest, kPieceBytes / itemsize);
    if (longest == 0) return;
    const std::int64_t pieces = (longest + piece_numel - 1) / piece_numel;
    const std::size_t half_bytes = piece_numel * itemsize * size();
    std::byte* halves = staging((pieces > 1 ? 2 : 1) * half_bytes);
    std::vector<const void*> parts(size());
    const auto post = [&](std::int64_t piece) {
      post_piece(piece, piece_numel, in, numel, itemsize, halves + (piece % 2) * half_bytes);
    };
    post(0);
    for (std::int64_t piece = 0; piece < pieces; ++piece) {
      if (piece + 1 < pieces) post(piece + 1);
      wire_.wait(static_cast<int>(piece % 2));
      const std::int64_t at = piece * piece_numel;
      const std::byte* half = halves + (piece % 2) * half_bytes;
      for (int member = 0; member < size(); ++member)
        parts[member] = member == rank() ? in + (mine.begin + at) * itemsize
                                         : half + member * piece_numel * itemsize;
      reduce_parts(out + at * itemsize, parts,
                   std::clamp<std::int64_t>(mine.count - at, 0, piece_numel), dtype, reduce);
    }
  }

  void do_reduce_scatter_into(at::Tensor& out, at::Tensor& in, Reduce op) override {
    const Running running(wire_);
    scatter_slices(data_of(out), data_of(in), in.numel(), in.scalar_type(), op);
  }

  void reduce_small(at::Tensor& tensor, Reduce op) {
    const std::size_t bytes = tensor.nbytes();
    std::byte* all = staging(bytes * size());
    std::memcpy(all + rank() * bytes, data_of(tensor), bytes);
    gather_slices(all, tensor.numel() * size(), tensor.itemsize(), 0);
    std::vector<const void*> parts(size());
    for (int member = 0; member < size(); ++member) parts[member] = all + member * bytes;
    reduce_parts(data_of(tensor), parts, tensor.numel(), tensor.scalar_type(), op);
  }

  void do_all_reduce(at::Tensor& tensor, Reduce op) override {
    const Running running(wire_);
    if (tensor.numel() == 0) return;
    if (tensor.nbytes() * size() <= kSmallBytes) return reduce_small(tensor, op);
    const Slice mine = slice(tensor.numel(), rank());
    scatter_slices(data_of(tensor) + mine.begin * tensor.itemsize(), data_of(tensor),
                   tensor.numel(), tensor.scalar_type(), op);
    gather_slices(data_of(tensor), tensor.numel(), tensor.itemsize(), -1);
  }

  void do_broadcast(at::Tensor& tensor, int root) override {
    const Running running(wire_);
    const int place = (rank() - root + size()) % size();
    int reach = 1;  // members 0..reach-1, counted from the root, have it
    for (; reach < size() && reach <= place; reach *= 2) {
      if (place >= 2 * reach) continue;
      wire_.receive(0, data_of(tensor), tensor.nbytes(), (place - reach + root) % size(), tag(0));
      wire_.wait(0);
    }
    for (; reach < size(); reach *= 2)
      if (place + reach < size())
        wire_.send(0, data_of(tensor), tensor.nbytes(), (place + reach + root) % size(), tag(0));
    wire_.wait(0);
  }

  std::vector<std::vector<std::byte>> do_all_gather_bytes(
      std::span<const std::byte> bytes) override {
    std::vector<std::uint64_t> lengths(size());
    std::vector<std::vector<std::byte>> all(size());
    const Running running(wire_);
    lengths[rank()] = bytes.size();
    gather_slices(reinterpret_cast<std::byte*>(lengths.data()), size(), sizeof lengths[0], 0);
    all[rank()].assign(bytes.begin(), bytes.end());
    for (int i = 1; i < size(); ++i) {
      auto& theirs = all[source(i)];
      theirs.resize(lengths[source(i)]);
      wire_.send(0, bytes.data(), bytes.size(), target(i), tag(1));
      wire_.receive(0, theirs.data(), theirs.size(), source(i), tag(1));
    }
    wire_.wait(0);
    return all;
  }

  void do_barrier() override {
    const Running running(wire_);
    gather_slices(staging(size()), size(), 1, 0);
  }

  Status failed(Status status) noexcept override {
    const auto why = wire_.why_cut();
    wire_.close();  // peers that wait for this rank must fail too
    if (why) return *why;
    return link_.board->explain(std::move(status), identity(), generation_,
                                current_call().to_string(), link_.joined);
  }

  const std::uint64_t generation_;
  const StoreLink link_;
  GlooWire wire_;
  std::vector<std::byte> staging_;
};

c10::intrusive_ptr<c10d::Backend> connect(const Communicator::Identity& identity,
                                          const std::string& prefix, const StoreLink& link) {
  const NoSigpipe no_sigpipe;  // in the threads that Gloo starts
  auto options = c10d::ProcessGroupGloo::Options::create(link.join_timeout);
  options->threads = 1;  // for collectives of its own, which nobody calls
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  options->devices.push_back(interface ? c10d::ProcessGroupGloo::createDeviceForInterface(interface)
                             : link.loopback
                                 ? c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")
                                 : c10d::ProcessGroupGloo::createDefaultDevice());
  for (const int member : identity.global_ranks) options->global_ranks_in_group.push_back(member);
  return c10::make_intrusive<c10d::ProcessGroupGloo>(
      c10::make_intrusive<c10d::PrefixStore>(prefix + "gloo", link.store), identity.rank,
      static_cast<int>(identity.global_ranks.size()), options);
}

}  // namespace

std::string group_prefix(const Communicator::Identity& identity, std::uint64_t generation) {
  return fmt::format("gen{}/group/{}/", generation, identity.name);
}

namespace {

constexpr std::chrono::milliseconds kMemberPause{20};
/// Gloo gives each of its own attempts the timeout.
constexpr int kConnectPatience = 2;

void throw_if_lost(const StoreLink& link) {
  if (const auto why = link.joined->why_lost()) throw Error(*why);
}

/// What started() gives, or nothing after `patience`; throws as soon as the world is lost.
template <class T>
std::optional<T> answer_unless_lost(const StoreLink& link, std::chrono::milliseconds patience,
                                    std::future<T> answer) {
  const auto deadline = Clock::now() + patience;
  while (answer.wait_for(kMemberPause) != std::future_status::ready) {
    throw_if_lost(link);
    if (Clock::now() > deadline) return std::nullopt;
  }
  return answer.get();
}

/// Announces this member in the store and returns those of `absent` that have not announced
/// themselves. Throws kTimeout where the store does not answer by `deadline` or soon after: the
/// rank that runs it may hang.
std::vector<int> absent_members(const StoreLink& link, const std::string& prefix, int mine,
                                std::vector<int> absent, Clock::time_point deadline) {
  constexpr std::chrono::milliseconds kLeast{1500};
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
  const auto key = [prefix](int global_rank) { return prefix + std::to_string(global_rank); };
  auto found = answer_unless_lost(
      link, std::max(left, kLeast),
      started<std::vector<int>>([store = link.store, key, mine, absent] {
        store->set(key(mine), "1");
        std::vector<int> still = absent;
        std::erase_if(still, [&](int rank) { return store->check({key(rank)}); });
        return still;
      }));
  if (!found)
    fail(Code::kTimeout,
         fmt::format("the store, which rank 0 or the launcher keeps, did not answer within {} ms",
                     link.join_timeout.count()));
  return std::move(*found);
}

void poll_members(const StoreLink& link, const Communicator::Identity& identity,
                  std::uint64_t generation) {
  const std::string prefix = group_prefix(identity, generation) + "here/";
  const int mine = identity.global_ranks[identity.rank];
  std::vector<int> absent = identity.global_ranks;
  const auto deadline = Clock::now() + link.join_timeout;
  std::chrono::milliseconds pause(1);
  while (true) {
    absent = absent_members(link, prefix, mine, std::move(absent), deadline);
    if (absent.empty()) return;
    throw_if_lost(link);
    const auto cause = link.board->posted(generation);
    if (cause && std::ranges::binary_search(identity.global_ranks, cause->context.rank))
      throw Error(*cause);
    if (Clock::now() > deadline) {
      const auto text = fmt::format("{} {} did not join group \"{}\" within {} ms",
                                    absent.size() == 1 ? "rank" : "ranks", fmt::join(absent, ", "),
                                    identity.name, link.join_timeout.count());
      link.board->post(generation, aborted_status(mine, text));
      fail(Code::kTimeout, text);
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kMemberPause);
  }
}

/// f(), its failure as ours: why the world is lost, where it is.
template <class F>
auto joining(const StoreLink& link, const Communicator::Identity& identity,
             std::uint64_t generation, F&& f) {
  try {
    throw_if_lost(link);
    return f();
  } catch (...) {
    const auto lost = link.joined->why_lost();
    Status status = lost ? *lost : communication_status();
    if (status.context.rank < 0) status.context.rank = identity.global_ranks[identity.rank];
    if (status.context.operation.empty())
      status.context.operation =
          fmt::format("joining group \"{}\", generation {}", identity.name, generation);
    throw Error(std::move(status));
  }
}

}  // namespace

void await_members(const StoreLink& link, const Communicator::Identity& identity,
                   std::uint64_t generation) {
  joining(link, identity, generation, [&] { poll_members(link, identity, generation); });
}

c10::intrusive_ptr<c10d::Backend> connect_gloo(const Communicator::Identity& identity,
                                               std::uint64_t generation, const StoreLink& link) {
  await_members(link, identity, generation);
  return joining(link, identity, generation, [&] {
    // Connecting takes the members one by one, and waits for one that is gone as for a slow one.
    using Backend = c10::intrusive_ptr<c10d::Backend>;
    auto connected =
        answer_unless_lost(link, kConnectPatience * link.join_timeout,
                           started<Backend>([identity, prefix = group_prefix(identity, generation),
                                             link] { return connect(identity, prefix, link); }));
    if (!connected)
      fail(Code::kTimeout, fmt::format("could not connect within {} ms",
                                       kConnectPatience * link.join_timeout.count()));
    return *connected;
  });
}

std::shared_ptr<Communicator> make_gloo(const Communicator::Identity& identity,
                                        std::uint64_t generation, const StoreLink& link) {
  return link.joined->get(identity, generation, [&] {
    return std::make_shared<GlooCommunicator>(identity, generation, link,
                                              connect_gloo(identity, generation, link));
  });
}

}  // namespace tessera::fsdp
