#pragma once
// A line of two small units and a weight of the root's own, which note when they compute.
#include <fmt/format.h>

#include "tests/fsdp/models.h"

namespace tessera::fsdp::test {

using Log = std::shared_ptr<std::string>;

inline void note(const Log& log, const std::string& what) {
  if (log) *log += (log->empty() ? "" : " ") + what;
}

inline constexpr std::int64_t kSize = 6;

/// A linear layer that notes when it computes: "F(b0)", and "B(b0)" as its weight's gradient is
/// there.
struct StageImpl : torch::nn::Module {
  StageImpl(std::string name_, Log log_) : name(std::move(name_)), log(std::move(log_)) {
    linear = register_module("linear", torch::nn::Linear(kSize, kSize));
    if (log)
      linear->weight.register_hook(
          [n = name, l = log](const torch::Tensor&) { note(l, "B(" + n + ")"); });
  }
  torch::Tensor forward(torch::Tensor x) {
    note(log, "F(" + name + ")");
    const auto body = [this](torch::Tensor in) { return torch::tanh(linear->forward(in)); };
    return inner_checkpoint ? checkpoint(body, x) : body(x);
  }
  std::string name;
  Log log;
  bool inner_checkpoint = false;
  torch::nn::Linear linear{nullptr};
};
FSDP_MODULE(Stage);

/// Two stages and, where asked, a weight of the root's own at the beginning.
struct LineImpl : torch::nn::Module {
  explicit LineImpl(Log log_ = nullptr, bool own = true) : log(std::move(log_)) {
    if (own) first = register_parameter("first", torch::eye(kSize));
    for (int i = 0; i < 2; ++i) {
      const std::string name = fmt::format("b{}", i);
      stages.push_back(register_module(name, Stage(name, log)));
    }
    if (own && log) first.register_hook([l = log](const torch::Tensor&) { note(l, "B(root)"); });
  }
  torch::Tensor forward(torch::Tensor x) {
    note(log, "F(root)");
    if (first.defined()) x = x.matmul(first);
    for (std::size_t i = 0; i < stages.size(); ++i) {
      if (i == skipped) continue;
      x = outer_checkpoint
              ? checkpoint([s = stages[i]](torch::Tensor in) mutable { return s->forward(in); }, x)
              : stages[i]->forward(x);
    }
    return x;
  }
  Log log;
  torch::Tensor first;
  std::vector<Stage> stages;
  std::size_t skipped = 99;
  bool outer_checkpoint = false;
};
FSDP_MODULE(Line);

inline Line make_line(const Log& log = nullptr, bool own = true) {
  const std::lock_guard lock(generator_mutex());
  torch::manual_seed(11);
  return Line(log, own);
}

inline void shard_line(Line& net, const Options& options) {
  for (Stage& stage : net->stages) fully_shard(stage, options);
  fully_shard(net, options);
}

inline torch::Tensor input_of(int rank) {
  return torch::arange(2 * kSize, torch::kFloat).view({2, kSize}).sin() * (rank + 1);
}

}  // namespace tessera::fsdp::test
