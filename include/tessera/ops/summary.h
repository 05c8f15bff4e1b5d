#pragma once
// summary: an overview of a checkpoint that fits one screen. Reads headers and metadata only, no
// tensor byte.
#include <tessera/ops/open.h>
#include <tessera/ops/seal.h>
#include <tessera/state/aliases.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// A line of a byte table.
struct ByteRow {
  std::string key;  // "param", "exp_avg", "float32", ...
  std::uint64_t tensors = 0;
  std::int64_t numel = 0;
  std::uint64_t bytes = 0;
};

/// A top-level key of the state dict.
struct RootRow {
  std::string name;  // "" = the dict itself
  std::string role;  // "model", "optimizer", "other"
  std::uint64_t tensors = 0;
  std::uint64_t values = 0;
  std::uint64_t bytes = 0;
};

struct GroupSummary {
  std::int64_t index = 0;
  std::uint64_t members = 0;
  std::optional<double> lr;
  std::optional<double> weight_decay;
  bool lr_is_tensor = false;  // its value is in the data, which a summary does not read
};

struct OptimizerSummary {
  std::string root;
  std::string kind;         // "AdamW", inferred
  std::string kind_source;  // what it was inferred from
  std::string dialect;      // "state keyed by FQN"
  std::vector<std::string> leaves;
  std::uint64_t parameters_with_state = 0;
  std::vector<GroupSummary> groups;
};

/// A number with where it was found.
struct SourcedNumber {
  std::string name;  // "world size", "step", "dp", "replicas"
  double value = 0;
  std::string source;
};

struct SummaryReport {
  std::string path;
  std::string display;
  std::string format;
  std::string dialect;
  std::string detected_by;
  bool complete = true;
  std::vector<std::string> problems;  // why not
  std::uint64_t files = 0;
  std::uint64_t file_bytes = 0;
  std::optional<std::int64_t> world_size;
  std::string world_size_source;
  std::vector<SourcedNumber> numbers;  // grid, step, epoch, iteration
  std::uint64_t tensors = 0;           // leaves
  std::uint64_t embedded_tensors = 0;
  std::uint64_t chunks = 0;
  std::uint64_t values = 0;
  std::uint64_t parameters = 0;  // tensors of kind param
  std::int64_t parameter_numel = 0;
  std::uint64_t trainable = 0;  // parameters with state or listed in a group
  std::uint64_t frozen = 0;     // parameters that no group lists; 0 when no optimizer is there
  std::uint64_t buffers = 0;
  std::uint64_t tensor_bytes = 0;
  std::vector<ByteRow> by_kind;  // param, buffer, master, each optimizer leaf, other; largest first
  std::vector<ByteRow> by_dtype;
  std::vector<RootRow> roots;
  std::vector<OptimizerSummary> optimizers;
  std::vector<std::vector<std::string>> tied;  // names that share one storage
  std::vector<Alias> aliases;                  // tied weights that are recorded and not stored
  std::uint64_t padded_tensors = 0;
  std::vector<std::pair<std::string, std::string>> provenance;
  std::vector<GlobalUse> globals;  // every distinct one, denied first, then opaque, then known
  std::vector<Note> notes;         // findings and warnings of the reader
  std::vector<Beside> beside;      // of the same training state, not read with it
  std::vector<LostTensor> lost;    // when it, or what it was made of, was salvaged
};

SummaryReport summarize(const OpenedCheckpoint& checkpoint);

}  // namespace tessera
