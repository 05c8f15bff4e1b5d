// The failures people meet with optimizers: keys by id or name, steps in other places, state that
// is absent, partly absent, of another shape, or of parameters that no longer train.
#include <tessera/format/torch_dcp.h>
#include <tessera/format/torch_save.h>
#include <tessera/state/optim_edit.h>

#include "tests/support/broken_checkpoint.h"
#include "tests/support/note_text.h"
#include "tests/support/random_optimizer.h"
#include "tests/support/written_checkpoint.h"

namespace failure_catalogue_optimizer_test {

using namespace tessera;
using namespace tessera::testing;
using Catch::Contains;

namespace {

/// A made-up optimizer as one torch.save file at /source/model.pt.
struct MadeUp {
  MemoryFileSystem fs;
  Manifest manifest;

  explicit MadeUp(OptimizerKind kind, OptimizerForm form, std::uint64_t seed = 4)
      : manifest(random_optimizer(seed, kind, form)) {}

  std::size_t entry(const std::string& part) const {
    for (std::size_t i = 0; i < manifest.state.entries.size(); ++i)
      if (manifest.state.entries[i].name.find(part) != std::string::npos) return i;
    FAIL("no entry " << part);
    return 0;
  }
  /// A parameter that has state.
  std::string trained() const {
    const OptimState optim = canonical_optim_states(manifest, find_roles(manifest.state)).at(0);
    for (const OptimParameter& p : optim.parameters)
      if (p.find("exp_avg") != nullptr) return p.fqn;
    FAIL("none has state");
    return {};
  }
  void drop(const std::string& part) {
    std::vector<bool> keep(manifest.state.entries.size(), true);
    keep[entry(part)] = false;
    keep_entries(manifest, keep);
  }
  std::string save() {
    fs.make_directories("/none");
    TargetRequest request;
    request.single_file = true;
    const WrittenCheckpoint written(torch_save_driver(), manifest, *fs.open_directory("/none"),
                                    request);
    fs.write_file("/source/model.pt", written.files.begin()->second);
    return "/source/model.pt";
  }
  /// What optim finds, a line each.
  std::string optim() {
    OpenedCheckpoint opened = open_checkpoint(fs, save());
    opened.locate_all({});
    OptimOptions options;
    options.values = false;
    report = inspect_optimizer(opened, nullptr, options);
    std::string lines;
    for (const Note& n : report.findings)
      lines += fmt::format("{} {} {}: {}\n", note_code(n), note_severity(n), n.tensor, n.message);
    return lines;
  }
  std::map<std::string, std::string> canonical(const std::string& path) {
    OpenedCheckpoint opened = open_checkpoint(fs, path);
    opened.locate_all({});
    return canonical_content(opened.manifest, *opened.directory);
  }
  Status convert_to(const std::string& format, OptimKeys keys = OptimKeys::kKeep) {
    ConvertOptions options = convert_options(save(), "/result", std::nullopt, format);
    options.optim_keys = keys;
    options.verify = true;
    try {
      CHECK(convert(fs, options).verified);
    } catch (const Error& error) {
      return error.status();
    }
    return {};
  }
  OptimReport report;
};

}  // namespace

TEST_CASE("failure 8: moments of another shape than their weight are told with both shapes") {
  MadeUp made(OptimizerKind::kAdam, OptimizerForm::kNames);
  const std::uint32_t moment =
      made.manifest.state.entries[made.entry(".exp_avg_sq")].value.tensor_index();
  StoredTensor& tensor = made.manifest.tensors[moment];
  const std::int64_t numel = tensor.spec.shape.numel();
  tensor.spec.shape = Shape{numel, 1};
  ChunkTable chunks;
  for (StoredTensor& t : made.manifest.tensors) {
    Source source = made.manifest.source(t, 0);
    t.first_chunk = chunks.size();
    chunks.add(Chunk::whole_of(Box::whole(t.spec.shape)), source);
  }
  made.manifest.chunks = std::move(chunks);
  CHECK_THAT(made.optim(),
             Contains("OP003 error") && Contains("exp_avg_sq is [") && Contains("its parameter ["));
  CHECK_FALSE(made.report.ok());
}

TEST_CASE("failure 9: the step is found where each kind of optimizer keeps it, and stays there") {
  const std::pair<OptimizerKind, StepOrigin> kinds[] = {
      {OptimizerKind::kAdam, StepOrigin::kParameter},
      {OptimizerKind::kOldAdam, StepOrigin::kParameter},
      {OptimizerKind::kApex, StepOrigin::kGroup},
      {OptimizerKind::kTransformerEngine, StepOrigin::kGroup},
      {OptimizerKind::kDeepSpeedAdam, StepOrigin::kBoth},
      {OptimizerKind::kSgd, StepOrigin::kNone}};
  for (const auto& [kind, origin] : kinds) {
    CAPTURE(kind_text(kind));
    MadeUp made(kind, OptimizerForm::kIds, 11);
    const std::string path = made.save();
    const auto before = made.canonical(path);
    // Without any state, order and shape do not name the members of several groups.
    const bool stateless = kind == OptimizerKind::kSgd;
    REQUIRE(made.convert_to("torch-dcp", stateless ? OptimKeys::kKeep : OptimKeys::kFqn).ok());
    CHECK(made.canonical("/result") == before);
    OpenedCheckpoint opened = open_checkpoint(made.fs, "/result");
    OptimOptions options;
    options.values = false;
    opened.locate_all({});
    const OptimReport report = inspect_optimizer(opened, nullptr, options);
    for (const OptimReportParameter& p : report.optimizers.at(0).parameters)
      if (!p.leaves.empty() || origin == StepOrigin::kNone) CHECK(p.step_origin == origin);
  }
}

TEST_CASE("failure 10: state keyed by id and by name are told apart, and turned into each other") {
  MadeUp ids(OptimizerKind::kAdam, OptimizerForm::kIds);
  ids.optim();
  CHECK(ids.report.optimizers.at(0).dialect == "state keyed by integer id");
  MadeUp names(OptimizerKind::kAdam, OptimizerForm::kNames);
  names.optim();
  CHECK(names.report.optimizers.at(0).dialect == "state keyed by FQN");
  const std::string fqn = ids.trained();
  REQUIRE(ids.convert_to("torch-dcp", OptimKeys::kFqn).ok());
  OpenedCheckpoint opened = open_checkpoint(ids.fs, "/result");
  CHECK(opened.manifest.find("optim.state." + fqn + ".exp_avg") != nullptr);
}

TEST_CASE("failure 11: no state at all is normal, half of it is damage") {
  MadeUp partly(OptimizerKind::kAdam, OptimizerForm::kNames);
  const std::string fqn = partly.trained();
  partly.drop("state." + fqn + ".exp_avg_sq");
  CHECK_THAT(partly.optim(), Contains("OP001 error " + fqn +
                                      ": state is only partly there: "
                                      "exp_avg_sq missing"));
  CHECK_FALSE(partly.report.ok());
  MadeUp wholly(OptimizerKind::kAdam, OptimizerForm::kNames);
  for (const char* leaf : {".step", ".exp_avg_sq", ".exp_avg"}) wholly.drop("state." + fqn + leaf);
  CHECK_THAT(wholly.optim(), Contains("OP002 info") && Contains("have no state"));
  CHECK(wholly.report.ok());
}

TEST_CASE("failure 12: a parameter without state has none after a conversion either") {
  for (const OptimizerForm form : {OptimizerForm::kNames, OptimizerForm::kFlat}) {
    MadeUp made(OptimizerKind::kAdam, form);
    const std::string fqn = made.trained();
    for (const char* leaf : {".step", ".exp_avg_sq", ".exp_avg"}) made.drop("state." + fqn + leaf);
    const auto before = made.canonical(made.save());
    REQUIRE(made.convert_to("torch-dcp").ok());
    const auto after = made.canonical("/result");
    CHECK(after == before);
    CHECK_FALSE(after.contains(fqn + " exp_avg"));
  }
}

TEST_CASE("failure 13: state of a parameter that no longer trains is kept") {
  MadeUp made(OptimizerKind::kAdam, OptimizerForm::kNames);
  for (StoredTensor& tensor : made.manifest.tensors) tensor.requires_grad = false;
  const auto before = made.canonical(made.save());
  REQUIRE(made.convert_to("torch-dcp").ok());
  CHECK(made.canonical("/result") == before);
  CHECK(before.contains(made.trained() + " exp_avg"));
}

TEST_CASE("failure 15: options and leaves that nobody has heard of pass through") {
  MadeUp made(OptimizerKind::kUnknown, OptimizerForm::kIds, 3);
  const auto before = made.canonical(made.save());
  REQUIRE(before.contains("group 0 novel_option"));
  for (const char* format : {"torch-dcp", "safetensors"}) {
    MadeUp again(OptimizerKind::kUnknown, OptimizerForm::kIds, 3);
    REQUIRE(again.convert_to(format, OptimKeys::kFqn).ok());
    CHECK(again.canonical("/result") == before);
  }
}

TEST_CASE("failure 16: both ways to flatten are read, and the summary says which") {
  OpenOptions open;
  const auto dialect = [](const std::string& name) {
    BrokenSample sample(name);
    return open_checkpoint(sample.fs, sample.path).manifest.dialect;
  };
  CHECK(dialect("dcp-old/torch-2.3.1_dtensor_w2") != dialect("dcp-old/torch-2.6.0_dtensor_w2"));
  CHECK_THAT(dialect("dcp-old/torch-2.3.1_dtensor_w2"), Contains("2.3"));
  BrokenSample flat("dcp/fsdp2_w2_flat_optim");
  OpenedCheckpoint opened = open_checkpoint(flat.fs, flat.path);
  const Roles roles = find_roles(opened.manifest.state);
  CHECK(dialect_name(roles.optimizers.at(0).dialect) == "flattened state.<fqn>.<leaf> keys");
}

}  // namespace failure_catalogue_optimizer_test
