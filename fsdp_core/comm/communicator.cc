#include <fmt/format.h>
#include <tessera/fsdp/communicator.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <unordered_set>

#include "fsdp_core/comm/failure.h"
#include "fsdp_core/comm/trace_report.h"

namespace tessera::fsdp {

namespace {

constexpr std::size_t kRecords = 2000;

std::int64_t now_us() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

}  // namespace

std::string_view comm_phase_name(CommPhase phase) {
  switch (phase) {
    case CommPhase::kSetup:
      return "setup";
    case CommPhase::kForward:
      return "forward";
    case CommPhase::kBackward:
      return "backward";
    case CommPhase::kSummon:
      return "summon";
    case CommPhase::kOptimizer:
      return "optimizer";
    case CommPhase::kCheck:
      return "check";
  }
  return "unknown phase";
}

std::string_view comm_op_name(CommOp op) {
  switch (op) {
    case CommOp::kAllGather:
      return "all-gather";
    case CommOp::kReduceScatter:
      return "reduce-scatter";
    case CommOp::kAllReduce:
      return "all-reduce";
    case CommOp::kBroadcast:
      return "broadcast";
    case CommOp::kBytes:
      return "all-gather of bytes";
    case CommOp::kBarrier:
      return "barrier";
  }
  return "unknown collective";
}

/// The last kRecords calls. Units are kept once each, so that a call allocates nothing once its
/// unit is known.
struct Communicator::Ring {
  struct TextHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>{}(text);
    }
  };
  struct Entry {
    CommOp op;
    CommPhase phase;
    at::ScalarType dtype;
    bool done;
    std::int64_t numel;
    const std::string* unit;
    std::int64_t issued_us;
  };

  void push(const Call& call) {
    auto unit = units.find(call.unit);
    if (unit == units.end()) unit = units.emplace(call.unit).first;
    const Entry entry{call.op, call.phase, call.dtype, false, call.numel, &*unit, now_us()};
    if (entries.empty()) entries.reserve(kRecords);
    if (entries.size() < kRecords)
      entries.push_back(entry);
    else
      entries[next % kRecords] = entry;
    ++next;
  }

  CommRecord record(std::uint64_t sequence) const {
    const Entry& entry = entries[sequence % kRecords];
    return {sequence,    entry.op,    entry.phase, entry.dtype,
            entry.numel, *entry.unit, entry.done,  entry.issued_us};
  }

  std::vector<Entry> entries;  // sequence s is at s % kRecords
  std::uint64_t next = 0;
  std::unordered_set<std::string, TextHash, std::equal_to<>>
      units;  // never erased: stable addresses
};

std::string Communicator::Call::to_string() const {
  std::string text = fmt::format("{} {}", comm_op_name(op), sequence);
  if (op != CommOp::kBytes && op != CommOp::kBarrier)
    text += fmt::format(" of {} {}", numel, c10::toString(dtype));
  text += fmt::format(" in {} of ", comm_phase_name(phase));
  return text + (unit.empty() ? std::string("the root unit") : fmt::format("unit \"{}\"", unit));
}

Communicator::Communicator(Identity identity)
    : identity_(std::move(identity)), ring_(std::make_unique<Ring>()) {
  TESSERA_CHECK(identity_.rank >= 0 && identity_.rank < size());
  if (identity_.trace_folder.empty())
    if (const char* folder = std::getenv("TESSERA_TRACE_DIR")) identity_.trace_folder = folder;
  if (!identity_.trace_folder.empty()) TraceBoard::add(*this);
}

Communicator::~Communicator() {
  if (!identity_.trace_folder.empty()) TraceBoard::remove(*this);
}

void Communicator::write_trace(std::string_view reason) const noexcept {
  if (!identity_.trace_folder.empty())
    TraceBoard::write(*this, global_rank(), identity_.trace_folder, reason);
}

std::vector<CommRecord> Communicator::records() const {
  std::vector<CommRecord> records;
  for (std::uint64_t s = ring_->next - ring_->entries.size(); s < ring_->next; ++s)
    records.push_back(ring_->record(s));
  return records;
}

void Communicator::count(const Call& call) {
  const std::int64_t others = size() - 1;
  const bool whole = call.op == CommOp::kBytes || call.op == CommOp::kBarrier;
  const std::int64_t factor = call.op == CommOp::kAllReduce ? 2 : 1;
  const std::int64_t wire = whole ? call.bytes * others : factor * call.bytes * others / size();
  if (whole || call.phase == CommPhase::kCheck) {
    ++counts_.check_calls;
    counts_.check_bytes += wire;
    return;
  }
  counts_.wire_bytes += wire;
  switch (call.op) {
    case CommOp::kAllGather:
      ++counts_.all_gathers;
      break;
    case CommOp::kReduceScatter:
      ++counts_.reduce_scatters;
      break;
    case CommOp::kAllReduce:
      ++counts_.all_reduces;
      break;
    default:
      ++counts_.broadcasts;
      break;
  }
}

/// A failure that began elsewhere (it names its rank) reads the same on all ranks.
Status Communicator::located(Status status) const {
  if (status.context.rank < 0) {
    status.context.rank = global_rank();
    status.context.operation = fmt::format("{}, group \"{}\"", call_.to_string(), name());
  } else if (status.context.operation.empty()) {
    status.context.operation = fmt::format("group \"{}\"", name());
  }
  return status;
}

void Communicator::die() { throw Error(dead_); }

