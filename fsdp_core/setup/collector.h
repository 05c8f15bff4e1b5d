#pragma once
// What one fully_shard call takes: every parameter below its modules that no unit owns, and the
// buffers there. What is on the meta device gets memory and values on the way, and what the unit's
// extension makes of parameters takes their place; unless keep() is called both are as they were
// afterwards, so that a call that failed can be made again.
#include <ATen/core/Tensor.h>
#include <tessera/fsdp/options.h>

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "fsdp_core/params/param.h"
#include "fsdp_core/setup/ignored.h"
#include "fsdp_core/setup/meta_init.h"

namespace tessera::fsdp {

class Collector {
 public:
  /// `overwritten`: all values come from another rank afterwards.
  Collector(std::vector<torch::nn::Module*> modules, const Options& options, bool overwritten)
      : modules_(std::move(modules)), options_(options), overwritten_(overwritten) {}
  ~Collector();
  Collector(const Collector&) = delete;
  Collector& operator=(const Collector&) = delete;

  /// Throws what param_init_fn throws; kInvalidArgument, kUnsupported by name otherwise.
  void collect();
  /// Once all have their values, for those of one module may come with another's, and from another
  /// rank: what the extension makes of them.
  void prepare();
  /// Throws kInvalidArgument where param_init_fn left elements of `tensor` unwritten: as collect() does,
  /// for what is not overwritten after all.
  void check_written(const at::Tensor& tensor) const;
  /// The call succeeds: memory and values stay.
  void keep() {
    blanks_.clear();
    flattened_.clear();
  }

  std::vector<Param> params;
  std::vector<at::Tensor> buffers;

 private:
  void walk(torch::nn::Module& module, const std::string& fqn, const Ignored& ignored);
  void initialise(torch::nn::Module& module, const std::string& fqn, const Ignored& ignored);
  void take(torch::nn::Module& module, std::size_t index, const std::string& fqn,
            const at::Tensor& tensor);
  void prepare(Param& param);
  void flatten(const torch::nn::Module& module, const std::string& name, const std::string& fqn,
               const at::Tensor& tensor);

  struct Flattened {
    at::Tensor parameter;
    at::Tensor before;  // its data
  };

  const std::vector<torch::nn::Module*> modules_;
  std::size_t walked_ = 0;  // of them
  const Options& options_;
  const bool overwritten_;
  std::unordered_set<const torch::nn::Module*> seen_;
  std::unordered_set<const c10::TensorImpl*> buffers_seen_;
  std::unordered_map<const c10::TensorImpl*, std::size_t> by_tensor_;
  std::vector<Blank> blanks_;  // of the whole call
  std::vector<Flattened> flattened_;
};

}  // namespace tessera::fsdp
