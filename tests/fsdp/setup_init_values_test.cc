// Initial values depend on seed, name and place, never on how a parameter is cut.

#include <ATen/core/PhiloxRNGEngine.h>
#include <tessera/base/error.h>
#include <tessera/fsdp/meta_init.h>

#include "fsdp_core/setup/meta_init.h"
#include "tests/fsdp/torch_and_catch.h"

namespace setup_init_values_test {

namespace fsdp = tessera::fsdp;
using fsdp::init::Piece;
using fsdp::init::Seed;

TEST_CASE("pieces of a parameter are filled as the whole is") {
  const std::vector<std::int64_t> sizes = {13, 7, 3};
  const std::int64_t numel = 13 * 7 * 3;
  const torch::Dtype dtype =
      GENERATE(torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf);
  const Seed seed = Seed::of(42, "layers.0.weight");
  using Fill = std::function<void(const Piece&)>;
  const std::vector<Fill> fills = {
      [&](const Piece& piece) { fsdp::init::normal_(piece, seed, 0.5, 2); },
      [&](const Piece& piece) { fsdp::init::uniform_(piece, seed, -3, 4); },
      [&](const Piece& piece) { fsdp::init::kaiming_uniform_(piece, seed, std::sqrt(5.0)); },
      [&](const Piece& piece) {
        fsdp::init::kaiming_uniform_(piece, seed, 0, fsdp::init::Fan::kOut);
      },
      [&](const Piece& piece) { fsdp::init::ones_(piece); },
      [&](const Piece& piece) { fsdp::init::zeros_(piece); },
  };
  for (const Fill& fill : fills) {
    const torch::Tensor whole = torch::full(sizes, 9, dtype);
    fill(Piece::whole(whole));
    for (const std::int64_t ranks : {1, 2, 3, 5, 8, 300}) {
      const std::int64_t shard = (numel + ranks - 1) / ranks;
      std::vector<torch::Tensor> shards;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const std::int64_t begin = std::min(numel, rank * shard);
        shards.push_back(torch::full({std::min(numel, begin + shard) - begin}, 9, dtype));
        fill(Piece{shards.back(), begin, sizes});
      }
      REQUIRE(torch::cat(shards).equal(whole.flatten()));
    }
  }
}

