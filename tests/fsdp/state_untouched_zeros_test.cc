// untouched_zeros_like: as good as at::zeros_like in every way that a trained state is used.
#include <c10/core/alignment.h>
#include <torch/torch.h>

#include <catch2/catch.hpp>

#include "fsdp_core/bridge/untouched_zeros.h"

namespace state_untouched_zeros_test {

using tessera::fsdp::untouched_zeros_like;

TEST_CASE("untouched zeros are zeros of the same shape and type") {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kLong, at::kBool})
    for (const std::vector<std::int64_t>& sizes :
         {std::vector<std::int64_t>{}, {0}, {1}, {3, 0}, {7, 5}, {513, 1025}}) {
      const at::Tensor like = at::ones(sizes, at::dtype(type));
      const at::Tensor made = untouched_zeros_like(like);
      INFO(like.toString() << " " << like.sizes());
      CHECK(made.sizes() == like.sizes());
      CHECK(made.strides() == like.strides());
      CHECK(made.scalar_type() == type);
      CHECK(made.is_contiguous());
      CHECK(made.equal(at::zeros_like(like)));
      CHECK(reinterpret_cast<std::uintptr_t>(made.data_ptr()) % c10::gAlignment == 0);
    }
}

TEST_CASE("untouched zeros need no gradient, and can be written, resized and shared") {
  const at::Tensor parameter = at::rand({300, 200}).requires_grad_();
  at::Tensor made = untouched_zeros_like(parameter);
  CHECK_FALSE(made.requires_grad());
  CHECK(made.is_leaf());
  made.add_(2).resize_({1000, 1000});
  CHECK(made.numel() == 1000000);
  CHECK(made.view({-1}).narrow(0, 0, 60000).equal(at::full({60000}, 2.0f)));
  at::Tensor view;
  {
    const at::Tensor short_lived = untouched_zeros_like(parameter);
    view = short_lived.select(0, 3);
  }
  view.add_(1);
  CHECK(view.sum().item<float>() == 200);
}

TEST_CASE("what is not plain memory is made by at::zeros_like") {
  const at::Tensor turned = at::rand({6, 4}).t();
  const at::Tensor made = untouched_zeros_like(turned);
  CHECK(made.strides() == at::zeros_like(turned).strides());
  CHECK(made.equal(at::zeros_like(turned)));
  CHECK(untouched_zeros_like(at::rand({3}).to_sparse()).is_sparse());
}

}  // namespace state_untouched_zeros_test
