// Trains a small character-level transformer on text files, fully sharded over however many
// processes there are; saves in the background, stops, and goes on on any other number of them.
//
//   train FILE...                                         one process
//   train --processes 4 --save RUN --stop-at 30 FILE...   four, which stop half way
//   train --processes 2 --resume RUN --svg OUT FILE...    two go on from there
//   RANK=.. WORLD_SIZE=.. MASTER_ADDR=.. MASTER_PORT=.. train FILE...    as torchrun starts them
//
// RUN gets a checkpoint every --save-every steps (10) and at the end: RUN/step_10, RUN/step_20, ..;
// RUN/latest names the newest, and the two newest stay.
//
// The global batch and the initial values depend on the step and the parameter alone, not on the
// number of processes: the loss curve is the same for any, stopped or not, though ranks may take
// unequal parts of the batch (rows_of, loss_of). It travels in the checkpoint, is drawn at the end,
// and as an SVG where asked.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <tessera/base/error.h>
#include <tessera/fsdp.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace fsdp = tessera::fsdp;

namespace {

constexpr std::int64_t kContext = 32, kWidth = 48, kHeads = 4, kBlocks = 2, kBatch = 12,
                       kSteps = 60;

struct BlockImpl : torch::nn::Module {
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};
  BlockImpl() {
    norm1 = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    norm2 = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    qkv = register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth));
    out = register_module("out", torch::nn::Linear(kWidth, kWidth));
    up = register_module("up", torch::nn::Linear(kWidth, 4 * kWidth));
    down = register_module("down", torch::nn::Linear(4 * kWidth, kWidth));
  }
  torch::Tensor forward(torch::Tensor x) {
    const std::int64_t batch = x.size(0), length = x.size(1);
    auto parts = qkv->forward(norm1->forward(x))
                     .view({batch, length, 3, kHeads, kWidth / kHeads})
                     .permute({2, 0, 3, 1, 4});
    auto attended =
        at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    x = x + out->forward(attended.transpose(1, 2).reshape({batch, length, kWidth}));
    return x + down->forward(torch::gelu(up->forward(norm2->forward(x))));
  }
};
FSDP_MODULE(Block);

struct TransformerImpl : torch::nn::Module {
  torch::nn::Embedding characters{nullptr}, places{nullptr};
  std::vector<Block> blocks;
  torch::nn::Linear head{nullptr};
  TransformerImpl() {
    characters = register_module("characters", torch::nn::Embedding(256, kWidth));
    places = register_module("places", torch::nn::Embedding(kContext, kWidth));
    for (std::int64_t i = 0; i < kBlocks; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), Block()));
    head = register_module("head", torch::nn::Linear(kWidth, 256));
  }
  torch::Tensor forward(torch::Tensor text) {
    auto x = characters->forward(text) + places->forward(torch::arange(text.size(1)));
    for (Block& block : blocks) x = block->forward(x);
    return head->forward(x);
  }
};
FSDP_MODULE(Transformer);

std::string read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) tessera::fail(tessera::Code::kNotFound, "cannot read " + path);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Row `row` of step `step`'s batch: kContext characters and the one after each.
void fill(const std::string& text, std::int64_t step, std::int64_t row, torch::Tensor& inputs,
          torch::Tensor& targets, std::int64_t at) {
  std::mt19937_64 random(static_cast<std::uint64_t>(step * kBatch + row));
  const std::size_t begin = random() % (text.size() - kContext - 1);
  for (std::int64_t i = 0; i < kContext; ++i) {
    inputs[at][i] = static_cast<unsigned char>(text[begin + static_cast<std::size_t>(i)]);
    targets[at][i] = static_cast<unsigned char>(text[begin + static_cast<std::size_t>(i) + 1]);
  }
}

/// The rows of the global batch that this rank takes: as many as the others, or one more; none on
/// some, where there are more ranks than rows.
std::pair<std::int64_t, std::int64_t> rows_of(const fsdp::World& world) {
  return {world.rank() * kBatch / world.size(), (world.rank() + 1) * kBatch / world.size()};
}

