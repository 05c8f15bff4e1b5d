// The simulated accelerator itself: it computes what the CPU computes, late, and finds what a test
// does wrong on purpose.
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "tests/fsdp/models.h"
#include "tests/fsdp/sim/device.h"
#include "tests/fsdp/sim/world.h"
#include "tests/fsdp/torch_and_catch.h"

namespace sim_device_test {

using namespace tessera;
using namespace tessera::fsdp::test;
using Catch::Contains;
using torch::Tensor;

namespace {

const torch::Device k0 = sim::device(0);

c10::Stream side_stream() {
  return c10::impl::VirtualGuardImpl(sim::kType).getStreamFromGlobalPool(k0, false);
}
void order(const c10::Stream& first, const c10::Stream& then) {
  c10::Event event(sim::kType);
  event.record(first);
  event.block(then);
}
/// What was found is what was expected: one line with these words.
void expect_finding(const std::string& words) {
  const std::vector<std::string> found = sim::take_findings();
  for (const std::string& each : found) UNSCOPED_INFO(each);
  REQUIRE(found.size() == 1);
  CHECK_THAT(found[0], Contains(words));
}

struct Late {
  explicit Late(int most_us) { sim::set_lateness(5, most_us); }
  ~Late() { sim::set_lateness(0, 0); }
};

Tensor trained(torch::Device device) {
  torch::manual_seed(7);
  torch::nn::Sequential net(torch::nn::Linear(8, 16),
                            torch::nn::LayerNorm(torch::nn::LayerNormOptions({16})),
                            torch::nn::GELU(), torch::nn::Linear(16, 4));
  net->to(device);
  const Tensor x = torch::linspace(-1, 1, 48).view({6, 8}).to(device);
  const Tensor y = torch::linspace(0, 1, 24).view({6, 4}).to(device);
  torch::optim::AdamW optimizer(net->parameters(), 1e-2);
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    torch::mse_loss(net->forward(x), y).backward();
    torch::nn::utils::clip_grad_norm_(net->parameters(), 0.5);
    optimizer.step();
  }
  std::vector<Tensor> out;
  for (const Tensor& parameter : net->parameters())
    out.push_back(parameter.detach().cpu().view({-1}));
  return torch::cat(out);
}

}  // namespace

TEST_CASE("a plain model trains on the simulated device bit for bit as on the CPU", "[sim]") {
  const Tensor expected = trained(torch::kCPU);
  const int most_us = GENERATE(0, 200);
  const Late late(most_us);
  CHECK(torch::equal(trained(k0), expected));
  const c10::Stream side = side_stream();
  const c10::StreamGuard guard(side);
  CHECK(torch::equal(trained(k0), expected));
  CHECK(sim::take_findings().empty());
}

TEST_CASE("views, out arguments, masks and lists give what the CPU gives", "[sim]") {
  const Tensor host = torch::arange(24, torch::kFloat).view({4, 6}), x = host.to(k0);
  CHECK(x.device() == k0);
  CHECK(torch::equal(x.t().contiguous().view({-1}).slice(0, 2, 20, 3).cpu(),
                     host.t().contiguous().view({-1}).slice(0, 2, 20, 3)));
  Tensor out = torch::empty({0}, x.options());
  at::matmul_out(out, x, x.t());
  CHECK(torch::equal(out.cpu(), host.matmul(host.t())));
  CHECK(torch::equal(x.index({x > 5}).cpu(), host.index({host > 5})));
  CHECK(x.nonzero().size(0) == 23);
  CHECK(torch::equal(std::get<1>(x.topk(2)).cpu(), std::get<1>(host.topk(2))));
  CHECK(torch::equal(x.to(torch::kBFloat16).cpu(), host.to(torch::kBFloat16)));
  std::vector<Tensor> list = {x.clone(), x.clone()};
  torch::_foreach_mul_(list, 2.0);
  CHECK(torch::equal(list[1].cpu(), host * 2));
  CHECK(torch::equal(x.to(sim::device(1)).cpu(), host));
  CHECK(x.sum().item<float>() == host.sum().item<float>());
  CHECK_THROWS(x.view({5, 5}));
  CHECK(sim::take_findings().empty());
}

