#include "tests/support/training_run.h"

#include <fmt/format.h>
#include <tessera/state/findings.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "tests/support/rank_archive.h"
#include "tests/support/safetensors_file.h"

namespace tessera::testing {
namespace {

constexpr double kRate = 1e-3, kBeta1 = 0.9, kEpsilon = 1e-8, kDecay = 0.01;

std::size_t numel_of(const std::vector<std::int64_t>& shape) {
  std::size_t numel = 1;
  for (const std::int64_t extent : shape) numel *= static_cast<std::size_t>(extent);
  return numel;
}

TrainedTensor made(std::string name, std::vector<std::int64_t> shape, std::vector<float> w) {
  TrainedTensor tensor{std::move(name), std::move(shape), std::move(w), {}, {}};
  tensor.m.resize(tensor.w.size());
  tensor.v.resize(tensor.w.size());
  return tensor;
}

}  // namespace

std::vector<float> initialized(const std::vector<std::int64_t>& shape, std::mt19937_64& random) {
  const double bound =
      1 / std::sqrt(static_cast<double>(numel_of(shape)) / static_cast<double>(shape[0]));
  std::uniform_real_distribution<double> uniform(-bound, bound);
  std::vector<float> values(numel_of(shape));
  for (float& x : values) x = static_cast<float>(uniform(random));
  return values;
}

TrainingRun::TrainingRun(std::uint64_t seed, int layers, std::int64_t width) : random_(seed) {
  const std::vector<std::int64_t> square = {width, width}, table = {2 * width, width};
  tensors_.push_back(made("embed_tokens.weight", table, initialized(table, random_)));
  for (int layer = 0; layer < layers; ++layer) {
    tensors_.push_back(
        made(fmt::format("layers.{}.mlp.weight", layer), square, initialized(square, random_)));
    tensors_.push_back(made(fmt::format("layers.{}.norm.weight", layer), {width},
                            std::vector<float>(static_cast<std::size_t>(width), 1)));
  }
  tensors_.push_back(made("lm_head.weight", table, initialized(table, random_)));
}

TrainedTensor& TrainingRun::operator[](const std::string& name) {
  const auto found = std::ranges::find(tensors_, name, &TrainedTensor::name);
  if (found == tensors_.end()) throw std::runtime_error("no tensor " + name);
  return *found;
}

void TrainingRun::step_once(TrainedTensor& t) {
  if (t.frozen) return;
  std::normal_distribution<double> normal(0, t.gradient);
  t.step += 1;
  const double c1 = 1 - std::pow(kBeta1, t.step), c2 = 1 - std::pow(beta2, t.step);
  for (std::size_t i = 0; i < t.w.size(); ++i) {
    const double g = t.gradient == 0 ? 0 : normal(random_);
    const double m = kBeta1 * static_cast<double>(t.m[i]) + (1 - kBeta1) * g;
    const double v = beta2 * static_cast<double>(t.v[i]) + (1 - beta2) * g * g;
    t.m[i] = static_cast<float>(m);
    t.v[i] = static_cast<float>(v);
    const double decayed = static_cast<double>(t.w[i]) * (t.gradient == 0 ? 1 : 1 - kRate * kDecay);
    t.w[i] = static_cast<float>(decayed - kRate * (m / c1) / (std::sqrt(v / c2) + kEpsilon));
  }
}

void TrainingRun::train(int steps) {
  for (int i = 0; i < steps; ++i) {
    for (TrainedTensor& tensor : tensors_) step_once(tensor);
    ++step;
    stored_step += 1;
  }
}

Bytes TrainingRun::checkpoint() const {
  RankArchive archive;
  ValueDict model, state, members;
  ValueList ids;
  std::map<std::string, Value> written;
  std::int64_t id = 0;
  for (const TrainedTensor& t : tensors_) {
    const Shape shape(t.shape);
    const bool second = tied && tied->second == t.name;
    const Value weight = second ? written.at(tied->first) : archive.tensor(shape, t.w);
    written.emplace(t.name, weight);
    model.emplace_back(text(t.name), weight);
    if (second) continue;
    ids.push_back(number(id));
    if (t.step > 0 && !t.frozen)
      state.emplace_back(number(id),
                         dict({{"step", archive.tensor(Shape{}, {static_cast<float>(t.step)})},
                               {"exp_avg", archive.tensor(shape, t.m)},
                               {"exp_avg_sq", archive.tensor(shape, t.v)}}));
    ++id;
  }
  const Value betas = Value::list({Value::real(kBeta1), Value::real(beta2)}, Value::Kind::kTuple);
  const Value group = dict({{"lr", Value::real(kRate)},
                            {"betas", betas},
                            {"eps", Value::real(kEpsilon)},
                            {"weight_decay", Value::real(kDecay)},
                            {"amsgrad", Value::boolean(false)},
                            {"params", Value::list(std::move(ids))}});
  ValueDict root{{text("model"), Value::dict(std::move(model))}};
  if (stores_optimizer)
    root.emplace_back(text("optimizer"), dict({{"state", Value::dict(std::move(state))},
                                               {"param_groups", Value::list({group})}}));
  root.emplace_back(text("iteration"), number(static_cast<std::int64_t>(stored_step)));
  return archive.render(Value::dict(std::move(root)));
}

void TrainingRun::save(MemoryFileSystem& fs) const {
  fs.write_file(fmt::format("/run/step_{}.pt", step), checkpoint());
}

void TrainingRun::save_model(MemoryFileSystem& fs) const {
  std::string header = "{", data;
  for (const TrainedTensor& t : tensors_) {
    const std::size_t begin = data.size(), bytes = t.w.size() * sizeof(float);
    data.append(reinterpret_cast<const char*>(t.w.data()), bytes);
    std::string shape;
    for (const std::int64_t extent : t.shape)
      shape += fmt::format("{}{}", shape.empty() ? "" : ",", extent);
    header += fmt::format("{}\"{}\":{{\"dtype\":\"F32\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                          header.size() > 1 ? "," : "", t.name, shape, begin, begin + bytes);
  }
  fs.write_file(fmt::format("/run/step_{}/model.safetensors", step),
                as_bytes(safetensors_of(header + "}", data)));
}

AuditReport audited(FileSystem& fs, bool deep, const std::function<void(AuditOptions&)>& set) {
  AuditOptions options;
  options.deep = deep;
  if (set) set(options);
  return audit_run(fs, "/run", options);
}

std::string trouble(const AuditReport& report) {
  std::string text;
  for (const Note& note : report.findings)
    if (note.severity != Severity::kInfo)
      text +=
          fmt::format("{} {} {}: {}\n", code_text(note.code), note.file, note.tensor, note.message);
  return text;
}

const Note* found(const AuditReport& report, const std::string& code, const std::string& file,
                  const std::string& tensor) {
  for (const Note& note : report.findings)
    if (code_text(note.code) == code && (file.empty() || note.file == file) &&
        (tensor.empty() || note.tensor == tensor))
      return &note;
  return nullptr;
}

}  // namespace tessera::testing
