// Pipeline stages that are sharded each: interleaved 1F1B over two ranks (or one), times however many
// ranks share a stage.
//
//   torchrun --nproc-per-node 4 ...                            two stages' places, two shards of each
//   RANK=.. WORLD_SIZE=.. MASTER_ADDR=.. MASTER_PORT=.. pipeline    as a launcher starts it
//   pipeline                                                   all stages in one process
//
// Each place has two of the four stages (0 and 2, 1 and 3), each an outermost unit of its own. They share
// streams (share_comm_ctx); gradients are reduced by each stage's last microbatch alone. The schedule is a
// table of ticks that every rank works out alike: in a tick a place does at most one forward or backward,
// backwards first, and no stage has more microbatches under way than there are stages from it on. What goes
// to the other place is sent after the tick, in the table's order, so that no two ranks wait for each other.
#include <tessera/base/error.h>
#include <tessera/fsdp.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace fsdp = tessera::fsdp;

namespace {

constexpr int kStages = 4, kMicrobatches = 6, kSteps = 5;
constexpr std::int64_t kWidth = 24, kRows = 8;

struct LayerImpl : torch::nn::Module {
  torch::nn::Linear up{nullptr}, down{nullptr};
  LayerImpl() {
    up = register_module("up", torch::nn::Linear(kWidth, 2 * kWidth));
    down = register_module("down", torch::nn::Linear(2 * kWidth, kWidth));
  }
  torch::Tensor forward(torch::Tensor x) { return x + down->forward(torch::gelu(up->forward(x))); }
};
FSDP_MODULE(Layer);

struct StageImpl : torch::nn::Module {
  std::array<Layer, 2> layers;
  StageImpl() {
    for (std::size_t i = 0; i < layers.size(); ++i)
      register_module("layer" + std::to_string(i), layers[i]);
  }
  torch::Tensor forward(torch::Tensor x) {
    for (Layer& layer : layers) x = layer->forward(x);
    return x;
  }
};
FSDP_MODULE(Stage);

// ---- the schedule ----

struct Work {
  int stage, microbatch;
  bool forward;
};
using Tick = std::vector<std::pair<int, Work>>;  // by place

/// When each forward and backward is over: the tick, or not yet.
class Progress {
 public:
  bool ready(const Work& work, int tick) const {
    const auto [stage, micro, forward] = work;
    if (done(work)) return false;
    if (forward)
      return (stage == 0 || before({stage - 1, micro, true}, tick)) &&
             under_way(stage) < kStages - stage && (micro == 0 || done({stage, micro - 1, true}));
    return before({stage, micro, true}, tick) &&
           (stage == kStages - 1 || before({stage + 1, micro, false}, tick));
  }
  void finish(const Work& work, int tick) { at_[key(work)] = tick; }
  bool all_done() const { return at_.size() == std::size_t{2} * kStages * kMicrobatches; }

 private:
  static std::array<int, 3> key(const Work& work) {
    return {work.stage, work.microbatch, work.forward};
  }
  bool done(const Work& work) const { return at_.contains(key(work)); }
  bool before(const Work& work, int tick) const {
    const auto found = at_.find(key(work));
    return found != at_.end() && found->second < tick;
  }
  int under_way(int stage) const {
    int count = 0;
    for (int micro = 0; micro < kMicrobatches; ++micro)
      count += done({stage, micro, true}) && !done({stage, micro, false});
    return count;
  }
  std::map<std::array<int, 3>, int> at_;
};

std::vector<Tick> schedule(int places) {
  std::vector<Tick> ticks;
  Progress progress;
  while (!progress.all_done()) {
    const int now = static_cast<int>(ticks.size());
    Tick tick;
    for (int place = 0; place < places; ++place) {
      std::vector<Work> candidates;  // the best first: backwards, late stages, early microbatches
      for (const bool forward : {false, true})
        for (int stage = kStages - 1; stage >= 0; --stage)
          for (int micro = 0; micro < kMicrobatches && stage % places == place; ++micro)
            if (const Work work{stage, micro, forward}; progress.ready(work, now))
              candidates.push_back(work);
      if (!candidates.empty()) tick.emplace_back(place, candidates.front());
    }
    for (const auto& [place, work] : tick) progress.finish(work, now);
    ticks.push_back(std::move(tick));
  }
  return ticks;
}

// ---- a place's stages ----

class Place {
 public:
  Place(const fsdp::World& world, int places)
      : places_(places),
        mesh_(world, {places, world.size() / places}, {"pipe", "shard"}),
        me_(static_cast<int>(mesh_.coordinate(0))) {
    fsdp::Options options;
    options.mesh = mesh_.sub(1);
    options.strategy = fsdp::ShardingStrategy::kShardGradOp;
    std::vector<fsdp::ModuleRef> roots;
    for (int s = me_; s < kStages; s += places_) {
      torch::manual_seed(100 + s);  // the same values whoever has the stage
      Stage stage;
      for (Layer& layer : stage->layers) fsdp::fully_shard(layer, options);
      fsdp::fully_shard(stage, options);
      stages_.emplace(s, stage);
      roots.push_back(stage);
      for (const torch::Tensor& parameter : stage->parameters()) parameters.push_back(parameter);
    }
    fsdp::share_comm_ctx(roots);
  }

