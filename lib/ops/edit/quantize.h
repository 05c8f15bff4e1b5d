#pragma once
// --quantize: plain weights become codes and scales, under the names that loaders of such checkpoints
// read. The last of the transformations: it sees names, shapes and types of the result.
//
//   fp8-block  w.weight (float8_e4m3fn), w.weight_scale_inv          DeepSeek-V3, transformers
//   mxfp4      stacked experts: w_blocks, w_scales                   GPT-OSS
//              others: w.weight_packed, w.weight_scale               compressed-tensors
//   nvfp4      w.weight_packed, w.weight_scale, w.weight_global_scale compressed-tensors, no scale of
//              activations; weights that vLLM joins have one second scale
#include <tessera/ops/transform.h>

namespace tessera {

/// `asked` has a scheme. Reads the weights' largest magnitudes where the scheme needs those of whole
/// weights. Throws kInvalidArgument (nothing to quantize), kUnsupported (state of an optimizer that
/// cannot follow, names that are taken).
void apply_quantize(OpenedCheckpoint& checkpoint, const Transformations& asked,
                    const TransferOptions& transfer, TransformOutcome& out);

}  // namespace tessera
