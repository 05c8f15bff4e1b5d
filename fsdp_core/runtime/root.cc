#include "fsdp_core/runtime/root.h"

#include <fmt/format.h>
#include <sched.h>
#include <tessera/base/error.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "fsdp_core/params/pool.h"
#include "fsdp_core/params/recycler.h"
#include "fsdp_core/runtime/optimizer_in_backward.h"
#include "fsdp_core/runtime/put_back.h"
#include "fsdp_core/runtime/units_of.h"

namespace tessera::fsdp::detail {
namespace {

thread_local std::shared_ptr<StreamFactory> test_streams;

/// How many cores this rank has for itself; 0: nobody said how many ranks share the machine.
int cores_of_rank() {
  for (const char* name : {"LOCAL_WORLD_SIZE", "WORLD_SIZE"})
    if (const char* ranks = std::getenv(name)) {
      cpu_set_t cores;
      if (sched_getaffinity(0, sizeof cores, &cores) != 0) return 0;
      return CPU_COUNT(&cores) / std::max(1, std::atoi(ranks));
    }
  return 0;
}

bool has_comm_thread(Unit& top) {
  if (const std::optional<bool> wanted = top.options().communication_thread) return *wanted;
  for (const UnitGroups* comms : top.all_comms())
    for (const Communicator* comm : {comms->shard.get(), comms->replicate.get()})
      if (comm->size() > 1 && comm->backend() == "gloo") return cores_of_rank() >= 2;
  return false;
}

/// The outermost unit may have no parameters of its own.
c10::Device device_of(const NamedUnits& units) {
  for (auto unit = units.rbegin(); unit != units.rend(); ++unit)
    if (!unit->second->groups().empty()) return unit->second->device();
  return units.back().second->device();
}

}  // namespace

/// Owned by the engine's final callback: destroyed without having run means that the backward
/// failed.
struct Root::Token {
  std::shared_ptr<Root> root;
  bool ran = false;
  ~Token() {
    if (!ran) root->backward_failed();
  }
};

/// The final callback.
struct Root::FinishBackward : Pooled {
  explicit FinishBackward(std::shared_ptr<Token> its) : token(std::move(its)) {}
  void operator()() const {
    token->root->finish_backward();
    token->ran = true;
  }
  std::shared_ptr<Token> token;
};

void Root::use_streams(std::shared_ptr<StreamFactory> factory) {
  test_streams = std::move(factory);
}

Root& Root::of(Unit& unit) {
  if (unit.root()) {
    // A unit that ran before its parent was a root of its own then: the larger tree takes over.
    return *unit.root();
  }
  const NamedUnits members = named_units(unit.module());
  auto root = std::make_shared<Root>(unit, device_of(members));
  bool replicas = false;
  for (const auto& [fqn, member] : members) {
    if (member->root() && member->root()->depth_ > 0)
      fail(Code::kInvalidArgument,
           fmt::format("{} ran its forward inside another tree's; call the outermost module",
                       member->label()));
    if (member->comm_hook != unit.comm_hook)
      fail(Code::kInvalidArgument,
           fmt::format("communication hooks differ between {} and the {} around it", fqn,
                       unit.module().name()),
           "register_comm_hook goes to the outermost unit");
    if (member->full_precision_in_eval() != unit.full_precision_in_eval())
      fail(Code::kInvalidArgument,
           fmt::format("evaluation in full precision differs between {} and the {} around it", fqn,
                       unit.module().name()),
           "FSDP_USE_FULL_PREC_IN_EVAL is read by each fully_shard: set it before the first one");
  }
  for (const auto& [fqn, member] : members) {
    member->rename(fqns_of(unit.module(), member->modules(), fqn));
    member->set_root(root);
    root->units_.push_back(member);
    for (const UnitGroups* comms : member->all_comms()) replicas |= comms->replicas() > 1;
  }
  root->reducer_.use(*root->factory_, root->compute_, replicas);
  root->order_.use(unit, root->compute_);
  return *root;
}

Root::Root(Unit& top, c10::Device device) : top_(top.weak_from_this()), device_(device) {
  factory_ = test_streams           ? test_streams
             : !device.is_cpu()     ? device_streams(device)
             : has_comm_thread(top) ? thread_streams()
                                    : host_streams();
  compute_ = factory_->compute();
}

Unit* Root::top() const { return top_.lock().get(); }

std::vector<std::shared_ptr<Unit>> Root::units() const {
  std::vector<std::shared_ptr<Unit>> out;
  for (const std::weak_ptr<Unit>& unit : units_)
    if (auto alive = unit.lock()) out.push_back(std::move(alive));
  return out;
}

Stream& Root::gather(const Unit& unit, const UnitGroups& comms) {
  const Communicator* key = unit.options().unshard_stream_per_group ? comms.shard.get() : nullptr;
  for (auto& [known, stream] : *gather_streams_)
    if (known == key) return *stream;
  gather_streams_->emplace_back(key, factory_->make("gather", true));
  // Made in the middle of a forward, of which the others waited at its begin.
  gather_streams_->back().second->wait_for(*compute_);
  return *gather_streams_->back().second;
}

void Root::share_streams(Root& other) {
  if (gather_streams_ == other.gather_streams_) return;
  each_unit([](Unit& unit) { unit.reshard(); });
  for (auto& [key, stream] : *gather_streams_) stream->record().synchronize();
  free_aside(/*wait=*/true);
  factory_ = other.factory_;
  compute_ = other.compute_;
  gather_streams_ = other.gather_streams_;
  reducer_.share(*factory_, other.reducer_);
  order_.use(*top(), compute_);
}

// ---- forward ----

void Root::forward_begin(Unit& unit) {
  if (depth_++ > 0) return;
  each_unit([](Unit& member) {
    member.agree_requires_grad();
    member.set_buffer_precision();
  });
  forward_order_.begin(is_top(unit), at::GradMode::is_enabled(), order_.on());
  order_.raise_mismatch(/*wait=*/false);
  if (order_.wrapping_is_due()) order_.compare_wrapping(*top(), units());
  gather(unit, unit.comms());
  for (auto& [key, stream] : *gather_streams_)
    if (after_optimizer_)
      stream->wait(*after_optimizer_);
    else
      stream->wait_for(*compute_);
  after_optimizer_.reset();
}

void Root::entered(Unit& unit) {
  forward_order_.entered(unit);
  if (!unit.forward_prefetch.empty()) {
    prefetch_all(unit.forward_prefetch, CommPhase::kForward);
    return;
  }
  if (!unit.options().forward_prefetch && !factory_->runs_behind()) return;
  for (const std::shared_ptr<Unit>& next :
       forward_order_.next(unit, unit.options().max_prefetch_count))
    prefetch(*next, CommPhase::kForward);
}

void Root::left(Unit& unit, Use& use) {
  if (use.recompute()) return;
  use.epoch = epoch_;
  use.order_index = backward_order_.size();
  backward_order_.push_back(unit.weak_from_this());
}

void Root::forward_end() {
  if (--depth_ > 0) return;
  forward_order_.end();
  // Shards on the host may be written to from now on. With a graph, its backward waits for gathers.
  if (!at::GradMode::is_enabled()) wait_for_gathers_of_offloaded();
  // Gathered ahead for a forward that did not come: its memory is all it cost.
  each_unit([](Unit& member) {
    if (member.state().params() == ParamsState::kUnsharding) member.reshard();
    member.end_of_pass();
  });
}

void Root::wait_for_gathers_of_offloaded() {
  bool offloads = false;
  each_unit([&](Unit& unit) { offloads |= unit.offloads(); });
  if (!offloads) return;
  for (auto& [key, stream] : *gather_streams_) stream->record().synchronize();
}

void Root::forward_failed(Unit& unit) {
  Status status;
  try {
    if (std::current_exception()) {
      status = current_exception_status();
    } else {
      status.code = Code::kInternal;
      status.message = "an exception left its forward";
    }
  } catch (...) {
  }
  if (status.context.operation.empty())
    status.context.operation = fmt::format("forward of {}", unit.label());
  fail_step(status, false);
}

// ---- backward ----

void Root::enter_backward() {
  backward_ran_ = true;
  if (!token_.expired()) return;
  auto token = make_pooled<Token>();
  token->root = shared_from_this();
  token_ = token;
  torch::autograd::Engine::get_default_engine().queue_callback(FinishBackward(std::move(token)));
}

void Root::prefetch(Unit& unit, CommPhase phase) {
  if (unit.state().params() == ParamsState::kSharded) unit.start_unshard(phase);
}

void Root::prefetch_all(const std::vector<std::weak_ptr<Unit>>& units, CommPhase phase) {
  for (const std::weak_ptr<Unit>& each : units)
    if (auto next = each.lock(); next && next->root().get() == this) prefetch(*next, phase);
}

void Root::before_backward(Unit& unit, const Use& use) {
  last_in_backward_ = unit.weak_from_this();
  last_backward_index_ = use.epoch == epoch_ ? use.order_index : 0;
  if (!unit.backward_prefetch.empty()) {
    prefetch_all(unit.backward_prefetch, CommPhase::kBackward);
    return;
  }
  if (unit.options().backward_prefetch == BackwardPrefetch::kPre) prefetch_backward(unit);
}

void Root::after_backward(Unit& unit) {
  if (unit.backward_prefetch.empty() && unit.options().backward_prefetch == BackwardPrefetch::kPost)
    prefetch_backward(unit);
}

void Root::prefetch_backward(const Unit& unit) {
  if (last_backward_index_ > backward_order_.size()) return;
  int left = unit.options().max_prefetch_count;
  for (std::size_t i = last_backward_index_; i > 0 && left > 0; --i) {
    const std::shared_ptr<Unit> next = backward_order_[i - 1].lock();
    if (!next || !next->unshards_in_backward) continue;
    if (next.get() == &unit && unit.modules().size() > 1) continue;
    prefetch(*next, CommPhase::kBackward);
    --left;
  }
}

void Root::finish_backward() {
  for (auto member = units_.rbegin(); member != units_.rend(); ++member)
    if (const std::shared_ptr<Unit> unit = member->lock()) unit->complete_if_started();
  order_.end_backward();
  bool offloads = false;
  each_unit([&](Unit& unit) {
    unit.end_backward();
    offloads |= unit.offloads();
  });
  if (is_last_backward) {
    if (is_put_back(Race::kLoweredEarly)) lower_gradients();
    reducer_.finish(offloads && !is_put_back(Race::kOffloadUnordered));
    lower_gradients();
  }
  free_aside();
  end_recycler_step();
  each_unit([](Unit& unit) {
    if (unit.stepper) unit.stepper->forget_step();
  });
  last_backward_index_ = 0;
  token_.reset();
  if (!is_last_backward) return;
  backward_order_.clear();
  ++epoch_;
}

void Root::lower_gradients() {
  each_unit([](Unit& unit) { unit.lower_gradients(); });
}

void Root::backward_failed() noexcept {
  token_.reset();
  Status status;
  status.code = Code::kInternal;
  status.message = "a backward failed on this rank";
  const std::shared_ptr<Unit> last = last_in_backward_.lock();
  status.context.operation =
      last ? fmt::format("backward, last in {}", last->label()) : std::string("backward");
  fail_step(status, /*drop_gradients=*/true);
}

void Root::backward_threw() noexcept {
  if (!failure_.ok()) return;  // a unit took part: its token has reported it
  Status status;
  try {
    status = current_exception_status();
    if (status.context.operation.empty())
      status.context.operation = "backward, outside of its units";
  } catch (...) {
  }
  fail_step(status, /*drop_gradients=*/false);
}

// ---- memory ----

void Root::lay_aside(std::vector<at::Tensor> memory, const Event& used) {
  const std::lock_guard lock(aside_mutex_);
  aside_.push_back({std::move(memory), used});
}

void Root::free_aside(bool wait) noexcept {
  const std::lock_guard lock(aside_mutex_);
  try {
    std::erase_if(aside_, [wait](const Aside& each) {
      if (wait) each.used.synchronize();
      return wait || each.used.ready();
    });
  } catch (...) {
    aside_.clear();  // what failed there was reported where it mattered
  }
}

// ---- failure ----

void Root::fail_step(const Status& status, bool drop_gradients) noexcept {
  try {
    bool distributed = false, traced = false;
    for (const std::shared_ptr<Unit>& unit : units()) {
      for (const UnitGroups* comms : unit->all_comms())
        for (Communicator* comm : {comms->shard.get(), comms->reduce.get(), comms->replicate.get(),
                                   comms->regather.get(), comms->extension.get()}) {
          if (comm == nullptr || comm->size() == 1) continue;
          distributed = true;
          comm->abort(status.to_string());
          // One trace for all groups. A call that failed has written its own already.
          if (!traced && comm->alive()) comm->write_trace(status.to_string());
          traced = true;
        }
    }
    depth_ = 0;
    reducer_.abandon();
    factory_->abandon();
    for (const std::shared_ptr<Unit>& unit : units()) unit->reset(drop_gradients);
    backward_order_.clear();
    ++epoch_;
    const bool stepped = std::ranges::any_of(units(), [](const std::shared_ptr<Unit>& unit) {
      return unit->stepper && unit->stepper->stepped();
    });
    // Alone, nobody else is in the middle of anything: the next step may begin.
    if ((distributed || stepped) && failure_.ok()) failure_ = status;
  } catch (...) {
    failure_.code = Code::kInternal;
    failure_.message = "a step failed, and so did undoing it";
  }
}

void Root::check_alive(const Unit& unit) const {
  if (failure_.ok()) return;
  fail(failure_.code,
       fmt::format("{}: an earlier step failed: {}", unit.label(), failure_.to_string()),
       "call fsdp::reset(model) on every rank, then go on");
}

void Root::reset() {
  failure_ = {};
  depth_ = 0;
  factory_->abandon();
  order_.reset();
  backward_order_.clear();
  for (const std::shared_ptr<Unit>& unit : units()) unit->reset(true);
}

}  // namespace tessera::fsdp::detail