  /// The mean loss of all microbatches, and the most of one stage that were under way.
  std::pair<double, int> step(const std::vector<Tick>& ticks, int number) {
    loss_ = 0;
    most_ = 0;
    for (const Tick& tick : ticks) {
      for (const auto& [place, work] : tick)
        if (place == me_) run(work, number);
      for (const auto& [place, work] : tick) hand_on(place, work);
    }
    // Of the last stage's ranks; the others have 0.
    at::Tensor sum = torch::tensor({loss_});
    mesh_.world().communicator()->all_reduce(sum, fsdp::Reduce::kSum, {});
    return {sum.item<double>() / static_cast<double>(mesh_.size(1)), most_};
  }

  std::vector<torch::Tensor> parameters;

 private:
  struct Passage {
    torch::Tensor input, output;
  };
  using Key = std::pair<int, int>;  // stage, microbatch

  std::int64_t rows() const { return kRows / mesh_.size(1); }
  /// This shard's rows of a microbatch.
  torch::Tensor batch(int number, int micro, int salt) const {
    const torch::Tensor at =
        torch::arange(kRows * kWidth, torch::kFloat) + 31 * micro + 7 * number + salt;
    return torch::sin(at * 0.37)
        .view({kRows, kWidth})
        .narrow(0, mesh_.coordinate(1) * rows(), rows());
  }

  void run(const Work& work, int number) {
    const auto [s, micro, forward] = work;
    Stage& stage = stages_.at(s);
    const Key key{s, micro};
    if (forward) {
      torch::Tensor x = s == 0 ? batch(number, micro, 0) : arrived(true, key);
      x.requires_grad_(s > 0);
      passages_[key] = {x, stage->forward(x)};
      int under_way = 0;
      for (const auto& [other, passage] : passages_) under_way += other.first == s;
      most_ = std::max(most_, under_way);
      return;
    }
    const bool last = micro == kMicrobatches - 1;
    fsdp::set_requires_gradient_sync(stage, last);
    fsdp::set_is_last_backward(stage, last);
    fsdp::set_reshard_after_backward(stage, last);
    Passage passage = passages_.extract(key).mapped();
    if (s == kStages - 1) {
      const torch::Tensor loss =
          torch::mse_loss(passage.output, batch(number, micro, 5)) / kMicrobatches;
      loss.backward();
      loss_ += loss.item<float>();
    } else {
      passage.output.backward(arrived(false, key));
    }
    if (s > 0) leaving_ = passage.input.grad();
  }

  torch::Tensor arrived(bool forward, const Key& key) {
    return (forward ? inputs_ : gradients_).extract(key).mapped();
  }

  /// What a forward or backward made goes to the place of the next or previous stage.
  void hand_on(int place, const Work& work) {
    const int to = work.stage + (work.forward ? 1 : -1);
    if (to < 0 || to >= kStages) return;
    torch::Tensor tensor;
    if (place == me_)
      tensor =
          work.forward ? passages_.at({work.stage, work.microbatch}).output.detach() : leaving_;
    const int receiver = to % places_;
    if (receiver != place) {
      if (place != me_) tensor = torch::empty({rows(), kWidth});
      mesh_.group(0)->broadcast(tensor.contiguous().view({-1}), place, {});
    }
    if (receiver == me_)
      (work.forward ? inputs_ : gradients_)[{to, work.microbatch}] = tensor.clone();
  }

  const int places_;
  const fsdp::DeviceMesh mesh_;
  const int me_;
  std::map<int, Stage> stages_;
  std::map<Key, Passage> passages_;
  std::map<Key, torch::Tensor> inputs_, gradients_;
  torch::Tensor leaving_;
  float loss_ = 0;
  int most_ = 0;
};

void run() {
  const fsdp::World world = fsdp::init_from_env();
  const int places = world.size() == 1 ? 1 : 2;
  if (world.size() % places != 0 || kRows % (world.size() / places) != 0)
    tessera::fail(tessera::Code::kInvalidArgument, "run it on 1, 2, 4, 8 or 16 ranks");
  Place place(world, places);
  torch::optim::AdamW optimizer(place.parameters, torch::optim::AdamWOptions(1e-2));
  const std::vector<Tick> ticks = schedule(places);
  for (int number = 0; number < kSteps; ++number) {
    optimizer.zero_grad();
    const auto [loss, most] = place.step(ticks, number);
    optimizer.step();
    if (world.rank() == 0)
      std::printf(
          "step %d of %d: loss %.6f, %zu ticks, at most %d microbatches of a stage under way\n",
          number + 1, kSteps, loss, ticks.size(), most);
  }
}

}  // namespace

int main() try {
  torch::set_num_threads(1);
  run();
  return 0;
} catch (const std::exception& error) {
  std::cerr << "pipeline: " << error.what() << '\n';
  return 1;
}
