#pragma once
// For the tests of state dicts: a model of every awkward shape, and a brute-force reader of live
// states.
#include <tessera/fsdp.h>
#include <torch/torch.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tests/fsdp/models.h"

namespace tessera::fsdp::test {

/// Odd sizes, fewer rows than ranks, a scalar (only where asked for: the per-parameter layout
/// refuses it), a tied pair, buffers, an empty parameter.
struct OddImpl : torch::nn::Module {
  torch::nn::Embedding embed{nullptr};
  Block inner{nullptr};
  torch::nn::Linear head{nullptr};
  torch::Tensor scalar, empty, tokens, history;
  explicit OddImpl(bool with_scalar);
  torch::Tensor forward(torch::Tensor ids);
};
FSDP_MODULE(Odd);

/// Equal values every time.
Odd make_odd(bool with_scalar);
/// The inner block, then all of it.
void shard_odd(Odd& model, const Options& options);
/// One step's loss, from this rank's part of a batch of 12.
torch::Tensor odd_loss(Odd& model, int step, int rank, int world);
/// Steps `from` to `to`, stepping after each backward.
void train_odd(Odd& model, torch::optim::Optimizer& optimizer, int from, int to, int rank,
               int world);

/// Tied parameters once, as PyTorch lists them.
std::vector<torch::Tensor> once_each(const std::vector<torch::Tensor>& parameters);

/// Fresh folder, removed at the end.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

/// The tensor `name`, element by element out of all ranks' pieces. Throws where an element is in no
/// piece, or in several of a tensor that is not replicated, or in several with different content.
torch::Tensor assembled(const std::vector<LiveState>& ranks, const std::string& name);
const LiveTensor* find_tensor(const LiveState& state, const std::string& name);
const Value* find_value(const LiveState& state, const std::string& name);
std::vector<std::string> names_of(const LiveState& state);

/// A checkpoint in memory: whole tensors, and the manifest of them. What save and load do, by brute
/// force and without a byte of their code.
struct Checkpoint {
  Manifest manifest;
  std::map<std::string, torch::Tensor> tensors;
  /// The checkpoint that these ranks' states make. Precondition: their before_save ran.
  static Checkpoint of(const std::vector<LiveState>& ranks);
  /// Replaces or adds a tensor, or a value where `tensor` is undefined.
  void put(const Path& path, torch::Tensor tensor, Value value = {});
  void remove(const std::string& name);
  /// Fills one rank's state as load would, and returns what was asked for and is not there.
  std::vector<std::string> load_into(LiveState state) const;
};

bool same_bits(const torch::Tensor& a, const torch::Tensor& b);
/// Checks that both hold the same names and, bit by bit, the same values. Not in rank threads.
void check_equal(const Checkpoint& found, const Checkpoint& expected);

}  // namespace tessera::fsdp::test