TEST_CASE("each thread has a current device and streams of its own", "[sim]") {
  const c10::impl::VirtualGuardImpl guard(sim::kType);
  CHECK(guard.deviceCount() == sim::kDevices);
  {
    const c10::DeviceGuard on_one(sim::device(1));
    CHECK(torch::empty({1}, torch::TensorOptions(sim::kType)).device() == sim::device(1));
    std::thread([&] { CHECK(guard.getDevice() == k0); }).join();
  }
  CHECK(guard.getDevice() == k0);
  const c10::Stream side = side_stream();
  {
    const c10::StreamGuard on_side(side);
    CHECK(guard.getStream(k0) == side);
  }
  CHECK(guard.getStream(k0) == guard.getDefaultStream(k0));
}

TEST_CASE("the host cannot touch device memory", "[sim]") {
  const Tensor x = torch::ones({4}, k0);
  CHECK(x.cpu().sum().item<float>() == 4);
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGSEGV, SIG_DFL);
    const volatile float read = *static_cast<const float*>(x.const_data_ptr());
    ::_exit(read == 1 ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGSEGV);
}

TEST_CASE("a wait that is missing is found and its reader sees old values", "[sim]") {
  const Late late(20000);
  const c10::Stream one = side_stream(), two = side_stream();
  const Tensor x = torch::zeros({64}, k0), copy = torch::zeros({64}, k0);
  for (const c10::Stream& stream : {one, two}) order(sim::current_stream(0), stream);
  {
    const c10::StreamGuard guard(one);
    for (int i = 0; i < 8; ++i) x.add_(1);
  }
  {
    const c10::StreamGuard guard(two);
    copy.copy_(x);
  }
  CHECK_FALSE(one.query());  // nobody waited
  expect_finding("copy on stream");
  two.synchronize();
  CHECK(copy.cpu()[0].item<float>() != 8);
  order(one, two);
  {
    const c10::StreamGuard guard(two);
    copy.copy_(x);
  }
  two.synchronize();
  CHECK(copy.cpu()[0].item<float>() == 8);
  CHECK(sim::take_findings().empty());
}

TEST_CASE("a wait that a test drops is found without any lateness", "[sim]") {
  const c10::Stream side = side_stream();
  const Tensor x = torch::ones({64}, k0), copy = torch::zeros({64}, k0);
  sim::drop_wait(1);
  order(sim::current_stream(0), side);
  CHECK(sim::waits_asked() == 1);
  sim::drop_wait(0);
  {
    const c10::StreamGuard guard(side);
    x.add_(1);
  }
  expect_finding("does not wait for the write by aten::fill_");
  side.synchronize();
}

TEST_CASE("freed memory is given out again on its stream and holds nothing", "[sim]") {
  const void* first = nullptr;
  {
    const Tensor x = torch::ones({1000}, k0);
    first = x.const_data_ptr();
  }
  const Tensor again = torch::empty({1000}, k0);
  CHECK(again.const_data_ptr() == first);
  CHECK(again.cpu().isnan().all().item<bool>());
  CHECK(sim::take_findings().empty());
}

TEST_CASE("memory that another stream still reads is found when it is given out again", "[sim]") {
  const bool recorded = GENERATE(false, true);
  const c10::Stream side = side_stream();
  const Tensor out = torch::empty({3000}, k0);
  {
    Tensor x = torch::ones({3000}, k0);
    order(sim::current_stream(0), side);
    {
      const c10::StreamGuard guard(side);
      out.copy_(x);
    }
    if (recorded) x.record_stream(side);
  }
  const Tensor next = torch::empty({3000}, k0);
  if (recorded)
    CHECK(sim::take_findings().empty());
  else
    expect_finding(
        "memory given out again on the default stream of sim:0 does not wait for the read");
  side.synchronize();
  if (recorded) CHECK(out.cpu().sum().item<float>() == 3000);
}

TEST_CASE("pinned memory is filled late and other host memory at once", "[sim]") {
  const Late late(20000);
  const Tensor x = torch::full({64}, 3, k0);
  Tensor pinned = torch::full({64}, -1.f).pin_memory();
  CHECK(pinned.is_pinned());
  sim::reset_counts(0);
  x.add_(1);
  x.add_(1);
  pinned.copy_(x, /*non_blocking=*/true);
  CHECK(sim::counts(0).host_syncs == 0);
  CHECK(pinned[0].item<float>() == -1);
  sim::current_stream(0).synchronize();
  CHECK(pinned[0].item<float>() == 5);
  CHECK(sim::counts(0).launches == 3);
  CHECK(x.cpu()[0].item<float>() == 5);
  CHECK(sim::counts(0).host_syncs == 2);
}

