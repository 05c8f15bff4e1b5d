// Extensions that make other parameters of a module's own before they are sharded.
#include <tessera/base/error.h>

#include "tests/fsdp/extension_models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace state_extension_flatten_test {

namespace fsdp = tessera::fsdp;
using namespace tessera::fsdp::test;
using fsdp::MemoryLayout;

namespace {

/// Two modules on the meta device that share a weight.
struct PartImpl : torch::nn::Module {
  torch::Tensor weight, bias;
  explicit PartImpl(torch::Tensor its) {
    weight = register_parameter("weight", std::move(its));
    bias = register_parameter("bias", counted({3}).to(torch::kMeta));
  }
};
struct TiedImpl : torch::nn::Module {
  std::shared_ptr<PartImpl> one, two;
  TiedImpl() {
    one = register_module("one", std::make_shared<PartImpl>(counted({4, 3}).to(torch::kMeta)));
    two = register_module("two", std::make_shared<PartImpl>(one->weight));
  }
  torch::Tensor forward(torch::Tensor x) { return (one->weight * x).sum(); }
};
FSDP_MODULE(Tied);

}  // namespace

TEST_CASE("pre_flatten cuts whole parameters to this rank's parts of a 2-D mesh") {
  struct Cut : fsdp::Extension {
    fsdp::DeviceMesh tensor;
    explicit Cut(fsdp::DeviceMesh mesh) : tensor(std::move(mesh)) {}
    std::optional<fsdp::DeviceMesh> mesh() const override { return tensor; }
    at::Tensor pre_flatten(const torch::nn::Module&, const std::string& name,
                           const at::Tensor& parameter) const override {
      if (name != "matrix") return parameter;
      const std::int64_t each = kRows / tensor.size(0);
      return parameter.narrow(0, tensor.coordinate(0) * each, each);
    }
    std::optional<int> sharded_dim(const torch::nn::Module&, const std::string& name,
                                   const at::Tensor& parameter) const override {
      if (name != "matrix") return std::nullopt;
      if (parameter.size(0) != kRows / tensor.size(0)) throw std::runtime_error("not cut");
      return 0;
    }
  };
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  tessera::MemoryFileSystem fs;
  tessera::SaveOptions saving;
  tessera::LoadPolicy loading;
  saving.file_system = loading.file_system = &fs;
  fsdp::run_threads(4, [&](fsdp::World& world) {
    const fsdp::DeviceMesh mesh(world, {2, 2}, {"data", "tensor"});
    Matrix model;
    const torch::Tensor before = model->matrix;
    fsdp::Options options;
    options.mesh = mesh.sub(0);
    options.extension = std::make_shared<Cut>(mesh.sub(1));
    options.layout = layout;
    fully_shard(model, options);
    {
      const fsdp::SummonFullParams summoned(model);
      const std::int64_t each = kRows / 2;
      RANK_CHECK(same_bits(model->matrix,
                           counted({kRows, kColumns}).narrow(0, mesh.coordinate(1) * each, each)));
      RANK_CHECK(model->matrix.is_same(before) && model->matrix.requires_grad());
    }
    tessera::save("/run/a", fsdp::state_dict(model), world.ranks(), saving);
    fill(model, -3);
    tessera::load("/run/a", fsdp::state_dict(model), world.ranks(), loading);
    // It trains: the gradient has the part's shape.
    model->forward(torch::ones({1})).backward();
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(1.0));
    optimizer.step();
    const fsdp::SummonFullParams summoned(model);
    RANK_CHECK(same_bits(model->plain, counted({7}) - 1));
    RANK_CHECK(same_bits(model->matrix,
                         counted({kRows, kColumns}).narrow(0, mesh.coordinate(1) * 3, 3) - 1));
  });
  CHECK(same_bits(stored_matrix(fs), counted({kRows, kColumns})));
}

