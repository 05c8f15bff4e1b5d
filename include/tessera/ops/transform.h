#pragma once
// Changes to what a checkpoint holds, in addition to selection and renaming; the same for reshard
// and convert. All are edits of the manifest, between locate and the output plan, in this order:
//
//   dequantize   codes and scales become plain weights (--dequantize)
//   rules        other names and fusion (ops/rules.h); weights, state, steps and groups follow
//   tied         weights that are one tensor under several names: equal bytes, never names
//   vocabulary   rows of zeros added or rows cut; optimizer state follows
//   dtype        elements cast while they are copied
//   quantize     plain weights become codes and scales (--quantize)
//
// Integers, counters and (unless a pattern says so) optimizer state are never cast. A pattern that
// matches nothing is kInvalidArgument.
#include <tessera/ops/open.h>
#include <tessera/ops/rename.h>
#include <tessera/ops/rules.h>
#include <tessera/reshard/executor.h>
#include <tessera/state/aliases.h>
#include <tessera/state/block_scheme.h>
#include <tessera/state/parameter_edit.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

class AliasEntries;

/// kDefault: as the source has them; with --to hf, kDrop. kKeep stores names again that the source
/// records as tied and does not store; all others pass such records on.
enum class TiedPolicy : std::uint8_t { kDefault, kKeep, kDrop, kError };

/// --keep-dtype GLOB=D, on whole dotted names; the first that matches wins.
struct DTypeRule {
  std::string glob;
  std::optional<DType> dtype;  // nullopt: as stored ("keep")
};

struct Transformations {
  std::optional<DType> dequantize;  // quantized weights become plain ones of this type
  std::optional<RulesRequest> rules;
  bool strict_rules = false;  // a parameter that no rule names is kInvalidArgument, not a warning
  TiedPolicy tied = TiedPolicy::kDefault;
  std::optional<std::int64_t> vocab_size;
  std::vector<std::string> vocab_tensors;  // globs on FQNs; empty: rules, or well-known names
  std::optional<DType> dtype;              // of floating model weights
  /// The same by name, before `dtype`: as the shards of another checkpoint have them.
  std::map<std::string, DType> dtypes;
  std::vector<DTypeRule> keep_dtypes;
  std::optional<BlockScheme> quantize;
  std::vector<std::string> quantize_tensors;  // globs on FQNs; empty: the weights of linear layers
  bool plan_only = false;  // a dry run: no element is read for the sake of its value
  /// What becomes of state that cannot be cut with a parameter that rules or the vocabulary change, or
  /// that is quantized.
  OptimPolicy optim = OptimPolicy::kKeep;
};

/// A type as users write it: PyTorch's name, with `torch.` or not, a short one (bf16, fp16, f32,
/// half, double, fp8_e4m3, ...), or one of safetensors (BF16, I64); nullopt: none is called so.
std::optional<DType> dtype_from_word(std::string_view text);
/// The same for real floating types only. Throws kInvalidArgument naming `flag`.
DType parse_float_type(std::string_view flag, std::string_view text);
/// "GLOB=D" or "GLOB=keep".
DTypeRule parse_keep_dtype(std::string_view text);

/// Leaf tensors of one type, before and after a cast.
struct DTypeTotal {
  DType dtype = DType::kFloat32;
  std::uint64_t tensors_before = 0, bytes_before = 0;
  std::uint64_t tensors_after = 0, bytes_after = 0;
};

struct TransformOutcome {
  std::vector<AppliedTransformation> applied;
  std::vector<DTypeTotal> dtypes;    // of all tensors, where a cast was asked for
  std::vector<Alias> aliases;        // tied weights that are not stored
  std::vector<std::string> dropped;  // those of them that the source stores
  std::vector<Note> notes;
  std::string quantization;  // JSON: config.json's quantization_config of what was quantized
};

/// `checkpoint` must be located. `drop_by_default`: what TiedPolicy::kDefault means. `recorded`:
/// the entries that convert() gave to tied weights which the checkpoint does not store.
TransformOutcome apply_transformations(OpenedCheckpoint& checkpoint,
                                       const Transformations& transformations, bool drop_by_default,
                                       const TransferOptions& transfer,
                                       const AliasEntries* recorded = nullptr);

/// Notes about elements that did not fit when they were cast: a warning per tensor for the largest
/// losses.
std::vector<Note> cast_notes(const Manifest& manifest,
                             const std::map<std::uint32_t, CastCounts>& casts);

}  // namespace tessera
