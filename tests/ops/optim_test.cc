// The optimizer's health, held against fixtures with one known defect each, and its canonical
// names.
#include <tessera/ops/hash.h>
#include <tessera/ops/optim.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/support/inspect_case.h"
#include "tests/support/note_text.h"
#include "tests/support/sample_case.h"

namespace optim_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

OptimReport report_of(const std::string& name, const OptimOptions& options = {}) {
  OpenedCheckpoint opened = open_path(fixture("optim/" + name + ".pt"));
  return inspect_optimizer(opened, nullptr, options);
}

std::vector<Note> problems(const OptimReport& report) {
  std::vector<Note> found;
  for (const Note& note : report.findings)
    if (note.severity != Severity::kInfo) found.push_back(note);
  return found;
}

const OptimReportParameter& named(const OptimizerReport& optim, const std::string& fqn) {
  for (const OptimReportParameter& p : optim.parameters)
    if (p.fqn == fqn) return p;
  FAIL("no " << fqn);
  return optim.parameters.front();
}

struct Seeded {
  const char* fixture;
  const char* code;
  const char* parameter;
  const char* words;
};
constexpr Seeded kSix[] = {
    {"nan", "OP007", "first.weight",
     "exp_avg holds NaN or Inf in 1 element, first at element 5 ([1,2])"},
    {"inf", "OP007", "first.bias",
     "exp_avg_sq holds NaN or Inf in 1 element, first at element 3 ([3])"},
    {"negative", "OP006", "norm.weight",
     "exp_avg_sq is negative in 1 element, first at element 2 ([2])"},
    {"reset_step", "OP004", "norm.bias", "step is 0 where 5 of its group are at 5"},
    {"zeroed", "OP008", "last.weight", "every element of exp_avg_sq is zero at step 5"},
    {"half_missing", "OP001", "last.bias", "exp_avg_sq missing"},
};

}  // namespace

TEST_CASE("fp32 copies of buffers are no half-missing state") {
  for (const char* name : {"deepspeed/zero1_w4/checkpoint", "deepspeed/zero2_bf16_w2/checkpoint",
                           "deepspeed/zero2_w2/golden/universal"}) {
    INFO(name);
    OpenedCheckpoint opened =
        open_path(std::string(TESSERA_SOURCE_DIR) + "/sample_checkpoints/" + name);
    const OptimReport report = inspect_optimizer(opened, nullptr, {});
    CHECK(report.ok());
    CHECK(problems(report).empty());
    CHECK(std::ranges::count(report.findings, "OP019", note_code<Note>) == 1);
  }
}

TEST_CASE("a healthy optimizer has no findings") {
  const OptimReport report = report_of("healthy");
  CHECK(report.ok());
  CHECK(problems(report).empty());
  REQUIRE(report.optimizers.size() == 1);
  const OptimizerReport& optim = report.optimizers[0];
  CHECK(optim.root == "optim");
  CHECK(optim.kind == "AdamW");
  CHECK(optim.parameters.size() == 6);
  CHECK(optim.groups.size() == 1);
  REQUIRE(optim.leaf_sets.size() == 1);
  CHECK(optim.leaf_sets[0].leaves == "exp_avg,exp_avg_sq,step");
  CHECK(optim.leaf_sets[0].step == 5);
  CHECK(optim.leaf_sets[0].count == 6);
}

TEST_CASE("each of the six seeded defects is reported exactly once, by name and element") {
  for (const Seeded& seeded : kSix) {
    INFO(seeded.fixture);
    const OptimReport report = report_of(seeded.fixture);
    CHECK_FALSE(report.ok());
    const auto found = problems(report);
    REQUIRE(found.size() == 1);
    CHECK(note_code(found[0]) == seeded.code);
    CHECK(found[0].severity == Severity::kError);
    CHECK(found[0].tensor == seeded.parameter);
    CHECK(found[0].message.find(seeded.words) != std::string::npos);
  }
}