/// This rank's share of the loss. Gradients are averaged over ranks, however many rows each has; so
/// each sums over its own rows, and divides by what a rank has on average: the average over ranks
/// is the mean over the batch then.
torch::Tensor loss_of(Transformer& model, const torch::Tensor& inputs, const torch::Tensor& targets,
                      const fsdp::World& world) {
  const auto sum = torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum);
  return torch::nn::functional::cross_entropy(model->forward(inputs).view({-1, 256}),
                                              targets.view({-1}), sum) *
         (static_cast<double>(world.size()) / (kBatch * kContext));
}

struct Arguments {
  std::vector<std::string> files;
  std::string save, resume, svg;
  int processes = 1;
  std::int64_t steps = kSteps, stop_at = -1, save_every = 10;
};

[[noreturn]] void usage(const std::string& what) {
  tessera::fail(tessera::Code::kInvalidArgument, what,
                "train [--processes N] [--steps N] [--stop-at STEP] [--save RUN] "
                "[--save-every STEPS] [--resume RUN] [--svg FILE] FILE...");
}

Arguments parse(int argc, char** argv) {
  Arguments out;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (!flag.starts_with("--")) {
      out.files.push_back(flag);
      continue;
    }
    if (i + 1 == argc) usage(flag + " needs a value");
    const std::string value = argv[++i];
    const auto number = [&] {
      if (value.empty() || value.size() > 9 ||
          value.find_first_not_of("0123456789") != std::string::npos)
        usage(flag + " " + value + ": a number was expected");
      return std::stol(value);
    };
    if (flag == "--save")
      out.save = value;
    else if (flag == "--resume")
      out.resume = value;
    else if (flag == "--svg")
      out.svg = value;
    else if (flag == "--processes")
      out.processes = static_cast<int>(std::max(1L, number()));
    else if (flag == "--steps")
      out.steps = number();
    else if (flag == "--stop-at")
      out.stop_at = number();
    else if (flag == "--save-every")
      out.save_every = std::max(1L, number());
    else
      usage("unknown flag " + flag);
  }
  return out;
}

/// Loss of every step so far, over all runs, and the first step of each.
struct Curve {
  std::vector<double> losses;
  std::vector<std::int64_t> starts;

  void print() const {
    constexpr std::size_t kRows = 12, kMostColumns = 72;
    if (losses.empty()) return;
    const auto [low, high] = std::ranges::minmax(losses);
    const std::size_t columns = std::min(losses.size(), kMostColumns);
    std::vector<std::string> rows(kRows, std::string(columns, ' '));
    const auto column = [&](std::size_t step) { return step * columns / losses.size(); };
    for (const std::int64_t start : starts)
      if (start > 0 && start < static_cast<std::int64_t>(losses.size()))
        for (std::string& row : rows) row[column(static_cast<std::size_t>(start))] = ':';
    for (std::size_t step = 0; step < losses.size(); ++step) {
      const double height = high > low ? (high - losses[step]) / (high - low) : 0;
      rows[static_cast<std::size_t>(height * (kRows - 1))][column(step)] = '*';
    }
    for (std::size_t row = 0; row < kRows; ++row)
      std::printf("%7.3f |%s\n", high - (high - low) * double(row) / (kRows - 1),
                  rows[row].c_str());
    std::printf("        +%s\n         loss of steps 1 to %zu%s\n",
                std::string(columns, '-').c_str(), losses.size(),
                starts.size() > 1 ? "; ':' where training was resumed" : "");
  }