TEST_CASE(
    "pre_flatten may change the type and what has no values yet, and failing leaves no trace") {
  struct Bfloat : fsdp::Extension {
    bool fails = false, integers = false;
    at::Tensor pre_flatten(const torch::nn::Module&, const std::string& name,
                           const at::Tensor& parameter) const override {
      if (name == "plain" && fails) throw std::runtime_error("no more");
      if (name == "plain" && integers) return parameter.to(torch::kInt);
      return parameter.t().contiguous().to(torch::kBFloat16);
    }
  };
  fsdp::run_threads(2, [&](fsdp::World& world) {
    for (const bool meta : {false, true}) {
      Matrix model(meta ? at::kMeta : at::kCPU);
      const auto extension = std::make_shared<Bfloat>();
      fsdp::Options options = options_of(world, true, extension);
      if (meta)
        options.param_init_fn = [](torch::nn::Module& module) {
          auto& matrix = dynamic_cast<MatrixImpl&>(module);
          matrix.matrix.copy_(counted({kRows, kColumns}));
          matrix.plain.copy_(counted({7}));
        };
      for (const bool throws : {true, false}) {
        extension->fails = throws;
        extension->integers = !throws;
        std::string found;
        try {
          fully_shard(model, options);
        } catch (const std::exception& error) {
          found = error.what();
        }
        RANK_CHECK(found.find(throws ? "no more" : "pre_flatten of \"plain\"") != std::string::npos,
                   found);
        RANK_CHECK(model->matrix.is_meta() == meta && model->matrix.dtype() == torch::kFloat);
        RANK_CHECK(model->matrix.sizes() == at::IntArrayRef({kRows, kColumns}));
        if (!meta) RANK_CHECK(same_bits(model->matrix, counted({kRows, kColumns})));
      }
      extension->integers = false;
      fully_shard(model, options);
      const fsdp::SummonFullParams summoned(model);
      RANK_CHECK(same_bits(model->matrix,
                           counted({kRows, kColumns}).t().contiguous().to(torch::kBFloat16)));
    }
  });
}

TEST_CASE("pre_flatten that fails on one rank fails fully_shard on all, and a gradient is kept") {
  struct OnOne : fsdp::Extension {
    bool here = false;
    at::Tensor pre_flatten(const torch::nn::Module&, const std::string&,
                           const at::Tensor& parameter) const override {
      if (here) throw std::runtime_error("not on this rank");
      return parameter.view({-1});
    }
  };
  fsdp::run_threads(3, [&](fsdp::World& world) {
    Matrix model;
    const auto extension = std::make_shared<OnOne>();
    extension->here = world.rank() == 2;
    const auto message = [&] {
      try {
        fully_shard(model, options_of(world, true, extension));
      } catch (const std::exception& error) {
        return std::string(error.what());
      }
      return std::string();
    };
    std::string found = message();
    RANK_CHECK(found.find("not on this rank") != std::string::npos, found);
    RANK_CHECK(same_bits(model->matrix, counted({kRows, kColumns})), "as it was, on every rank");
    extension->here = false;
    model->forward(torch::ones({1})).backward();
    found = message();
    RANK_CHECK(
        found.find("\"matrix\" makes shape [30] of [6,5], and a gradient") != std::string::npos,
        found);
    RANK_CHECK(model->matrix.grad().sizes() == model->matrix.sizes());
    model->zero_grad();
    found = message();
    RANK_CHECK(found.empty(), found);
    const fsdp::SummonFullParams summoned(model);
    RANK_CHECK(same_bits(model->matrix, counted({kRows * kColumns})));
  });
}

TEST_CASE("pre_flatten is undone where the layout refuses what it made") {
  struct Sum : fsdp::Extension {
    at::Tensor pre_flatten(const torch::nn::Module&, const std::string& name,
                           const at::Tensor& parameter) const override {
      return name == "plain" ? parameter.sum() : parameter.narrow(0, 0, 2);
    }
  };
  fsdp::run_threads(2, [&](fsdp::World& world) {
    Matrix model;
    const auto shard = [&](std::shared_ptr<fsdp::Extension> extension) {
      fully_shard(model, options_of(world, true, extension, MemoryLayout::kPerParameter));
    };
    std::string found;
    try {
      shard(std::make_shared<Sum>());
    } catch (const tessera::Error& error) {
      found = error.what();
    }
    RANK_CHECK(found.find("\"plain\" has no dimension to shard") != std::string::npos, found);
    RANK_CHECK(same_bits(model->matrix, counted({kRows, kColumns})));
    RANK_CHECK(same_bits(model->plain, counted({7})));
    shard(nullptr);
  });
}

TEST_CASE(
    "pre_flatten comes once all modules have their values, where they share a parameter too") {
  struct Cut : fsdp::Extension {
    at::Tensor pre_flatten(const torch::nn::Module&, const std::string& name,
                           const at::Tensor& parameter) const override {
      return name == "weight" ? parameter.narrow(0, 0, 2) : parameter;
    }
  };
  fsdp::run_threads(2, [&](fsdp::World& world) {
    Tied model;
    fsdp::Options options = options_of(world, true, std::make_shared<Cut>());
    options.param_init_fn = [](torch::nn::Module& module) {
      auto& part = dynamic_cast<PartImpl&>(module);
      part.weight.copy_(counted({4, 3}));
      part.bias.fill_(1);
    };
    fully_shard(model, options);
    const fsdp::SummonFullParams summoned(model);
    RANK_CHECK(same_bits(model->one->weight, counted({4, 3}).narrow(0, 0, 2)));
    RANK_CHECK(model->two->weight.is_same(model->one->weight));
  });
}

