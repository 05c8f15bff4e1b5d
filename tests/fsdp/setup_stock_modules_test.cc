// LibTorch's own modules as units: through fsdp::Holder they compute what the plain ones do.
#include <map>

#include "tests/fsdp/interception_models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace setup_stock_modules_test {

namespace fsdp = tessera::fsdp;
using namespace tessera::fsdp::interception;

TEST_CASE("stock modules as units equal the plain ones") {
  const auto same = [](auto plain, auto unit, auto&& call) {
    for (const auto& item : plain->named_parameters()) {
      torch::NoGradGuard no_grad;
      unit->named_parameters()[item.key()].copy_(item.value());
    }
    const Tensor reference = call(plain);
    reference.sum().backward();
    std::map<std::string, Tensor> gradients;
    for (const auto& item : plain->named_parameters()) gradients[item.key()] = item.value().grad();
    fsdp::fully_shard(unit, alone_as_stored());
    const Tensor ours = call(unit);
    CHECK(ours.equal(reference));
    ours.sum().backward();
    for (const auto& item : unit->named_parameters()) {
      REQUIRE(gradients.contains(item.key()));
      REQUIRE(item.value().grad().defined() == gradients[item.key()].defined());
      if (gradients[item.key()].defined())
        CHECK(item.value().grad().equal(gradients[item.key()].flatten()));
    }
  };
  torch::manual_seed(1);
  const Tensor rows = torch::randn({5, 4}), image = torch::randn({2, 3, 6, 6}),
               sequence = torch::randn({7, 2, 4});
  const auto first = [](auto&& tuple) { return std::get<0>(tuple); };
  using namespace torch::nn;

  same(Linear(4, 3), fsdp::Holder<LinearImpl>(4, 3), [&](auto& m) { return m->forward(rows); });
  same(Conv2d(Conv2dOptions(3, 5, 3)), fsdp::Holder<Conv2dImpl>(Conv2dOptions(3, 5, 3)),
       [&](auto& m) { return m(image); });
  same(BatchNorm1d(4), fsdp::Holder<BatchNorm1dImpl>(4), [&](auto& m) { return m(rows).pow(3); });
  same(LayerNorm(LayerNormOptions({4})), fsdp::Holder<LayerNormImpl>(LayerNormOptions({4})),
       [&](auto& m) { return m(rows).pow(3); });
  same(LSTM(4, 6), fsdp::Holder<LSTMImpl>(4, 6),
       [&](auto& m) { return first(m->forward(sequence)); });
  same(LSTM(4, 6), fsdp::Holder<LSTMImpl>(4, 6), [&](auto& m) {
    return first(m(sequence, std::make_tuple(torch::ones({1, 2, 6}), torch::zeros({1, 2, 6}))));
  });
  same(GRU(4, 6), fsdp::Holder<GRUImpl>(4, 6),
       [&](auto& m) { return first(m->forward(sequence, {})); });
  same(LSTM(4, 6), fsdp::Holder<LSTMImpl>(4, 6), [&](auto& m) {
    auto packed = utils::rnn::pack_padded_sequence(sequence, torch::tensor({7, 3}));
    return std::get<0>(m->forward_with_packed_input(packed)).data().clone();
  });
  same(MultiheadAttention(4, 2), fsdp::Holder<MultiheadAttentionImpl>(4, 2),
       [&](auto& m) { return first(m->forward(sequence, sequence, sequence, {}, false)); });
  const TransformerEncoderOptions encoder(TransformerEncoderLayerOptions(4, 2).dropout(0), 2);
  same(TransformerEncoder(encoder), fsdp::Holder<TransformerEncoderImpl>(encoder),
       [&](auto& m) { return m->forward(sequence); });
  same(TransformerEncoder(encoder), fsdp::Holder<TransformerEncoderImpl>(encoder), [&](auto& m) {
    return m(sequence, torch::zeros({7, 7}));
  });
  same(Embedding(9, 4), fsdp::Holder<EmbeddingImpl>(9, 4), [&](auto& m) {
    return m(torch::tensor({1, 8, 1}));
  });
  same(Sequential(Linear(4, 4), ReLU(), Linear(4, 2)),
       fsdp::Holder<SequentialImpl>(Linear(4, 4), ReLU(), Linear(4, 2)),
       [&](auto& m) { return m->forward(rows); });
}

TEST_CASE("a plain stock module is refused with its class") {
  torch::nn::Linear linear(2, 2);
  CHECK_THROWS_WITH(fsdp::fully_shard(linear, alone()), Catch::Contains("torch::nn::LinearImpl"));
}

}  // namespace setup_stock_modules_test
