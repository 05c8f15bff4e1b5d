#pragma once
// A training run made up by a test: a small model, AdamW worked out in full, and its checkpoints as files
// of torch.save. Gradients are random and of one size, so that a run to which nothing is done is a
// healthy one.
#include <tessera/base/bytes.h>
#include <tessera/ops/audit.h>
#include <tessera/storage/memory_file_system.h>

#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace tessera::testing {

struct TrainedTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<float> w, m, v;
  double step = 0;         // of its optimizer state
  double gradient = 1e-3;  // size of its gradients
  bool frozen = false;     // no gradient, no state
};

class TrainingRun {
 public:
  /// embed, `layers` layers of a matrix and a norm, head: initialized as nn.Linear does.
  explicit TrainingRun(std::uint64_t seed = 1, int layers = 4, std::int64_t width = 64);

  TrainedTensor& operator[](const std::string& name);
  std::vector<TrainedTensor>& tensors() { return tensors_; }
  /// AdamW steps with random gradients.
  void train(int steps);
  /// What torch.save writes of it now.
  Bytes checkpoint() const;
  /// Writes that to /run/step_<step>.pt.
  void save(MemoryFileSystem& fs) const;
  /// As a model alone: /run/step_<step>/model.safetensors.
  void save_model(MemoryFileSystem& fs) const;

  int step = 0;            // of the training loop
  double stored_step = 0;  // what is saved of it; follows `step`
  bool stores_optimizer = true;
  double beta2 = 0.999;
  /// Tied: the second is the first's storage.
  std::optional<std::pair<std::string, std::string>> tied;

 private:
  void step_once(TrainedTensor& tensor);

  std::vector<TrainedTensor> tensors_;
  std::mt19937_64 random_;
};

/// Values of nn.Linear's initializer for `shape`.
std::vector<float> initialized(const std::vector<std::int64_t>& shape, std::mt19937_64& random);

AuditReport audited(FileSystem& fs, bool deep, const std::function<void(AuditOptions&)>& set = {});
/// "AU010 step_2.pt w: message" lines of what is worse than info.
std::string trouble(const AuditReport& report);
const Note* found(const AuditReport& report, const std::string& code, const std::string& file = "",
                  const std::string& tensor = "");

}  // namespace tessera::testing