TEST_CASE("pre_flatten may change a shape while the graph of a forward before is alive") {
  struct Ravel : fsdp::Extension {
    at::Tensor pre_flatten(const torch::nn::Module&, const std::string&,
                           const at::Tensor& parameter) const override {
      return parameter.view({-1}).narrow(0, 1, parameter.numel() - 1);
    }
  };
  fsdp::run_threads(2, [&](fsdp::World& world) {
    Matrix model;
    const torch::Tensor loss = model->forward(torch::ones({1}));
    fully_shard(model, options_of(world, true, std::make_shared<Ravel>()));
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(1.0));
    model->forward(torch::ones({1})).backward();
    optimizer.step();
    const fsdp::SummonFullParams summoned(model);
    RANK_CHECK(same_bits(model->matrix, counted({30}).narrow(0, 1, 29) - 1));
  });
}

TEST_CASE("a sharded_dim that the parameter does not have is refused by name") {
  struct Dim : fsdp::Extension {
    fsdp::DeviceMesh tensor;
    int dim;
    Dim(fsdp::DeviceMesh its, int its_dim) : tensor(std::move(its)), dim(its_dim) {}
    std::optional<fsdp::DeviceMesh> mesh() const override { return tensor; }
    std::optional<int> sharded_dim(const torch::nn::Module&, const std::string& name,
                                   const at::Tensor&) const override {
      return name == "plain" ? std::optional(dim) : std::nullopt;
    }
  };
  const int dim = GENERATE(1, -1);
  std::string found;
  fsdp::run_threads(4, [&](fsdp::World& world) {
    const fsdp::DeviceMesh mesh(world, {2, 2}, {"data", "tensor"});
    Matrix model;
    fsdp::Options options;
    options.mesh = mesh.sub(0);
    options.extension = std::make_shared<Dim>(mesh.sub(1), dim);
    try {
      fully_shard(model, options);
    } catch (const tessera::Error& error) {
      if (world.rank() == 0) found = error.what();
    }
  });
  CHECK_THAT(found, Catch::Contains("sharded_dim of \"plain\": expected a dim of [7], found " +
                                    std::to_string(dim)));
}

TEST_CASE("pre_flatten that differs between ranks is refused on all of them, with both shapes") {
  struct ByRank : fsdp::Extension {
    std::int64_t rows = kRows;
    at::Tensor pre_flatten(const torch::nn::Module&, const std::string& name,
                           const at::Tensor& parameter) const override {
      return name == "matrix" ? parameter.narrow(0, 0, rows) : parameter;
    }
  };
  const bool hybrid = GENERATE(false, true);
  const int odd_one = GENERATE(0, 1, 3);
  fsdp::run_threads(4, [&](fsdp::World& world) {
    Matrix model;
    const auto extension = std::make_shared<ByRank>();
    if (world.rank() == odd_one) extension->rows = 5;
    fsdp::Options options = options_of(world, true, extension);
    if (hybrid) {
      options.mesh = fsdp::DeviceMesh(world, {2, 2}, {"replicate", "shard"});
      options.strategy = fsdp::ShardingStrategy::kHybridShard;
    }
    std::string found;
    try {
      fully_shard(model, options);
    } catch (const tessera::Error& error) {
      found = error.what();
    }
    RANK_CHECK(found.find("parameters differ between ranks") != std::string::npos, found);
    RANK_CHECK(found.find("\"matrix\" Float [5,5]") != std::string::npos, found);
    RANK_CHECK(found.find("\"matrix\" Float [6,5]") != std::string::npos, found);
    RANK_CHECK(same_bits(model->matrix, counted({kRows, kColumns})));
    extension->rows = 2;
    fully_shard(model, options);
  });
}

TEST_CASE("an extension's mesh of two dims is refused") {
  struct Wide : fsdp::Extension {
    std::optional<fsdp::DeviceMesh> wide;
    std::optional<fsdp::DeviceMesh> mesh() const override { return wide; }
  };
  fsdp::run_threads(4, [&](fsdp::World& world) {
    const auto extension = std::make_shared<Wide>();
    extension->wide = fsdp::DeviceMesh(world, {2, 2}, {"a", "b"});
    fsdp::Options options;
    options.extension = extension;
    options.mesh = extension->wide->sub(0);
    Matrix model;
    std::string found;
    try {
      fully_shard(model, options);
    } catch (const tessera::Error& error) {
      found = error.what();
    }
    RANK_CHECK(found.find("mesh() has 2 dims") != std::string::npos, found);
  });
}

}  // namespace state_extension_flatten_test