void Communicator::follow(const std::shared_ptr<PendingCalls>& pending) const {
  const std::shared_ptr<PendingCalls> before = pending_.lock();
  if (before == pending) return;
  if (before) before->settle();
  pending_ = pending;
}

template <class F>
void Communicator::issue(Call call, F&& f) {
  if (const std::shared_ptr<PendingCalls> pending = pending_.lock()) pending->settle();
  if (!dead_.ok()) [[unlikely]]
    die();
  call.sequence = ring_->next;
  call_ = call;
  ring_->push(call);
  count(call);
  if (observer_) observer_(ring_->record(call.sequence));
  try {
    f();
  } catch (...) {
    Status status = communication_status();
    dead_ = located(failed(std::move(status)));
    write_trace(dead_.to_string());
    die();
  }
  ring_->entries[call.sequence % kRecords].done = true;
}

void Communicator::validate(const char* what, const at::Tensor& tensor, CommOp op) const {
  const char* wrong = !tensor.defined()                ? "is undefined"
                      : !takes(tensor.device().type()) ? "is on the wrong device"
                      : !tensor.is_contiguous()        ? "is not contiguous"
                      : tensor.requires_grad()         ? "requires grad"
                                                       : nullptr;
  if (!wrong) return;
  fail(Code::kInvalidArgument,
       fmt::format("{} on group \"{}\": its {} {}", comm_op_name(op), name(), what, wrong));
}

void Communicator::validate_pair(const at::Tensor& whole, const at::Tensor& part, CommOp op) const {
  validate("full tensor", whole, op);
  validate("shard", part, op);
  if (whole.scalar_type() != part.scalar_type())
    fail(Code::kInvalidArgument,
         fmt::format("{} on group \"{}\": {} and {} are different types", comm_op_name(op), name(),
                     c10::toString(whole.scalar_type()), c10::toString(part.scalar_type())));
  if (whole.numel() != part.numel() * size())
    fail(Code::kInvalidArgument,
         fmt::format("{} on group \"{}\": {} elements are not {} shards of {}", comm_op_name(op),
                     name(), whole.numel(), size(), part.numel()));
}

void Communicator::validate_reduce(const at::Tensor& tensor, Reduce reduce, CommOp op) const {
  if (reduce == Reduce::kAverage && !tensor.is_floating_point() && !tensor.is_complex())
    fail(Code::kInvalidArgument,
         fmt::format("{} on group \"{}\": no average of {}: sum it", comm_op_name(op), name(),
                     c10::toString(tensor.scalar_type())));
}

void Communicator::all_gather_into(at::Tensor out, at::Tensor in, const CommTag& tag) {
  validate_pair(out, in, CommOp::kAllGather);
  issue({.op = CommOp::kAllGather,
         .phase = tag.phase,
         .dtype = out.scalar_type(),
         .numel = out.numel(),
         .unit = tag.unit,
         .bytes = static_cast<std::int64_t>(out.nbytes())},
        [&] { do_all_gather_into(out, in); });
}

void Communicator::reduce_scatter_into(at::Tensor out, at::Tensor in, Reduce op,
                                       const CommTag& tag) {
  validate_pair(in, out, CommOp::kReduceScatter);
  validate_reduce(in, op, CommOp::kReduceScatter);
  issue({.op = CommOp::kReduceScatter,
         .phase = tag.phase,
         .dtype = in.scalar_type(),
         .numel = in.numel(),
         .unit = tag.unit,
         .reduce = op,
         .bytes = static_cast<std::int64_t>(in.nbytes())},
        [&] { do_reduce_scatter_into(out, in, op); });
}

void Communicator::all_reduce(at::Tensor tensor, Reduce op, const CommTag& tag) {
  validate("tensor", tensor, CommOp::kAllReduce);
  validate_reduce(tensor, op, CommOp::kAllReduce);
  issue({.op = CommOp::kAllReduce,
         .phase = tag.phase,
         .dtype = tensor.scalar_type(),
         .numel = tensor.numel(),
         .unit = tag.unit,
         .reduce = op,
         .bytes = static_cast<std::int64_t>(tensor.nbytes())},
        [&] { do_all_reduce(tensor, op); });
}

void Communicator::broadcast(at::Tensor tensor, int root, const CommTag& tag) {
  validate("tensor", tensor, CommOp::kBroadcast);
  if (root < 0 || root >= size())
    fail(Code::kInvalidArgument,
         fmt::format("broadcast on group \"{}\" of {} from {}", name(), size(), root));
  issue({.op = CommOp::kBroadcast,
         .phase = tag.phase,
         .dtype = tensor.scalar_type(),
         .numel = tensor.numel(),
         .unit = tag.unit,
         .root = root,
         .bytes = static_cast<std::int64_t>(tensor.nbytes())},
        [&] { do_broadcast(tensor, root); });
}

std::vector<std::vector<std::byte>> Communicator::all_gather_bytes(std::span<const std::byte> bytes,
                                                                   const CommTag& tag) {
  std::vector<std::vector<std::byte>> all;
  issue({.op = CommOp::kBytes,
         .phase = tag.phase,
         .unit = tag.unit,
         .bytes = static_cast<std::int64_t>(bytes.size())},
        [&] { all = do_all_gather_bytes(bytes); });
  return all;
}

void Communicator::barrier(const CommTag& tag) {
  issue({.op = CommOp::kBarrier, .phase = tag.phase, .unit = tag.unit}, [&] { do_barrier(); });
}

}  // namespace tessera::fsdp
