#pragma once
// FlatRecord: what each flat parameter of an FSDP1 model holds. The files of a LOCAL state dict do
// not say it; a record comes from flat_layout.json in the checkpoint's folder (ours has one), from
// --flat-layout FILE, or from a full state dict beside the rank files.
//
//   {"flat_params": {"layers.0._flat_param": {"fqns": ["layers.0.norm.weight", ..],
//                                             "shapes": [[6], ..],
//                                             "alignment": 4}},        elements, optional
//    "parameters": ["embed.weight", "layers.0.norm.weight", ..],       order of the model, optional
//    "optimizers": {"optim": ["embed.weight", ..]}}                    optional
//
// "optimizers" says what ids 0, 1, .. of the optimizer there mean: parameters, or (use_orig_params
// off) flat parameters.
//
// Other keys are ignored. Pure.
#include <tessera/base/bytes.h>
#include <tessera/layout/flat_layout.h>
#include <tessera/tensor/dtype.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tessera::rank_files {

inline constexpr std::string_view kFlatRecordFile = "flat_layout.json";

struct FlatUnit {
  std::string name;  // key of the flat parameter: "layers.0._flat_param"
  std::vector<FlatParameter> parameters;
  std::int64_t alignment = 0;  // elements; 0 = not stated
};

struct FlatRecord {
  std::vector<FlatUnit> units;
  std::vector<std::string> order;  // of the model's parameters; empty: not known
  std::map<std::string, std::vector<std::string>> optimizers;  // dotted root -> name of each id
  const FlatUnit* find(std::string_view name) const;
};

/// Throws kCorrupt for text that is no record.
FlatRecord parse_flat_record(ByteView json);
std::string dump_flat_record(const FlatRecord& record);

/// "_flat_param" or (before PyTorch 2.0) "flat_param" as the last component of a key.
bool is_flat_name(std::string_view key);

/// A unit laid out for a stored flat parameter of `stored_numel` elements on `world_size` ranks.
/// use_orig_params pads every parameter to 16 bytes and the whole to a multiple of the ranks; off
/// there is no padding inside. Throws kCorrupt when no such layout has this size: the record is of
/// another model.
struct FittedUnit {
  FlatLayout layout;
  std::int64_t alignment = 1;
  bool padded_total = false;  // stored_numel counts the padding at the end
};
FittedUnit fit_unit(const FlatUnit& unit, std::int64_t stored_numel, std::int64_t world_size,
                    DType dtype);

}  // namespace tessera::rank_files
