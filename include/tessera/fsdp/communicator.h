#pragma once
// Communicator: the collectives of one process group, in the order they are called.
//
// Tensors are 1-D, contiguous, do not require grad. On CPUs a call returns when its result is
// there; on a GPU it is issued on the current stream and the caller owns the tensors' lifetimes.
// Every rank of the group makes the same calls in the same order; `tag` says for whom a call is,
// for checks, records and messages; ranks whose calls differ in op, dtype, numel or unit fail
// together (at once on threads, at the timeout on Gloo) instead of mixing each other's bytes. A
// failure (peer gone, timeout, aborted) is a tessera::Error that names group, rank, unit and phase;
// the group is dead from then on. One thread per rank. Implementations: Gloo and NCCL (c10d),
// threads of one process, one rank alone, and a counting fake for any world size.
#include <ATen/core/Tensor.h>
#include <tessera/base/error.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::fsdp {

enum class Reduce : std::uint8_t { kSum, kAverage, kMax, kMin };

/// The part of training that a collective belongs to. Error messages and records name it.
enum class CommPhase : std::uint8_t {
  kSetup,      // construction, synchronising module states
  kForward,    // gathers before a forward
  kBackward,   // gathers before a backward, reductions after it
  kSummon,     // summon_full_params, state dicts
  kOptimizer,  // clipping, scaler
  kCheck,      // order checks and agreements: counted apart
};
std::string_view comm_phase_name(CommPhase phase);

struct CommTag {
  std::string_view unit;  // FQN of the unit ("" is the root); lives as long as the call
  CommPhase phase = CommPhase::kSetup;
};

enum class CommOp : std::uint8_t {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kBroadcast,
  kBytes,
  kBarrier
};
std::string_view comm_op_name(CommOp op);

/// One issued collective, for order checks, tests and the report written on a timeout.
struct CommRecord {
  std::uint64_t sequence = 0;  // per communicator, from 0
  CommOp op = CommOp::kBarrier;
  CommPhase phase = CommPhase::kSetup;
  at::ScalarType dtype = at::kByte;
  std::int64_t numel =
      0;  // all-gather: of the output; reduce-scatter: of the input; else of the tensor
  std::string unit;
  bool done = false;
  std::int64_t issued_us = 0;  // microseconds since 1970
};

/// Counts since construction or reset. `wire_bytes`: what this rank sends under the ring formulas,
/// (N-1)/N of the full buffer for a gather or a scatter, twice that for an all-reduce.
struct CommCounts {
  std::int64_t all_gathers = 0;
  std::int64_t reduce_scatters = 0;
  std::int64_t all_reduces = 0;
  std::int64_t broadcasts = 0;
  std::int64_t wire_bytes = 0;
  std::int64_t check_calls = 0;  // CommPhase::kCheck, bytes and barriers
  std::int64_t check_bytes = 0;
};

/// Calls that a thread of the runtime's is to make yet, one after the other.
class PendingCalls {
 public:
  virtual ~PendingCalls() = default;
  /// Returns when all given so far are over; at once on that thread itself.
  virtual void settle() = 0;
};

class Communicator {
 public:
  struct Identity {
    std::string name;               // "world", "ranks 0-3,8", ...: equal on all members
    int rank = 0;                   // within the group
    std::vector<int> global_ranks;  // ascending; its size is the group's
    std::string trace_folder = {};  // where a failure is reported; "": TESSERA_TRACE_DIR
  };