TEST_CASE("all six at once are six findings") {
  const auto found = problems(report_of("all_six"));
  REQUIRE(found.size() == 6);
  for (const Seeded& seeded : kSix) {
    INFO(seeded.fixture);
    CHECK(std::ranges::count_if(found, [&](const Note& note) {
            return note_code(note) == seeded.code && note.tensor == seeded.parameter &&
                   note.message.find(seeded.words) != std::string::npos;
          }) == 1);
  }
}

TEST_CASE("other optimizers' state is looked at too") {
  const auto found = problems(report_of("sgd_nan"));
  REQUIRE(found.size() == 1);
  CHECK(note_code(found[0]) == "OP007");
  CHECK(found[0].tensor == "last.weight");
  CHECK(found[0].message.find("momentum_buffer") != std::string::npos);
}

TEST_CASE("a step kept by the group is every member's step") {
  const OptimReport report = report_of("group_step");
  CHECK(problems(report).empty());
  for (const OptimReportParameter& p : report.optimizers.at(0).parameters) {
    CHECK(p.step == 5);
    CHECK(p.step_origin == StepOrigin::kGroup);
  }
}

TEST_CASE("without values only structure is judged, and nothing is read") {
  OptimOptions options;
  options.values = false;
  CHECK(report_of("nan", options).ok());
  CHECK_FALSE(report_of("half_missing", options).ok());
  CHECK(report_of("nan", options).optimizers.at(0).updates.empty());
}

TEST_CASE("updates are ranked by their size against the weight, as PyTorch's formula gives them") {
  const OptimReport report = report_of("healthy");
  const Value expected = json_file(fixture("optim/updates.json"));
  const auto& updates = report.optimizers.at(0).updates;
  REQUIRE(updates.size() == expected.as_dict().size());
  for (std::size_t i = 0; i < updates.size(); ++i) {
    INFO(updates[i].fqn);
    REQUIRE(expected.find(updates[i].fqn));
    CHECK(updates[i].ratio == Approx(expected.find(updates[i].fqn)->as_real()).epsilon(1e-12));
    CHECK(updates[i].bias_corrected);
    if (i > 0) CHECK(updates[i - 1].ratio >= updates[i].ratio);
  }
}

TEST_CASE("with a later checkpoint parameters rank by growth of their second moment") {
  OpenedCheckpoint a = open_path(fixture("optim/healthy.pt")),
                   b = open_path(fixture("optim/later.pt"));
  const OptimReport report = inspect_optimizer(a, &b);
  const auto& updates = report.optimizers.at(0).updates;
  REQUIRE(updates.size() == 6);
  for (std::size_t i = 0; i < updates.size(); ++i) {
    REQUIRE(updates[i].growth);
    CHECK(*updates[i].growth > 0);
    if (i > 0) CHECK(*updates[i - 1].growth >= *updates[i].growth);
  }
  OpenedCheckpoint same = open_path(fixture("optim/healthy.pt"));
  const OptimReport unchanged = inspect_optimizer(a, &same);
  for (const UpdateRow& row : unchanged.optimizers.at(0).updates) CHECK(*row.growth == 1.0);
}

// The rekeyed sample holds the state of the other one, byte for byte, under integer ids.
TEST_CASE("integer ids get the names that the same state has elsewhere") {
  OpenedCheckpoint by_id = open_sample("torchsave/fsdp1_full_rekeyed");
  OpenedCheckpoint by_name = open_sample("torchsave/fsdp1_full");
  std::map<std::string, std::string> sums;
  for (const HashedTensor& t : hash_checkpoint(by_name).tensors) sums[t.name] = t.sha256;
  std::map<std::string, std::string> id_sums;
  for (const HashedTensor& t : hash_checkpoint(by_id).tensors) id_sums[t.name] = t.sha256;
  const OptimizerReport optim = inspect_optimizer(by_id, nullptr).optimizers.at(0);
  CHECK(optim.parameters.size() == 13);
  for (const OptimReportParameter& p : optim.parameters) {
    INFO(p.stored_key << " -> " << p.fqn);
    CHECK(p.inferred);
    CHECK(id_sums.at("optim.state." + p.stored_key + ".exp_avg") ==
          sums.at("optim.state." + p.fqn + ".exp_avg"));
    CHECK(id_sums.at("optim.state." + p.stored_key + ".exp_avg_sq") ==
          sums.at("optim.state." + p.fqn + ".exp_avg_sq"));
  }
}

