// One rank of a step whose units sleep while they "compute", so that what is measured is how much of the
// collectives passes beside: bench/fsdp_overlap.py starts it on links of a known speed. Prints JSON.
//
//   fsdp_overlap probe NUMEL COUNT                         seconds of a gather and of a reduction of NUMEL floats
//   fsdp_overlap serial|thread UNITS NUMEL MS STEPS        seconds of a step; MS: a unit's forward, half its
//                                                          backward; units of NUMEL floats, every second one of
//                                                          a half
//   fsdp_overlap plain UNITS NUMEL MS STEPS                seconds of the forward and of the backward of the same
//                                                          model, unsharded: what computing takes beyond its sleep
#include <tessera/base/error.h>
#include <tessera/fsdp.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

namespace fsdp = tessera::fsdp;

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void compute_for(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

/// Takes its time, and gives a gradient to each weight.
struct Sleep : torch::autograd::Function<Sleep> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            double seconds) {
    context->saved_data["seconds"] = seconds;
    context->saved_data["numel"] = weight.numel();
    compute_for(seconds);
    return x + weight[0];
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    compute_for(2 * context->saved_data["seconds"].toDouble());
    return {grads[0], grads[0].sum().view({1}).expand({context->saved_data["numel"].toInt()}), {}};
  }
};

struct LayerImpl : torch::nn::Module {
  LayerImpl(std::int64_t numel, double seconds_)
      : weight(register_parameter("weight", torch::zeros({numel}))), seconds(seconds_) {}
  torch::Tensor forward(torch::Tensor x) { return Sleep::apply(x, weight, seconds); }
  torch::Tensor weight;
  double seconds;
};
FSDP_MODULE(Layer);

struct ChainImpl : torch::nn::Module {
  ChainImpl(int units, std::int64_t numel, double seconds) {
    for (int i = 0; i < units; ++i)
      layers.push_back(
          register_module("layer" + std::to_string(i), Layer(i % 2 ? numel / 2 : numel, seconds)));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (Layer& layer : layers) x = layer->forward(x);
    return x;
  }
  std::vector<Layer> layers;
};
FSDP_MODULE(Chain);

/// The median of what `body` takes when all ranks begin at once; the first two do not count.
double median_seconds(const fsdp::World& world, int count, const std::function<void()>& body) {
  std::vector<double> all;
  for (int i = 0; i < count + 2; ++i) {
    world.communicator()->barrier({});
    const auto begin = std::chrono::steady_clock::now();
    body();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (i >= 2) all.push_back(took.count());
  }
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

void probe(const fsdp::World& world, std::int64_t numel, int count) {
  constexpr int kInARow = 6;  // what a link lets through at once after a pause is none of its speed
  const torch::Tensor whole = torch::zeros({numel}), part = torch::zeros({numel / world.size()});
  const auto seconds_of = [&](const std::function<void()>& collective) {
    const double all = median_seconds(world, count, [&] {
      for (int i = 0; i < kInARow; ++i) collective();
    });
    return all / kInARow;
  };
  const double gather = seconds_of([&] { world.communicator()->all_gather_into(whole, part, {}); });
  const double reduce = seconds_of(
      [&] { world.communicator()->reduce_scatter_into(part, whole, fsdp::Reduce::kSum, {}); });
  std::printf("{\"gather\": %.6f, \"reduce\": %.6f}\n", gather, reduce);
}

void step(const fsdp::World& world, bool with_thread, int units, std::int64_t numel, double seconds,
          int steps) {
  fsdp::Options options;
  options.mesh = world.mesh();
  options.communication_thread = with_thread;
  Chain model(units, numel, seconds);
  for (Layer& layer : model->layers) fsdp::fully_shard(layer, options);
  fsdp::fully_shard(model, options);
  const double took = median_seconds(world, steps, [&] {
    for (torch::Tensor& parameter : model->parameters()) parameter.mutable_grad().reset();
    model->forward(torch::ones({1})).sum().backward();
  });
  std::printf("{\"step\": %.6f}\n", took);
}

void plain(const fsdp::World& world, int units, std::int64_t numel, double seconds, int steps) {
  Chain model(units, numel, seconds);
  double forward = 0;  // all forwards, but those of the two steps that do not count
  int step = 0;
  const double took = median_seconds(world, steps, [&] {
    for (torch::Tensor& parameter : model->parameters()) parameter.mutable_grad().reset();
    const auto begin = std::chrono::steady_clock::now();
    const torch::Tensor loss = model->forward(torch::ones({1})).sum();
    const std::chrono::duration<double> until_loss = std::chrono::steady_clock::now() - begin;
    if (step++ >= 2) forward += until_loss.count();
    loss.backward();
  });
  forward /= steps;
  std::printf("{\"forward\": %.6f, \"backward\": %.6f}\n", forward, took - forward);
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string mode = argc > 1 ? argv[1] : "";
  torch::set_num_threads(1);
  if (mode == "probe" && argc == 4) {
    probe(fsdp::init_from_env(), std::atol(argv[2]), std::atoi(argv[3]));
  } else if ((mode == "serial" || mode == "thread") && argc == 6) {
    step(fsdp::init_from_env(), mode == "thread", std::atoi(argv[2]), std::atol(argv[3]),
         std::atof(argv[4]) / 1e3, std::atoi(argv[5]));
  } else if (mode == "plain" && argc == 6) {
    plain(fsdp::init_from_env(), std::atoi(argv[2]), std::atol(argv[3]), std::atof(argv[4]) / 1e3,
          std::atoi(argv[5]));
  } else {
    std::cerr
        << "usage: fsdp_overlap probe NUMEL COUNT | serial|thread|plain UNITS NUMEL MS STEPS\n";
    return 2;
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << "fsdp_overlap: " << error.what() << '\n';
  return 1;
}