TEST_CASE("counters tell allocations and the peak of what is given out", "[sim]") {
  { const Tensor warm = torch::empty({7000}, k0); }
  sim::reset_counts(0);
  const std::size_t before = sim::counts(0).bytes;
  { const Tensor again = torch::empty({7000}, k0); }
  CHECK(sim::counts(0).allocations == 0);
  CHECK(sim::counts(0).peak_bytes - before == 28160);  // 28,000 in grains of 512
  const Tensor more = torch::empty({123457}, k0);
  CHECK(sim::counts(0).allocations == 1);
}

TEST_CASE("autograd runs on the forward's stream and the caller's waits for it", "[sim]") {
  const Late late(300);
  const c10::Stream side = side_stream();
  Tensor x = torch::ones({8}, torch::TensorOptions(k0)), loss;
  x.set_requires_grad(true);
  order(sim::current_stream(0), side);
  {
    const c10::StreamGuard guard(side);
    loss = (x * 3).pow(2).sum();
  }
  order(side, sim::current_stream(0));
  loss.backward();
  CHECK(x.grad().cpu()[0].item<float>() == 18);
  CHECK(sim::take_findings().empty());
}

TEST_CASE("groups between devices reduce in stream order and refuse the host's tensors", "[sim]") {
  const Late late(500);
  sim::run_ranks(4, [](fsdp::World& world) {
    const auto comm = world.communicator();
    const torch::Device mine = sim::device(world.rank());
    const fsdp::CommTag tag{"", fsdp::CommPhase::kSetup};
    Tensor sum = torch::full({6}, world.rank() + 1.f, mine);
    comm->all_reduce(sum, fsdp::Reduce::kSum, tag);
    sum.add_(1);
    const Tensor all = torch::empty({4}, mine);
    comm->all_gather_into(all, torch::full({1}, float(world.rank()), mine), tag);
    const Tensor part = torch::empty({2}, mine);
    comm->reduce_scatter_into(part, torch::arange(8, mine).to(torch::kFloat), fsdp::Reduce::kSum,
                              tag);
    RANK_CHECK(sum.cpu().eq(11).all().item<bool>());
    RANK_CHECK(torch::equal(all.cpu(), torch::arange(4).to(torch::kFloat)));
    RANK_CHECK(torch::equal(part.cpu(), (torch::arange(2) + 2 * world.rank()) * 4.f));
    RANK_CHECK(comm->all_gather_bytes({}, tag).size() == 4);
    const std::string host =
        message_of([&] { comm->all_reduce(torch::ones({2}), fsdp::Reduce::kSum, tag); });
    RANK_CHECK(host.find("wrong device") != std::string::npos, host);
  });
  CHECK(sim::take_findings().empty());
}

TEST_CASE("a rank that fails ends the others' collectives at a later call", "[sim]") {
  const std::string message = message_of([] {
    sim::run_ranks(2, [](fsdp::World& world) {
      if (world.rank() == 1) throw std::runtime_error("rank 1 has had enough");
      const auto comm = world.communicator();
      const Tensor x = torch::ones({4}, sim::device(0));
      for (int i = 0; i < 3; ++i) {
        comm->all_reduce(x, fsdp::Reduce::kSum, {});
        sim::current_stream(0).synchronize();
      }
      throw std::logic_error("no call failed");
    });
  });
  CHECK_THAT(message, Contains("rank 1 has had enough"));
}

TEST_CASE("a stream's memory that belongs to another device is found", "[sim]") {
  c10::DataPtr memory;
  {
    const c10::DeviceGuard guard(sim::device(1));
    memory = c10::GetAllocator(sim::kType)->allocate(64);
  }
  Tensor x = torch::empty({16}, k0);
  x.storage().set_data_ptr_noswap(std::move(memory));
  x.add_(1);
  const std::vector<std::string> found = sim::take_findings();
  REQUIRE_FALSE(found.empty());
  CHECK_THAT(found[0], Contains("a tensor of sim:0 lies in the memory of sim:1"));
  // Who is given this memory next comes after the write, or is what other tests find.
  order(sim::current_stream(0), sim::current_stream(1));
}

}  // namespace sim_device_test