  void draw(const std::string& path) const {
    if (losses.empty()) return;
    constexpr double kWidth = 640, kHeight = 320, kMargin = 40;
    std::ofstream out(path);
    out.precision(4);
    const auto [low, high] = std::ranges::minmax(losses);
    const auto x = [&](double step) {
      return kMargin + step * (kWidth - 2 * kMargin) /
                           std::max<double>(1, static_cast<double>(losses.size()) - 1);
    };
    const auto y = [&](double loss) {
      return kMargin + (high > low ? (high - loss) / (high - low) : 0) * (kHeight - 2 * kMargin);
    };
    out << "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 640 320' font-family='sans-serif' "
           "font-size='12'>\n<rect width='640' height='320' fill='white'/>\n";
    for (const std::int64_t start : starts)
      if (start > 0)
        out << "<line stroke='#999' stroke-dasharray='4' x1='" << x(double(start)) << "' x2='"
            << x(double(start)) << "' y1='40' y2='280'/>\n<text x='" << x(double(start)) + 4
            << "' y='52' fill='#666'>resumed</text>\n";
    out << "<polyline fill='none' stroke='#1565c0' stroke-width='2' points='";
    for (std::size_t step = 0; step < losses.size(); ++step)
      out << x(static_cast<double>(step)) << ',' << y(losses[step]) << ' ';
    out << "'/>\n<text x='4' y='44'>" << high << "</text>\n<text x='4' y='284'>" << low
        << "</text>\n<text x='250' y='312'>loss of steps 1 to " << losses.size()
        << "</text>\n</svg>\n";
    if (!out) tessera::fail(tessera::Code::kIo, "cannot write " + path);
  }
};

/// Model, optimizer, and what else a run has to remember.
tessera::LiveState state_of(Transformer& model, fsdp::FusedAdamW& optimizer, const Curve& curve) {
  tessera::LiveState state = fsdp::state_dict(model, optimizer);
  tessera::ValueList losses, starts;
  for (const double loss : curve.losses) losses.push_back(tessera::Value::real(loss));
  for (const std::int64_t start : curve.starts) starts.push_back(tessera::Value::integer(start));
  state.add_value("losses", tessera::Value::list(losses));
  state.add_value("starts", tessera::Value::list(starts));
  return state;
}

/// In the background, beside the steps that follow. It copies what it saves while the next forward
/// and backward only read it: finish_snapshot() stands before the step that changes it.
tessera::PendingSave save(const std::string& run, std::int64_t step,
                          const tessera::LiveState& state, fsdp::World& world) {
  tessera::SaveOptions options;
  options.snapshot = tessera::SnapshotTiming::kLazy;
  options.update_latest = true;  // `latest` names it once it is whole
  options.keep_last = 2;
  options.force = true;  // a run that went back writes its steps again
  return tessera::save_async(run + "/step_" + std::to_string(step), state, world.ranks(), options);
}

Curve resume(const std::string& path, Transformer& model, fsdp::FusedAdamW& optimizer,
             fsdp::World& world) {
  const tessera::LoadResult result =
      tessera::load(path, state_of(model, optimizer, {}), world.ranks());
  Curve curve;
  for (const tessera::StateEntry& entry : result.values) {
    if (entry.name == "losses")
      for (const tessera::Value& loss : entry.value.as_list())
        curve.losses.push_back(loss.as_real());
    if (entry.name == "starts")
      for (const tessera::Value& start : entry.value.as_list())
        curve.starts.push_back(start.as_int());
  }
  if (world.rank() == 0)
    std::printf("resumed %s after step %zu, on %d processes, in %.2f s\n", result.path.c_str(),
                curve.losses.size(), world.size(), result.seconds);
  return curve;
}

/// One line that is written over; where nobody watches, every tenth and the last.
void progress(std::int64_t done, std::int64_t end, double loss, double per_second) {
  constexpr std::int64_t kWidth = 30;
  const bool watched = isatty(STDOUT_FILENO) != 0;
  if (!watched && done % 10 != 0 && done != end) return;
  std::string bar(static_cast<std::size_t>(done * kWidth / end), '#');
  bar.resize(kWidth, '.');
  std::printf("%sstep %3lld of %lld [%s] loss %.4f  %5.1f steps/s%s", watched ? "\r" : "",
              static_cast<long long>(done), static_cast<long long>(end), bar.c_str(), loss,
              per_second, watched && done != end ? "   " : "\n");
  std::fflush(stdout);
}

