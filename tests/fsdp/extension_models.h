#pragma once
// For the tests of extensions: a model of one matrix, and what extensions and tests of it need.
#include <tessera/fsdp.h>
#include <tessera/storage/memory_file_system.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/fsdp/state_support.h"

namespace tessera::fsdp::test {

constexpr std::int64_t kRows = 6, kColumns = 5;

inline torch::Tensor counted(std::vector<std::int64_t> sizes) {
  std::int64_t numel = 1;
  for (const std::int64_t n : sizes) numel *= n;
  return torch::arange(numel).to(torch::kFloat).view(sizes);
}

/// `absent` comes first and has no value: parameters are not numbered by what is there.
struct MatrixImpl : torch::nn::Module {
  torch::Tensor absent, matrix, plain;
  explicit MatrixImpl(at::Device device = at::kCPU) {
    absent = register_parameter("absent", {}, /*requires_grad=*/false);
    matrix = register_parameter("matrix", counted({kRows, kColumns}).to(device));
    plain = register_parameter("plain", counted({7}).to(device));
  }
  torch::Tensor forward(torch::Tensor x) { return (matrix * x).sum() + plain.sum(); }
};
FSDP_MODULE(Matrix);

struct HoldsMatrixImpl : torch::nn::Module {
  Matrix inner = register_module("inner", Matrix());
  torch::Tensor forward(torch::Tensor x) { return inner->forward(x); }
};
FSDP_MODULE(HoldsMatrix);

/// Transforms `matrix`, and leaves every other answer to the defaults.
struct Defaults : Extension {
  bool is_transformed(const torch::nn::Module&, const std::string& name) const override {
    return name == "matrix";
  }
};

inline Options options_of(World& world, bool with_mesh, std::shared_ptr<Extension> extension,
                          MemoryLayout layout = MemoryLayout::kFlat) {
  Options options;
  if (with_mesh) {
    options.mesh = world.mesh();
  } else {
    options.process_group = world.mesh().group(0);
  }
  options.layout = layout;
  options.extension = std::move(extension);
  return options;
}

inline void fill(Matrix& model, double value) {
  const torch::NoGradGuard no_grad;
  for (torch::Tensor& parameter : model->parameters()) parameter.fill_(value);
}

/// The whole matrix of a checkpoint, by a reader without modules. Throws where it has none.
inline torch::Tensor stored_matrix(MemoryFileSystem& fs, const std::string& name = "matrix",
                                   std::vector<std::int64_t> sizes = {kRows, kColumns}) {
  torch::Tensor out = torch::full(sizes, -9.0F);
  LiveState reader;
  reader.add({key_item("model"), key_item(name)}, {DType::kFloat32, sizes, {}, out.data_ptr()});
  LoadPolicy policy;
  policy.file_system = &fs;
  policy.model = PartPolicy::kAllowBoth;
  const auto alone = single_rank();
  if (load("/run/a", reader, *alone, policy).loaded.size() != 1) throw std::runtime_error(name);
  return out;
}

/// What `f` throws; "": nothing.
inline std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "something else";
  }
  return "";
}

}  // namespace tessera::fsdp::test
