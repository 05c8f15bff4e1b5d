#include "fsdp_core/runtime/order_check.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/fsdp/world.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "fsdp_core/runtime/unit.h"
#include "fsdp_core/runtime/unit_digest.h"

namespace tessera::fsdp::detail {
namespace {

/// The same on every rank and in every process.
std::uint64_t hash_of(std::string_view text, std::uint64_t seed = 0xcbf29ce484222325ull) {
  for (const char c : text) seed = (seed ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return seed;
}

/// In the order of the work that streams were given for `comm`.
std::vector<std::string> gather_texts(Stream& compute, Communicator& comm,
                                      const std::string& mine) {
  std::vector<std::vector<std::byte>> all;
  compute.run(
      [&] {
        all = comm.all_gather_bytes(std::as_bytes(std::span(mine)), {"", CommPhase::kCheck});
      },
      &comm);
  std::vector<std::string> out;
  for (const std::vector<std::byte>& each : all)
    out.emplace_back(reinterpret_cast<const char*>(each.data()), each.size());
  return out;
}

/// The first member that says something else than member 0; a fake peer says nothing.
std::size_t first_other(const std::vector<std::string>& texts) {
  for (std::size_t i = 1; i < texts.size(); ++i)
    if (texts[i] != texts[0] && !texts[i].empty() && !texts[0].empty()) return i;
  return 0;
}

[[noreturn]] void disagree(const Communicator& comm, std::size_t other,
                           const std::vector<std::string>& texts, const char* hint) {
  const int first = comm.global_ranks()[0], second = comm.global_ranks()[other];
  fail(Code::kInvalidArgument,
       fmt::format("ranks {} and {} disagree: rank {} {}, rank {} {}", first, second, first,
                   texts[0], second, texts[other]),
       hint);
}

constexpr const char* kOrderHint =
    "every rank must run the same units in the same order; does the forward depend on the data?";

std::string step_text(const Unit& unit, CommOp op, bool backward) {
  return fmt::format("{} {} in {}", op == CommOp::kAllGather ? "gathers" : "reduces", unit.label(),
                     backward ? "backward" : "forward");
}

std::string sizes_text(Unit& unit) {
  std::string text;
  for (const std::unique_ptr<ParamGroup>& group : unit.groups())
    text += fmt::format("{}{} {}", text.empty() ? "" : " and ", group->layout().full_numel(),
                        c10::toString(group->dtypes().stored));
  return text;
}

/// Who has to wrap alike what a training forward begins with. Evaluations may be of one replica.
std::vector<std::shared_ptr<Communicator>> digest_groups(Unit& top, bool training) {
  UnitGroups& comms = top.comms();
  if (!training) return {comms.shard};
  const Options& options = top.options();
  // One group of all, so that ranks of different strategies meet.
  if (options.mesh && top.strategy().hybrid())
    return {options.mesh->world().group(options.mesh->ranks())};
  return {comms.shard, comms.replicate};
}

bool debug_asked_for() {
  const char* level = std::getenv("TORCH_DISTRIBUTED_DEBUG");
  return level != nullptr && std::string_view(level) == "DETAIL";
}

}  // namespace

void OrderCheck::use(const Unit& top, std::shared_ptr<Stream> compute) {
  compute_ = std::move(compute);
  device_ = top.device();
  level_ = top.options().check;
  if (level_ == Check::kCheap && debug_asked_for()) level_ = Check::kFull;
}

void OrderCheck::reset() {
  channels_.clear();
  pending_.clear();
  digested_.clear();
  digest_complete_ = false;
  first_step_ = true;
}

// ---- the same model ----

void OrderCheck::compare_wrapping(Unit& top, const Units& units) {
  const bool training = at::GradMode::is_enabled();
  for (const std::shared_ptr<Communicator>& comm : digest_groups(top, training)) {
    if (comm->size() == 1 || std::ranges::find(digested_, comm.get()) != digested_.end()) continue;
    compare_digest(*comm, units);
    digested_.push_back(comm.get());
  }
  digest_complete_ = training;
}

void OrderCheck::compare_digest(Communicator& comm, const Units& units) {
  const Digest digest = digest_of(units);
  const std::string text = encode(digest);
  const std::vector<std::string> hashes =
      gather_texts(*compute_, comm, fmt::format("{:016x}{}", hash_of(text), text.size()));
  if (first_other(hashes) == 0) return;
  // Every rank knows that they differ, so all of them come here.
  const std::vector<std::string> texts = gather_texts(*compute_, comm, text);
  const std::size_t other = first_other(texts);
  TESSERA_CHECK(other != 0);
  fail(Code::kInvalidArgument,
       first_difference(decode_digest(texts[0]), comm.global_ranks()[0],
                        decode_digest(texts[other]), comm.global_ranks()[other]),
       "build and wrap the model alike on every rank");
}

// ---- the same order ----

OrderCheck::Channel& OrderCheck::channel(Communicator& comm) {
  for (Channel& known : channels_)
    if (known.comm == &comm) return known;
  return channels_.emplace_back(Channel{.comm = &comm, .steps = {}});
}

void OrderCheck::before_gather(Unit& unit, CommPhase phase) {
  if (!on()) return;
  const bool evaluation = phase == CommPhase::kForward && !at::GradMode::is_enabled();
  if (evaluation) return;
  for (const Unit::Part& part : unit.parts())
    before(unit, *part.comms->shard, CommOp::kAllGather, phase);
}

void OrderCheck::before_reduce(Unit& unit) {
  if (!on()) return;
  for (const Unit::Part& part : unit.parts()) {
    before(unit, *part.comms->reduce, CommOp::kReduceScatter, CommPhase::kBackward);
    if (unit.all_reduce)
      before(unit, *part.comms->replicate, CommOp::kAllReduce, CommPhase::kBackward);
  }
}

void OrderCheck::before(Unit& unit, Communicator& comm, CommOp op, CommPhase phase) {
  if (comm.size() == 1) return;
  Channel& at = channel(comm);
  const bool backward = phase == CommPhase::kBackward;
  // Groups that all of this one's ranks are in stand where they stand on each of them.
  std::uint64_t beside = 0;
  for (const Channel& other : channels_)
    if (&other != &at && std::ranges::includes(other.comm->global_ranks(), comm.global_ranks()))
      beside += other.issued;
  ++at.issued;
  at.hash = hash_of(unit.name(), at.hash * 31 + static_cast<std::uint64_t>(op) * 2 + backward);
  at.hash = at.hash * 31 + beside;
  at.steps.push_back({&unit, op, backward, beside});
  at.reduced |= op != CommOp::kAllGather;
  if (!full()) return;
  const std::vector<std::string> texts = gather_texts(
      *compute_, comm, fmt::format("{} ({})", step_text(unit, op, backward), sizes_text(unit)));
  if (const std::size_t other = first_other(texts)) disagree(comm, other, texts, kOrderHint);
}

void OrderCheck::end_backward() {
  if (!on()) return;
  raise_mismatch(/*wait=*/true);  // of the step before: at most one is on its way
  for (Channel& channel : channels_) {
    // A backward without a reduction may be one that not every rank runs.
    if (!channel.reduced) continue;
    if (full()) {
      const auto texts = gather_texts(*compute_, *channel.comm, "ends its backward");
      if (const std::size_t other = first_other(texts))
        disagree(*channel.comm, other, texts, kOrderHint);
    } else if (channel.comm->device_type() == at::kCPU) {
      compare_hash(channel);
    } else {
      send_hash(channel);
    }
    channel.hash = 0;
    channel.reduced = false;
    channel.steps.clear();
    first_step_ = false;
  }
}

void OrderCheck::compare_hash(Channel& channel) {
  if (!flag_.defined()) flag_ = at::zeros({2}, at::kLong);
  const auto value = static_cast<std::int64_t>(channel.hash >> 1);
  std::int64_t* flag = flag_.mutable_data_ptr<std::int64_t>();
  flag[0] = value;
  flag[1] = -value;
  const CommTag tag{"", CommPhase::kCheck};
  // The largest and, negated, the smallest: equal where all are.
  compute_->run([&] { channel.comm->all_reduce(flag_, Reduce::kMax, tag); }, channel.comm);
  if (flag[0] == -flag[1]) return;
  std::string mine;
  for (const Step& step : channel.steps)
    mine += step_text(*step.unit, step.op, step.backward) +
            (step.beside > 0 ? fmt::format(" after {} in groups around it", step.beside) : "") +
            "\n";
  const auto texts = gather_texts(*compute_, *channel.comm, mine);
  const std::size_t other = first_other(texts);
  TESSERA_CHECK(other != 0);
  const auto [a, b] = std::ranges::mismatch(texts[0], texts[other]);
  const auto line = [](const std::string& text, std::string::const_iterator at) {
    const auto offset = static_cast<std::size_t>(at - text.begin());
    const std::size_t begin = offset == 0 ? 0 : text.rfind('\n', offset - 1) + 1;
    const std::string found = text.substr(begin, text.find('\n', begin) - begin);
    return found.empty() ? std::string("ends its backward") : found;
  };
  std::vector<std::string> lines(texts.size());
  lines[0] = line(texts[0], a);
  lines[other] = line(texts[other], b);
  disagree(*channel.comm, other, lines, kOrderHint);
}

void OrderCheck::send_hash(Channel& channel) {
  const auto value = static_cast<std::int64_t>(channel.hash >> 1);
  const at::Tensor hashes = at::empty({2}, at::TensorOptions(at::kLong).pinned_memory(true));
  std::int64_t* both = hashes.mutable_data_ptr<std::int64_t>();
  both[0] = value;
  both[1] = -value;
  compute_->run(
      [&] {
        const at::Tensor there = hashes.to(device_, /*non_blocking=*/true);
        channel.comm->all_reduce(there, Reduce::kMax, {"", CommPhase::kCheck});
        hashes.copy_(there, /*non_blocking=*/true);
      },
      channel.comm);
  pending_.push_back({channel.comm->name(), hashes, compute_->record()});
}

void OrderCheck::raise_mismatch(bool wait) {
  while (!pending_.empty()) {
    const Pending& first = pending_.front();
    if (!first.done.ready()) {
      if (!wait) return;
      first.done.synchronize();
    }
    const Pending one = std::move(pending_.front());
    pending_.erase(pending_.begin());
    const std::int64_t* both = one.hashes.const_data_ptr<std::int64_t>();
    if (both[0] == -both[1]) continue;
    fail(Code::kInvalidArgument,
         fmt::format("the ranks of group \"{}\" did not run their units in the same order in an "
                     "earlier step",
                     one.group),
         "options.check = Check::kFull names the first unit; does the forward depend on the data?");
  }
}

}  // namespace tessera::fsdp::detail