  virtual ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return identity_.rank; }
  int size() const { return static_cast<int>(identity_.global_ranks.size()); }
  const std::vector<int>& global_ranks() const { return identity_.global_ranks; }
  int global_rank() const { return identity_.global_ranks[identity_.rank]; }
  const std::string& name() const { return identity_.name; }
  const std::string& trace_folder() const { return identity_.trace_folder; }
  virtual std::string_view backend() const = 0;  // "gloo", "nccl", "threads", "single", "fake"
  virtual at::DeviceType device_type() const { return at::kCPU; }
  /// Reduce::kAverage costs no more than kSum, and gives what a division of the sum would up to
  /// rounding.
  virtual bool has_average() const { return false; }

  /// out.numel() == size() * in.numel(). `in` may be this rank's own slot of `out` (in place).
  void all_gather_into(at::Tensor out, at::Tensor in, const CommTag& tag);
  /// in.numel() == size() * out.numel(). Summed in rank order 0..size-1 on CPUs; `in` is consumed
  /// (its values are unspecified afterwards). `out` may be this rank's own slot of `in`. kAverage divides the result by size().
  void reduce_scatter_into(at::Tensor out, at::Tensor in, Reduce op, const CommTag& tag);
  void all_reduce(at::Tensor tensor, Reduce op, const CommTag& tag);
  /// From `root` (rank within the group).
  void broadcast(at::Tensor tensor, int root, const CommTag& tag);
  /// Host bytes of every rank, by rank; lengths may differ.
  std::vector<std::vector<std::byte>> all_gather_bytes(std::span<const std::byte> bytes,
                                                       const CommTag& tag);
  void barrier(const CommTag& tag);

  /// Makes every pending and later call on every member fail soon. Callable from any thread.
  virtual void abort(std::string_view reason) noexcept = 0;
  /// Makes pending and later calls of this member fail with `why`, which its peers know already.
  /// Callable from any thread. Does nothing where the backend reports failures in another way.
  virtual void lose(const Status& /*why*/) noexcept {}

  /// False after a failure, which every later call repeats.
  bool alive() const { return dead_.ok(); }
  const Status& failure() const { return dead_; }

  /// A new communicator of the same ranks after a failure; collective over its members.
  /// `generation` is equal on all of them and larger than before.
  virtual std::shared_ptr<Communicator> rebuild(std::uint64_t generation) const = 0;

  const CommCounts& counts() const { return counts_; }
  void reset_counts() { counts_ = {}; }
  /// The last 2,000 collectives, oldest first.
  std::vector<CommRecord> records() const;
  /// Writes the records of all groups of this rank to `rank<N>.json` in the trace folder, with
  /// `reason` as this group's: what fsdp-trace-merge reads. Nothing without a folder. A call that
  /// fails does it by itself.
  void write_trace(std::string_view reason) const noexcept;
  /// Calls from elsewhere come after all of `pending` from now on, so that a group's calls keep the order
  /// in which they were asked for.
  void follow(const std::shared_ptr<PendingCalls>& pending) const;
  /// Called with each record as it is issued (tests, order checks). Empty: none.
  void observe(std::function<void(const CommRecord&)> observer) { observer_ = std::move(observer); }

 protected:
  explicit Communicator(Identity identity);

  /// The collective being issued, as messages and checks need it.
  struct Call {
    CommOp op = CommOp::kBarrier;
    CommPhase phase = CommPhase::kSetup;
    at::ScalarType dtype = at::kByte;
    std::int64_t numel = 0;
    std::uint64_t sequence = 0;
    std::string_view unit;
    Reduce reduce = Reduce::kSum;
    int root = 0;
    std::int64_t bytes = 0;  // of `numel`, or of the host bytes this rank gives
    /// `all-gather 12 of 64 Float in forward of unit "layers.0"`
    std::string to_string() const;
  };
  const Call& current_call() const { return call_; }
  const Identity& identity() const { return identity_; }

  /// After a call failed with `status`: makes sure that peers notice, and may say more of the
  /// cause.
  virtual Status failed(Status status) noexcept { return status; }

 private:
  virtual void do_all_gather_into(at::Tensor& out, at::Tensor& in) = 0;
  virtual void do_reduce_scatter_into(at::Tensor& out, at::Tensor& in, Reduce op) = 0;
  virtual void do_all_reduce(at::Tensor& tensor, Reduce op) = 0;
  virtual void do_broadcast(at::Tensor& tensor, int root) = 0;
  virtual std::vector<std::vector<std::byte>> do_all_gather_bytes(
      std::span<const std::byte> bytes) = 0;
  virtual void do_barrier() = 0;

  /// Whether tensors of that device may be given.
  virtual bool takes(at::DeviceType type) const { return type == device_type(); }

  template <class F>
  void issue(Call call, F&& f);
  void validate(const char* what, const at::Tensor& tensor, CommOp op) const;
  void validate_pair(const at::Tensor& whole, const at::Tensor& part, CommOp op) const;
  void validate_reduce(const at::Tensor& tensor, Reduce reduce, CommOp op) const;
  Status located(Status status) const;
  [[noreturn]] void die();
  void count(const Call& call);

  struct Ring;
  Identity identity_;
  CommCounts counts_;
  std::unique_ptr<Ring> ring_;
  Call call_;
  Status dead_;
  mutable std::weak_ptr<PendingCalls> pending_;
  std::function<void(const CommRecord&)> observer_;
};

/// One rank alone: gathers and reductions are copies (none where in and out are the same memory).
std::shared_ptr<Communicator> single_communicator();

/// Ranks as threads of this process: element r belongs to rank r's thread. Deterministic: sums in
/// rank order. A call that waits longer than `timeout` for a peer fails.
std::vector<std::shared_ptr<Communicator>> thread_communicators(
    int size, std::chrono::milliseconds timeout = std::chrono::seconds(30));

/// Exchanges nothing: a gather fills this rank's own slot alone (the others keep what they held), a
/// reduction gives this rank's own part, times size() for a sum. Its cost does not grow with `size`
/// and it allocates nothing: for counting, memory and overhead at any world size in one process.
std::shared_ptr<Communicator> fake_communicator(int rank, int size);

}  // namespace tessera::fsdp
