// Saving and loading a sharded model with its optimizer, by processes over Gloo: beside PyTorch's
// FSDP2 and DCP on the same model (peer_fsdp2_state.py), and from one world size to another.
//
//   fsdp_state DIR PROCESSES LAYERS WIDTH ROUNDS [SAFETY]   save and load, JSON on stdout
//   fsdp_state DIR PROCESSES LAYERS WIDTH 0 save PATH         one save, or load; seconds on stdout
//
// Seconds are of the slowest rank, between barriers: medians, the first round warms up. Memory is
// what a process held at the most in any round, in saves and in loads, beyond what it held before
// the first, the largest of all ranks. SAFETY: of loads, `aside` whatever their size, or `in-place`
// (LoadSafety).
#include <malloc.h>
#include <sys/wait.h>
#include <tessera/fsdp.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

namespace fsdp = tessera::fsdp;

namespace {

struct LayerImpl : torch::nn::Module {
  explicit LayerImpl(std::int64_t width)
      : up(register_module("up", torch::nn::Linear(width, 2 * width))),
        down(register_module("down", torch::nn::Linear(2 * width, width))) {}
  torch::Tensor forward(torch::Tensor x) { return x + down->forward(torch::relu(up->forward(x))); }
  torch::nn::Linear up, down;
};
FSDP_MODULE(Layer);

struct StackImpl : torch::nn::Module {
  StackImpl(std::int64_t count, std::int64_t width) {
    for (std::int64_t i = 0; i < count; ++i)
      layers.push_back(register_module("layer" + std::to_string(i), Layer(width)));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (Layer& layer : layers) x = layer->forward(x);
    return x;
  }
  std::vector<Layer> layers;
};
FSDP_MODULE(Stack);

struct Arguments {
  std::string folder, verb, path;
  int processes = 4;
  std::int64_t layers = 8, width = 512, rounds = 3;
};

double kib_of(const char* key) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(key))
      return std::strtod(line.c_str() + std::string(key).size() + 1, nullptr);
  return 0;
}

double seconds_of(fsdp::World& world, const std::function<void()>& work) {
  world.ranks().barrier();
  const auto start = std::chrono::steady_clock::now();
  work();
  world.ranks().barrier();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void restart_peak() { std::ofstream("/proc/self/clear_refs") << 5; }

/// Resident KiB by `key` of /proc/self/status without mapped program files: their pages are clean
/// and shared by the ranks, and the peer has imported its code before it is measured.
double own_kib(const char* key) { return kib_of(key) - kib_of("RssFile:"); }

/// MiB at the most since restart_peak() beyond `before_kib`, of all ranks.
double most_mib(fsdp::World& world, double before_kib) {
  double extra = (own_kib("VmHWM:") - before_kib) / 1024;
  for (const auto& bytes : world.ranks().all_gather(std::as_bytes(std::span(&extra, 1)))) {
    double theirs = 0;
    std::memcpy(&theirs, bytes.data(), sizeof theirs);
    extra = std::max(extra, theirs);
  }
  return extra;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

void run(const Arguments& arguments) {
  fsdp::World world = fsdp::init_from_env();
  at::set_num_threads(1);
  torch::manual_seed(1);
  Stack model(arguments.layers, arguments.width);
  fsdp::Options options;
  options.mesh = world.mesh();
  for (Layer& layer : model->layers) fsdp::fully_shard(layer, options);
  fsdp::fully_shard(model, options);
  torch::optim::AdamW optimizer(model->parameters(), 1e-3);
  const auto state = [&] { return fsdp::state_dict(model, optimizer); };
  const auto train = [&] {
    model->forward(torch::ones({2, arguments.width})).sum().backward();
    optimizer.step();
    optimizer.zero_grad();
  };
  if (arguments.rounds == 0) {
    if (arguments.verb == "save") train();
    const double seconds = seconds_of(world, [&] {
      if (arguments.verb == "save")
        tessera::save(arguments.path, state(), world.ranks());
      else
        tessera::load(arguments.path, state(), world.ranks());
    });
    if (world.rank() == 0) std::printf("{\"seconds\": %.5f}\n", seconds);
    return;
  }
  train();
  std::vector<double> saves, loads;
  tessera::LoadPolicy policy;
  if (arguments.verb == "aside")
    policy.stage_limit_bytes = std::numeric_limits<std::uint64_t>::max();
  if (arguments.verb == "in-place") policy.safety = tessera::LoadSafety::kInPlace;
  fsdp::release_cached_memory();
  malloc_trim(0);  // what training left free would hide what is taken
  restart_peak();
  const double before = own_kib("VmRSS:");
  double saving = 0, loading = 0;
  for (std::int64_t round = 0; round <= arguments.rounds; ++round) {
    const std::string path = arguments.folder + "/ours_" + std::to_string(round);
    restart_peak();
    const double save = seconds_of(world, [&] { tessera::save(path, state(), world.ranks()); });
    saving = std::max(saving, most_mib(world, before));
    restart_peak();
    const double load =
        seconds_of(world, [&] { tessera::load(path, state(), world.ranks(), policy); });
    loading = std::max(loading, most_mib(world, before));
    world.ranks().barrier();
    if (world.rank() == 0) std::filesystem::remove_all(path);
    if (round == 0) continue;
    saves.push_back(save);
    loads.push_back(load);
  }
  if (world.rank() != 0) return;
  std::printf(
      "{\"save_s\": %.5f, \"load_s\": %.5f, \"save_mib\": %.1f, \"load_mib\": %.1f, "
      "\"extra_mib\": %.1f}\n",
      median(saves), median(loads), saving, loading, std::max(saving, loading));
}

int child(const Arguments& arguments, int rank, const std::string& port) {
  for (const auto& [name, value] : {std::pair("RANK", std::to_string(rank)),
                                    {"LOCAL_RANK", std::to_string(rank)},
                                    {"WORLD_SIZE", std::to_string(arguments.processes)},
                                    {"MASTER_ADDR", std::string("127.0.0.1")},
                                    {"MASTER_PORT", port}})
    setenv(name, value.c_str(), 1);
  try {
    run(arguments);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "fsdp_state: rank " << rank << ": " << error.what() << '\n';
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  if (argc < 6)
    return std::fputs("usage: fsdp_state DIR PROCESSES LAYERS WIDTH ROUNDS [save|load PATH]\n",
                      stderr),
           2;
  arguments.folder = argv[1];
  arguments.processes = std::atoi(argv[2]);
  arguments.layers = std::atoll(argv[3]);
  arguments.width = std::atoll(argv[4]);
  arguments.rounds = std::atoll(argv[5]);
  if (argc > 6) arguments.verb = argv[6];
  if (argc > 7) arguments.path = argv[7];
  const std::string port = std::to_string(20000 + getpid() % 20000);
  for (int rank = 0; rank < arguments.processes; ++rank) {
    if (fork() != 0) continue;
    const int code = child(arguments, rank, port);
    std::fflush(stdout);
    _exit(code);
  }
  int worst = 0, status = 0;
  while (wait(&status) > 0) worst = std::max(worst, WIFEXITED(status) ? WEXITSTATUS(status) : 70);
  return worst;
}
