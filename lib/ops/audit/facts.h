#pragma once
// What is kept of one checkpoint of a run: its row, and a few words for each tensor. Names are
// shared by all checkpoints; manifests are not kept.
#include <tessera/ops/audit.h>
#include <tessera/state/optim_state.h>

#include <cstdint>
#include <deque>
#include <limits>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lib/ops/audit/content_key.h"
#include "lib/ops/open/path_resolve.h"

namespace tessera {

/// Names by number, each once. Thread-safe.
class AuditNames {
 public:
  std::uint32_t id(std::string_view name);
  std::string name(std::uint32_t id) const;
  std::size_t size() const;

 private:
  mutable std::mutex mutex_;
  std::deque<std::string> names_;
  std::unordered_map<std::string_view, std::uint32_t> ids_;
};

/// What a tensor is for the training.
enum class TensorUse : std::uint8_t {
  kWeight,
  kMoment,  // of any optimizer, an element for each of the weight's
  kSecond,  // sums or averages of squared gradients
  kMaster,
  kOther,  // buffers, counters, factored moments
};

inline constexpr float kNoDecay = -1;

struct TensorFact {
  std::uint32_t id = 0;         // its name
  std::uint32_t parameter = 0;  // name of the weight that it belongs to, its own for a weight
  std::uint32_t index = 0;      // in the manifest of its part
  TensorUse use = TensorUse::kOther;
  bool trains = false;    // a weight that has optimizer state, and a learning rate other than 0
  bool measured = false;  // `deep` looks at it
  std::uint8_t rank = 0;
  std::uint8_t element_bytes = 0;
  /// kSecond: what is left of an element after one step without gradient (beta2); kNoDecay: not
  /// known.
  float decay = kNoDecay;
  std::int64_t numel = 0;
  std::int64_t fan_in = 0;  // extents of all dims but the first
  ContentKey key;

  std::uint64_t bytes() const { return static_cast<std::uint64_t>(numel) * element_bytes; }
};

/// A checkpoint, or an optimizer beside it, which is read as a part of it.
struct AuditPart {
  std::string path;
  std::string from;    // format id, "" = detect
  std::string prefix;  // of its tensors' names; "" for the checkpoint itself
  std::vector<TensorFact> tensors;
  std::string identity;  // of its content, as text: what the cache goes by
};

struct CheckpointFacts {
  AuditedCheckpoint row;
  std::vector<AuditPart> parts;
  bool has_optimizer = false;
  std::uint32_t odd_steps = 0;  // parameters whose step is not the one of most
  std::string odd_step;         // the first of them, and what is odd
  std::vector<std::pair<std::uint32_t, std::uint32_t>> ties;  // one storage, or a recorded alias
  std::set<std::uint32_t> with_state;                         // parameters, by name
  std::set<std::string> values;        // top-level keys of what is neither model nor optimizer
  std::set<std::string> beside;        // of the same state, # for numbers
  std::set<std::string> beside_state;  // of these, what is no sidecar
  bool ties_embeddings = false;        // config.json says so
  bool holds_errors = false;           // `deep` found some, reported here or where they began

  /// All of its parts' tensors by name.
  std::unordered_map<std::uint32_t, const TensorFact*> by_id() const;
};

/// Opens one checkpoint of a run; what stops it is the row's problem.
CheckpointFacts gather_facts(FileSystem& fs, const FoundCheckpoint& found, const std::string& run,
                             const AuditOptions& options, AuditNames& names);

/// How parts are opened for reading, too.
OpenOptions part_options(const AuditPart& part, const AuditOptions& options);
/// Marks and lists the tensors of a part that is open; its optimizers, if asked for.
std::vector<TensorFact> tensor_facts(OpenedCheckpoint& opened, const std::string& prefix,
                                     AuditNames& names, std::vector<OptimState>* optimizers);

}  // namespace tessera