TEST_CASE("a parameter larger than one slice of the generator is filled alike") {
  const torch::Tensor whole = torch::empty({300'001});
  const Seed seed = Seed::of(1, "w");
  fsdp::init::normal_(Piece::whole(whole), seed);
  const torch::Tensor part = torch::empty({150'000});
  fsdp::init::normal_(Piece{part, 100'001, {300'001}}, seed);
  CHECK(part.equal(whole.narrow(0, 100'001, 150'000)));
}

TEST_CASE("uniform values come from Philox 4x32-10") {
  const Seed seed{0x0123456789abcdef};
  const torch::Tensor values = torch::empty({11}, torch::kDouble);
  fsdp::init::uniform_(Piece::whole(values), seed);
  for (std::int64_t i = 0; i < 11; ++i) {
    at::Philox4_32 engine(seed.value, 0, static_cast<std::uint64_t>(i / 2));
    if (i % 2 == 1) engine(), engine();
    const std::uint64_t high = engine();
    const std::uint64_t low = engine();
    CHECK(values[i].item<double>() ==
          static_cast<double>((high << 32 | low) >> 11) / 9007199254740992.0);
  }
}

TEST_CASE("values have the distribution they are named after") {
  const torch::Tensor values = torch::empty({400, 500});
  const Seed seed = Seed::of(3, "x");
  fsdp::init::normal_(Piece::whole(values), seed, 1.0, 0.5);
  CHECK(values.mean().item<double>() == Approx(1.0).margin(0.005));
  CHECK(values.std().item<double>() == Approx(0.5).margin(0.005));
  CHECK((values < 0.5).to(torch::kDouble).mean().item<double>() == Approx(0.1587).margin(0.005));
  fsdp::init::uniform_(Piece::whole(values), seed, -2, 6);
  CHECK(values.min().item<double>() >= -2);
  CHECK(values.max().item<double>() <= 6);
  CHECK(values.mean().item<double>() == Approx(2.0).margin(0.02));
  CHECK(values.std().item<double>() == Approx(8 / std::sqrt(12.0)).margin(0.02));
  fsdp::init::kaiming_uniform_(Piece::whole(values), seed, std::sqrt(5.0));
  CHECK(values.abs().max().item<double>() == Approx(1 / std::sqrt(500.0)).epsilon(1e-3));
}

TEST_CASE("other seeds and other names give other values") {
  const auto draw = [](std::uint64_t seed, std::string_view name) {
    const torch::Tensor values = torch::empty({64});
    fsdp::init::uniform_(Piece::whole(values), Seed::of(seed, name));
    return values;
  };
  CHECK(draw(1, "a").equal(draw(1, "a")));
  CHECK_FALSE(draw(1, "a").equal(draw(2, "a")));
  CHECK_FALSE(draw(1, "a").equal(draw(1, "b")));
  CHECK_FALSE(draw(1, "layers.1").equal(draw(1, "layers.2")));
}

TEST_CASE("init functions refuse what is not a piece of the parameter") {
  const torch::Tensor values = torch::empty({4});
  const Seed seed;
  CHECK_THROWS_WITH(fsdp::init::zeros_(Piece{values, 2, {5}}), Catch::Contains("[2, 6)"));
  CHECK_THROWS_AS(fsdp::init::zeros_(Piece{values, -1, {5}}), tessera::Error);
  CHECK_THROWS_WITH(fsdp::init::normal_(Piece::whole(torch::empty({4}, torch::kLong)), seed),
                    Catch::Contains("floating"));
  CHECK_THROWS_WITH(fsdp::init::normal_(Piece::whole(torch::empty({4, 4}).t()), seed),
                    Catch::Contains("contiguous"));
  CHECK_THROWS_WITH(fsdp::init::kaiming_uniform_(Piece::whole(values), seed),
                    Catch::Contains("fan"));
  CHECK_THROWS_AS(fsdp::init::uniform_(Piece::whole(values), seed, 1, 0), tessera::Error);
  CHECK_THROWS_AS(fsdp::init::normal_(Piece::whole(values), seed, 0, -1), tessera::Error);
}

TEST_CASE("parameters that require grad are filled in place") {
  torch::nn::Linear linear(4, 4);
  fsdp::init::ones_(Piece::whole(linear->weight));
  CHECK(linear->weight.detach().equal(torch::ones({4, 4})));
  CHECK(linear->weight.is_leaf());
  CHECK(linear->weight.requires_grad());
}

TEST_CASE("MetaInit builds stock layers without memory") {
  torch::nn::Linear linear{nullptr};
  torch::nn::Embedding embedding{nullptr};
  torch::nn::TransformerEncoderLayer layer{nullptr};
  torch::nn::LSTM lstm{nullptr};
  {
    fsdp::MetaInit meta;
    linear = torch::nn::Linear(1 << 20, 1 << 20);
    embedding = torch::nn::Embedding(1 << 20, 1 << 20);
    layer = torch::nn::TransformerEncoderLayer(torch::nn::TransformerEncoderLayerOptions(8, 2));
    lstm = torch::nn::LSTM(4, 4);
  }
  CHECK(linear->weight.is_meta());
  CHECK(linear->weight.is_leaf());
  CHECK(linear->weight.requires_grad());
  for (const torch::Tensor& parameter : layer->parameters()) CHECK(parameter.is_meta());
  for (const torch::Tensor& parameter : lstm->parameters()) CHECK(parameter.is_meta());
  CHECK_FALSE(torch::empty({1}).is_meta());
}

TEST_CASE("a meta parameter is materialised in place") {
  torch::nn::Linear linear{nullptr};
  {
    fsdp::MetaInit meta;
    linear = torch::nn::Linear(4, 3);
  }
  const torch::Tensor handle = linear->weight;
  fsdp::materialise(linear->weight, torch::kCPU, "weight");
  fsdp::materialise(linear->bias, torch::kCPU, "bias");
  CHECK(handle.is_same(linear->weight));
  CHECK(linear->parameters()[0].is_same(handle));
  CHECK_FALSE(handle.is_meta());
  CHECK(handle.requires_grad());
  CHECK(handle.device() == torch::Device(torch::kCPU));
  fsdp::init::ones_(Piece::whole(linear->weight));
  fsdp::init::zeros_(Piece::whole(linear->bias));
  const torch::Tensor y = linear->forward(torch::ones({2, 4}));
  CHECK(y.equal(torch::full({2, 3}, 4.f)));
  y.sum().backward();
  CHECK(linear->weight.grad().equal(torch::full({3, 4}, 2.f)));
}

TEST_CASE("materialising keeps strides, and refuses what autograd knows already") {
  torch::Tensor meta = torch::empty({4, 6}, torch::kMeta).t();
  meta = torch::empty_strided({6, 4}, {1, 6}, torch::TensorOptions().device(torch::kMeta));
  fsdp::materialise(meta, torch::kCPU, "w");
  CHECK(meta.strides() == torch::IntArrayRef({1, 6}));
  meta.fill_(1);
  CHECK(meta.sum().item<float>() == 24);
  CHECK_THROWS_WITH(fsdp::materialise(meta, torch::kCPU, "w"),
                    Catch::Contains("not on the meta device"));

  torch::Tensor used =
      torch::empty({3}, torch::TensorOptions().device(torch::kMeta).requires_grad(true));
  const torch::Tensor graph = used * 2;
  CHECK_THROWS_WITH(fsdp::materialise(used, torch::kCPU, "layers.0.w"),
                    Catch::Contains("layers.0.w"));
  torch::Tensor hooked =
      torch::empty({3}, torch::TensorOptions().device(torch::kMeta).requires_grad(true));
  hooked.register_hook([](torch::Tensor gradient) { return gradient; });
  CHECK_THROWS_AS(fsdp::materialise(hooked, torch::kCPU, "w"), tessera::Error);
}

}  // namespace setup_init_values_test
