#pragma once
// Meta's weights: `consolidated.00.pth`, `consolidated.01.pth`, ..., one file for each of N
// model-parallel ranks, joined by the names of Llama's modules.
//
//   rows      wq wk wv w1 w3 output
//   columns   wo w2
//   whole     norms, rope.freqs
//
// tok_embeddings is cut by columns (Llama 1 and 2) or by the vocabulary (Llama 3): the model's width,
// the length of `norm.weight`, decides.
//
// Source: llama/model.py (ColumnParallelLinear, RowParallelLinear, ParallelEmbedding) of
// meta-llama/llama and llama3.
#include <tessera/format/format_driver.h>

#include <string>
#include <vector>

namespace tessera::torch_save {

/// `parts`: as find_meta_parts() lists them. Throws kUnsupported for a tensor that differs among the
/// parts and whose name no rule knows; a part that is missing is a finding (CK010).
Manifest read_meta_parts(const Place& place, const ReadOptions& options,
                         const std::vector<std::string>& parts);

}  // namespace tessera::torch_save
