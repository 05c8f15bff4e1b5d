#pragma once
// A small Megatron model and its optimizer as plain numbers, and its rank files at any size, cut by
// rules written down here again (tests compare the toolkit with them). Layouts written by a script:
// no Megatron run made them.
#include <tessera/storage/memory_file_system.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/support/rank_archive.h"

namespace tessera::testing {

/// How tensor parallelism cuts a tensor.
enum class ToyCut { kRows, kGated, kColumns, kNone };

struct ToyTensor {
  std::string name;  // in the whole model
  std::int64_t rows = 1;
  std::int64_t columns = 0;  // 0: a vector of `rows`
  ToyCut cut = ToyCut::kNone;
  std::vector<float> values;
  Shape shape() const { return columns ? Shape{rows, columns} : Shape{rows}; }
};

struct ToyOptions {
  std::int64_t tp = 1, pp = 1, ep = 1;
  std::int64_t layers = 4;
  std::int64_t experts = 0;  // of each layer, instead of its MLP
  bool tied = false;         // the output layer is the embedding
  bool gated = true;         // args.swiglu
  bool with_args = true;     // argparse.Namespace
  bool half = false;         // bfloat16 weights, with fp32 masters
  enum class Optimizer { kNone, kAdam, kSgd, kDistributed } optimizer = Optimizer::kAdam;
  std::int64_t virtual_stages = 1;
  double expert_lr = 0.001;  // of experts that expert-parallel ranks share; else that of all
  std::int64_t vocabulary = 12;
  std::int64_t scale = 1;  // of all other dims: hidden size 4, 16 and 8 in the MLP, 4 heads
  std::vector<std::pair<std::string, Value>> more_args;
};

std::vector<ToyTensor> toy_model(const ToyOptions& options);

/// What a reader must find: "float32 [4,5] <sha256>" by name, as content_of().
std::map<std::string, std::string> toy_content(const ToyOptions& options);

/// Path in the folder -> bytes of every rank file.
std::map<std::string, Bytes> toy_files(const ToyOptions& options);
/// The same in a folder of `fs`.
void write_toy(MemoryFileSystem& fs, const std::string& folder, const ToyOptions& options);

}  // namespace tessera::testing
