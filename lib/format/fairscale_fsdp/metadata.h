#pragma once
// What FairScale's local_metadata_dict() says about one rank: which wrappers there are, which
// parameters each backing parameter holds, and how many padding elements end this rank's shard.
//
//   2021-07 and newer  param_metadata[i].params[backing] = {names, shapes, numels, padding}
//   2021-05 to 2021-07 param_metadata[i] = {is_flat, param_names, param_shapes, param_numels,
//                      num_padded: one number per backing parameter}
//
// Wrapper segments of module paths (_fsdp_wrapped_module, _fpw_module) are gone from every name
// here. Pure; thread-safe.
#include <tessera/state/value.h>
#include <tessera/tensor/shape.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::fairscale {

inline Value text(std::string_view of) { return Value::string(std::string(of)); }

struct Parameter {
  std::string name;  // inside its wrapper
  Shape shape;
  bool operator==(const Parameter&) const = default;
};

/// What one stored tensor holds: the parameters of a flat buffer, end to end, or one parameter.
struct Backing {
  std::string name;  // "flat_param_0", or the parameter's own
  bool flat = true;
  std::vector<Parameter> parameters;
  std::int64_t numel = 0;    // without padding; checked
  std::int64_t padding = 0;  // at the end of this rank's shard
};

struct Wrapper {
  std::string path;  // "" = the root
  bool no_broadcast = false;
  std::vector<Backing> backings;
  std::vector<std::pair<std::string, std::string>>
      shared;  // (source, destination), inside the wrapper
};

/// What our own writer adds for the way back: where model and optimizer stood in the source, that
/// the ids' maps were not part of it, and how it kept its steps.
struct WriterMarks {
  std::string model_root = "model";
  std::string optim_root = "optim";
  bool ids_implied = false;
  Value maps;              // the ids' maps as the source had them; None: as the files have them
  Value state;             // of buffers, by name: dicts of leaves; on rank 0
  std::string step_dtype;  // steps were tensors without dims of this dtype; here they are numbers
};

struct RankMetadata {
  std::vector<Wrapper> wrappers;
  std::vector<std::string> buffers;
  WriterMarks marks;
};

/// The dict with this key is the metadata.
inline constexpr std::string_view kMetadataKey = "param_metadata";
inline constexpr std::string_view kMarksKey = "tessera";

/// `path` without the segments that wrappers add.
std::string clean_path(std::string_view path);
/// "<path>.<name>", or the name alone at the root.
std::string joined(std::string_view path, std::string_view name);
/// The other spelling of a wrapper's first flat parameter: "flat_param" until 2021-06, then
/// "flat_param_0". "" for every other name.
std::string_view other_spelling(std::string_view name);

/// True when the value has the structure of local_metadata_dict()'s result.
bool is_metadata(const Value& value);
/// Throws kCorrupt naming the wrapper and the field.
RankMetadata parse_metadata(const Value& value);
/// The first difference in anything but padding: "" when both describe the same wrappers.
std::string first_difference(const RankMetadata& a, const RankMetadata& b);

}  // namespace tessera::fairscale
