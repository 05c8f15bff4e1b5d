// Memory that a load cannot fill is refused before anything changes, and what inference mode made,
// or a load under it makes, is as good as anything else.
#include <tessera/storage/memory_file_system.h>

#include "tests/fsdp/state_support.h"
#include "tests/fsdp/torch_and_catch.h"

namespace state_filled_memory_test {

namespace fsdp = tessera::fsdp;
namespace optim = torch::optim;
using namespace tessera::fsdp::test;

namespace {

struct MaskedImpl : torch::nn::Module {
  torch::nn::Linear linear{nullptr};
  torch::Tensor mask;
  explicit MaskedImpl(const torch::Tensor& buffer) {
    linear = register_module("linear", torch::nn::Linear(4, 2));
    if (buffer.defined()) mask = register_buffer("mask", buffer);
  }
  torch::Tensor forward(torch::Tensor x) { return linear->forward(x); }
};
FSDP_MODULE(Masked);

Masked make_masked(const torch::Tensor& mask) {
  const std::lock_guard lock(generator_mutex());
  return Masked(mask);
}

void train(Masked& model, optim::Optimizer& optimizer, int steps) {
  for (int i = 1; i <= steps; ++i) {
    optimizer.zero_grad();
    model->forward(torch::full({3, 4}, 0.5 * i)).pow(2).mean().backward();
    optimizer.step();
  }
}

/// One rank's job.
struct Job {
  Job(const torch::Tensor& mask, fsdp::World& world, double rate) : model(make_masked(mask)) {
    fsdp::Options options;
    options.mesh = world.mesh();
    fsdp::fully_shard(model, options);
    optimizer = std::make_unique<optim::AdamW>(model->parameters(), optim::AdamWOptions(rate));
  }
  tessera::LiveState state() const { return fsdp::state_dict(model, *optimizer); }
  /// Everything that a load may change.
  std::vector<torch::Tensor> values() const {
    std::vector<torch::Tensor> out = model->buffers();
    for (const torch::Tensor& parameter : model->parameters()) {
      const auto& of = static_cast<optim::AdamWParamState&>(
          *optimizer->state().at(parameter.unsafeGetTensorImpl()));
      out.insert(out.end(), {parameter, of.exp_avg(), of.exp_avg_sq(),
                             torch::full({}, static_cast<double>(of.step()))});
    }
    out.push_back(torch::full({}, optimizer->param_groups()[0].options().get_lr()));
    for (torch::Tensor& tensor : out) tensor = tensor.detach().clone();
    return out;
  }
  Masked model;
  std::unique_ptr<optim::AdamW> optimizer;
};

bool all_same(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  return std::ranges::equal(a, b, same_bits);
}

}  // namespace

TEST_CASE("a buffer whose elements share memory is refused before a load changes anything") {
  const int ranks = GENERATE(1, 2);
  const auto safety = GENERATE(tessera::LoadSafety::kAside, tessera::LoadSafety::kReadTwice,
                               tessera::LoadSafety::kInPlace);
  struct Kind {
    std::string strides;
    std::function<torch::Tensor(double)> make;
  };
  const auto [strides, make] =
      GENERATE(Kind{"[0]", [](double x) { return torch::full({}, x).expand({4}); }},
               Kind{"[0,1]",
                    [](double x) {
                      return torch::full({3}, x).expand({2, 3});
                    }},
               Kind{"[1,1]", [](double x) { return torch::full({6}, x).unfold(0, 3, 1); }});
  CAPTURE(ranks, strides);
  tessera::MemoryFileSystem fs;
  tessera::SaveOptions saving;
  tessera::LoadPolicy loading;
  saving.file_system = loading.file_system = &fs;
  loading.safety = safety;
  Masked whole = make_masked(make(3).contiguous());
  optim::AdamW of_whole(whole->parameters(), optim::AdamWOptions(0.125));
  train(whole, of_whole, 3);
  const tessera::LiveState full = fsdp::state_dict(whole, of_whole);
  fsdp::run_threads(ranks, [&](fsdp::World& world) {
    Job saved(make(1), world, 0.25), other(make(2), world, 0.5), plain({}, world, 0.25);
    train(saved.model, *saved.optimizer, 2);
    train(plain.model, *plain.optimizer, 2);
    train(other.model, *other.optimizer, 1);
    tessera::save("/run/a", saved.state(), world.ranks(), saving);  // which only reads
    tessera::save("/run/plain", plain.state(), world.ranks(), saving);
    const auto before = other.values();
    const auto check_refused = [&](const std::function<void()>& load) {
      const std::string message = message_of(load);
      for (const std::string& part :
           {std::string("invalid argument: tensor \"model.mask\""),
            "share memory (strides " + strides + ")", std::string("contiguous() copy")})
        RANK_CHECK(message.find(part) != std::string::npos, message);
      RANK_CHECK(all_same(other.values(), before));
    };
    check_refused([&] { tessera::load("/run/a", other.state(), world.ranks(), loading); });
    check_refused([&] { fsdp::load_full_state(other.model, *other.optimizer, full); });
    // What is not filled is not refused.
    tessera::LoadPolicy missing = loading, skipped = loading;
    missing.model = tessera::PartPolicy::kAllowMissing;
    skipped.model = tessera::PartPolicy::kSkip;
    tessera::load("/run/plain", other.state(), world.ranks(), missing);
    tessera::load("/run/a", other.state(), world.ranks(), skipped);
    RANK_CHECK(same_bits(other.model->parameters()[0], plain.model->parameters()[0]));
    RANK_CHECK(same_bits(other.model->mask, make(2)));
  });
}

TEST_CASE("inference tensors are filled outside inference mode") {
  const int ranks = GENERATE(1, 2);
  const bool sliced = GENERATE(false, true);  // filled through a copy
  CAPTURE(ranks, sliced);
  tessera::MemoryFileSystem fs;
  tessera::SaveOptions saving;
  tessera::LoadPolicy loading;
  saving.file_system = loading.file_system = &fs;
  const auto make = [&](double x) {
    const c10::InferenceMode inference;
    const torch::Tensor all = torch::full({4, 6}, x);
    return sliced ? all.slice(1, 0, 6, 2) : all;
  };
  fsdp::run_threads(ranks, [&](fsdp::World& world) {
    Job saved(make(1), world, 0.25), other(make(2), world, 0.5);
    train(saved.model, *saved.optimizer, 2);
    train(other.model, *other.optimizer, 1);
    RANK_CHECK(other.model->mask.is_inference());
    tessera::save("/run/a", saved.state(), world.ranks(), saving);
    tessera::load("/run/a", other.state(), world.ranks(), loading);
    RANK_CHECK(all_same(other.values(), saved.values()));
    train(saved.model, *saved.optimizer, 1);
    train(other.model, *other.optimizer, 1);
    RANK_CHECK(all_same(other.values(), saved.values()));
  });
  const auto alone = tessera::single_rank();
  std::optional<Masked> built;
  {
    const c10::InferenceMode inference;
    built = make_masked(torch::zeros({4, sliced ? 3 : 6}));
  }
  Masked trained = make_masked(torch::ones({4, sliced ? 3 : 6}));
  tessera::save("/run/b", fsdp::state_dict(trained), *alone, saving);
  tessera::load("/run/b", fsdp::state_dict(*built), *alone, loading);
  CHECK(same_bits((*built)->linear->weight, trained->linear->weight));
  CHECK(same_bits((*built)->mask, trained->mask));
}

TEST_CASE("an optimizer that is loaded under inference mode is trained after it") {
  const int ranks = GENERATE(1, 2);
  const std::string name = GENERATE("AdamW", "AdamW amsgrad", "FusedAdamW", "SGD", "RMSprop");
  CAPTURE(ranks, name);
  const auto of = [&](Odd& model) -> std::unique_ptr<optim::Optimizer> {
    const auto parameters = once_each(model->parameters());
    if (name == "SGD")
      return std::make_unique<optim::SGD>(parameters, optim::SGDOptions(1e-2).momentum(0.5));
    if (name == "RMSprop")
      return std::make_unique<optim::RMSprop>(parameters, optim::RMSpropOptions(1e-2));
    const auto options = optim::AdamWOptions(1e-2).amsgrad(name == "AdamW amsgrad");
    if (name == "FusedAdamW") return std::make_unique<fsdp::FusedAdamW>(parameters, options);
    return std::make_unique<optim::AdamW>(parameters, options);
  };
  tessera::MemoryFileSystem fs;
  tessera::SaveOptions saving;
  tessera::LoadPolicy loading;
  saving.file_system = loading.file_system = &fs;
  fsdp::run_threads(ranks, [&](fsdp::World& world) {
    fsdp::Options options;
    options.mesh = world.mesh();
    Odd model = make_odd(true), resumed = make_odd(true);
    shard_odd(model, options);
    shard_odd(resumed, options);
    const auto saved = of(model), loaded = of(resumed);
    const auto train_both = [&](int from, int to) {
      train_odd(model, *saved, from, to, world.rank(), ranks);
      train_odd(resumed, *loaded, from, to, world.rank(), ranks);
      const auto expected = model->parameters(), found = resumed->parameters();
      for (std::size_t p = 0; p < expected.size(); ++p)
        RANK_CHECK(same_bits(found[p], expected[p]), std::to_string(p));
    };
    train_odd(model, *saved, 0, 2, world.rank(), ranks);
    tessera::LiveState state;
    {
      const c10::InferenceMode inference;
      state = fsdp::state_dict(model, *saved);
    }
    tessera::save("/run/a", state, world.ranks(), saving);
    {
      const c10::InferenceMode inference;
      tessera::load("/run/a", fsdp::state_dict(resumed, *loaded), world.ranks(), loading);
    }
    train_both(2, 4);
    // Again, into state that there is.
    tessera::save("/run/b", fsdp::state_dict(model, *saved), world.ranks(), saving);
    train_odd(resumed, *loaded, 4, 5, world.rank(), ranks);
    {
      const c10::InferenceMode inference;
      tessera::load("/run/b", fsdp::state_dict(resumed, *loaded), world.ranks(), loading);
    }
    train_both(4, 6);
  });
}

}  // namespace state_filled_memory_test