TEST_CASE("ids of two groups: matrices first, then vectors") {
  const std::vector<std::string> names = {"embed.weight",
                                          "layers.0.up.weight",
                                          "layers.0.down.weight",
                                          "layers.1.up.weight",
                                          "layers.1.down.weight",
                                          "head.weight",
                                          "layers.0.norm.weight",
                                          "layers.0.norm.bias",
                                          "layers.0.up.bias",
                                          "layers.1.norm.weight",
                                          "layers.1.norm.bias",
                                          "layers.1.up.bias",
                                          "head.bias"};
  for (const char* sample : {"torchsave/adamw_zip", "torchsave/adamw_legacy"}) {
    OpenedCheckpoint opened = open_sample(sample);
    const OptimReport report = inspect_optimizer(opened, nullptr);
    CHECK(problems(report).empty());
    const OptimizerReport& optim = report.optimizers.at(0);
    REQUIRE(optim.parameters.size() == names.size());
    for (std::size_t id = 0; id < names.size(); ++id)
      CHECK(named(optim, names[id]).stored_key == std::to_string(id));
    CHECK(optim.groups.at(0).members == std::vector<std::string>(names.begin(), names.begin() + 6));
    CHECK(optim.groups.at(1).members == std::vector<std::string>(names.begin() + 6, names.end()));
  }
}

TEST_CASE("a tied parameter is counted once: its first name") {
  OpenedCheckpoint opened = open_sample("torchsave/sgd_tied_zip");
  const OptimizerReport optim = inspect_optimizer(opened, nullptr).optimizers.at(0);
  CHECK(optim.kind == "SGD with momentum");
  CHECK(named(optim, "embed.weight").stored_key == "0");
  CHECK(named(optim, "layers.0.norm.weight").stored_key == "1");
  CHECK(named(optim, "layers.1.down.weight").stored_key == "10");
}

TEST_CASE("FQN-keyed and flattened optimizers read alike") {
  OpenedCheckpoint by_name = open_sample("dcp/fsdp2_w4"),
                   flat = open_sample("dcp/fsdp2_w2_flat_optim");
  const OptimizerReport a = inspect_optimizer(by_name, nullptr).optimizers.at(0);
  const OptimizerReport b = inspect_optimizer(flat, nullptr).optimizers.at(0);
  CHECK(a.kind == b.kind);
  REQUIRE(a.parameters.size() == b.parameters.size());
  for (const OptimReportParameter& p : a.parameters) {
    const OptimReportParameter& other = named(b, p.fqn);
    CHECK(p.step == other.step);
    CHECK(p.leaves.size() == other.leaves.size());
    CHECK_FALSE(p.inferred);
  }
  REQUIRE(a.updates.size() == b.updates.size());
  for (std::size_t i = 0; i < a.updates.size(); ++i) {
    CHECK(a.updates[i].fqn == b.updates[i].fqn);
    CHECK(a.updates[i].ratio == b.updates[i].ratio);
  }
}

TEST_CASE("a checkpoint without an optimizer says so") {
  OpenedCheckpoint opened = open_sample("dcp/fsdp2_w2_model_only");
  const OptimReport report = inspect_optimizer(opened, nullptr);
  CHECK(report.ok());
  CHECK(report.optimizers.empty());
  CHECK(note_code(report.notes.at(0)) == "OP000");
}

}  // namespace optim_test