void train(const Arguments& arguments, const std::string& text) {
  fsdp::World world = fsdp::init_from_env();
  torch::manual_seed(1);
  Transformer model;
  fsdp::Options options;
  options.mesh = world.mesh();
  for (Block& block : model->blocks) fsdp::fully_shard(block, options);
  fsdp::fully_shard(model, options);
  fsdp::FusedAdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-3));

  Curve curve;
  if (!arguments.resume.empty()) curve = resume(arguments.resume, model, optimizer, world);
  const auto first = static_cast<std::int64_t>(curve.losses.size());
  const std::int64_t end =
      arguments.stop_at >= 0 ? std::min(arguments.stop_at, arguments.steps) : arguments.steps;
  curve.starts.push_back(first);
  const auto began = std::chrono::steady_clock::now();
  const auto [begin_row, end_row] = rows_of(world);
  tessera::PendingSave pending;
  for (std::int64_t step = first; step < end; ++step) {
    auto inputs = torch::empty({end_row - begin_row, kContext}, torch::kLong),
         targets = torch::empty_like(inputs);
    for (std::int64_t row = begin_row; row < end_row; ++row)
      fill(text, step, row, inputs, targets, row - begin_row);
    optimizer.zero_grad();
    auto loss = loss_of(model, inputs, targets, world);
    loss.backward();
    fsdp::clip_grad_norm_(model, 1.0);
    pending.finish_snapshot();
    optimizer.step();
    auto mean = loss.detach().reshape({1});
    if (world.size() > 1) world.communicator()->all_reduce(mean, fsdp::Reduce::kAverage, {});
    curve.losses.push_back(mean.item<double>());
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - began;
    if (world.rank() == 0)
      progress(step + 1, end, curve.losses.back(), double(step - first + 1) / spent.count());
    if (!arguments.save.empty() && ((step + 1) % arguments.save_every == 0 || step + 1 == end))
      pending = save(arguments.save, step + 1, state_of(model, optimizer, curve), world);
  }
  if (!arguments.save.empty() && first < end) {
    const tessera::SaveReport report = pending.wait();
    if (world.rank() == 0)
      std::printf("saved %s/step_%lld: %.1f MB by %d processes in %.2f s\n", arguments.save.c_str(),
                  static_cast<long long>(end), static_cast<double>(report.total_bytes) / 1e6,
                  world.size(), report.seconds);
  }
  if (world.rank() != 0) return;
  if (end == arguments.steps) curve.print();
  if (!arguments.svg.empty()) curve.draw(arguments.svg);
}

int run(const Arguments& arguments) {
  try {
    std::string text;
    for (const std::string& file : arguments.files) text += read(file);
    if (text.size() < 1000)
      tessera::fail(tessera::Code::kInvalidArgument, "give text files of 1,000 characters or more");
    at::set_num_threads(1);
    train(arguments, text);
    return 0;
  } catch (const tessera::Error& error) {
    std::cerr << "train: " << error.what() << '\n';
    if (!error.status().hint.empty()) std::cerr << error.status().hint << '\n';
    return 2;
  }
}

/// A port that was free a moment ago.
int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    tessera::fail(tessera::Code::kIo, "no free port");
  close(fd);
  return ntohs(address.sin_port);
}

/// What torchrun would do on one machine.
int launch(const Arguments& arguments) {
  const std::string port = std::to_string(free_port());
  const std::string size = std::to_string(arguments.processes);
  for (int rank = 0; rank < arguments.processes; ++rank) {
    if (fork() != 0) continue;
    const std::string number = std::to_string(rank);
    for (const auto& [name, value] : {std::pair("RANK", number),
                                      {"LOCAL_RANK", number},
                                      {"WORLD_SIZE", size},
                                      {"MASTER_ADDR", "127.0.0.1"},
                                      {"MASTER_PORT", port}})
      setenv(name, value.c_str(), 1);
    const int code = run(arguments);
    std::fflush(stdout);
    _exit(code);
  }
  int worst = 0, status = 0;
  while (wait(&status) > 0) worst = std::max(worst, WIFEXITED(status) ? WEXITSTATUS(status) : 70);
  return worst;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Arguments arguments = parse(argc, argv);
    return arguments.processes > 1 ? launch(arguments) : run(arguments);
  } catch (const tessera::Error& error) {
    std::cerr << "train: " << error.what() << '\n' << error.status().hint << '\n';
    return 2;
  }
}
