// Ranks load one checkpoint: what they have read is compared, not how it is spelled.
#include <catch2/catch.hpp>
#include <memory>

#include "tests/support/live_job.h"
#include "tests/support/live_saved.h"

namespace live_same_checkpoint_test {

using namespace tessera;
using namespace tessera::test;
using Catch::Matchers::Contains;

namespace {

void save_to(FileSystem& fs, const std::string& path, float weight, const Value& epoch) {
  float w[2] = {weight, weight};
  LiveState state;
  state.add("w", {DType::kFloat32, {2}, {}, w});
  state.add_value("epoch", epoch);
  const auto ranks = single_rank();
  save(path, state, *ranks, saving(fs));
}

/// What two ranks throw that load these paths of their own disks.
std::vector<std::string> load_two(FileSystem& first, const std::string& first_path,
                                  FileSystem& second, const std::string& second_path) {
  return on_ranks(2, [&](RankGroup& ranks) {
    const bool leads = ranks.rank() == 0;
    float w[2] = {9, 9};
    LiveState state;
    state.add("w", {DType::kFloat32, {2}, {}, w});
    state.add_value("epoch", Value());
    try {
      load(leads ? first_path : second_path, state, ranks, loading(leads ? first : second));
    } catch (...) {
      if (w[0] != 9) throw std::runtime_error("memory changed");
      throw;
    }
    if (w[1] != 1) throw std::runtime_error("other bytes");
  });
}

void check_differ(const std::vector<std::string>& thrown, const std::string& first,
                  const std::string& second) {
  for (const std::string& message : thrown)
    CHECK_THAT(message, Contains("ranks see different checkpoints: rank 0 \"" + first +
                                 "\", rank 1 \"" + second + "\""));
}

void copy_all(const MemoryFileSystem& from, MemoryFileSystem& to, const std::string& folder) {
  for (const auto& [path, content] : from.contents("/lr/step_1"))
    if (!path.ends_with('/')) to.write_file(folder + "/" + path, as_bytes(content));
}

}  // namespace

TEST_CASE("one checkpoint may be spelled in any way, and lie on disks of its ranks") {
  MemoryFileSystem fs, other;
  save_to(fs, "/lr/step_1", 1, Value::integer(1));
  for (const char* path : {"lr/step_1", "./lr/step_1", "/lr/step_1/", "/lr"})
    require_quiet(load_two(fs, "/lr/step_1", fs, path));
  copy_all(fs, other, "/copy/here");
  require_quiet(load_two(fs, "/lr/step_1", other, "/copy/here"));
}

TEST_CASE("two checkpoints under one path are told apart by a value, a shape or a name") {
  MemoryFileSystem fs, other;
  save_to(fs, "/lr/step_1", 1, Value::integer(1));
  save_to(other, "/lr/step_1", 1, Value::integer(2));
  check_differ(load_two(fs, "lr/step_1", other, "lr/step_1"), "/lr/step_1", "/lr/step_1");
  save_to(other, "/lr/list", 1, Value::list({Value::integer(1)}));
  check_differ(load_two(fs, "/lr/step_1", other, "/lr/list"), "/lr/step_1", "/lr/list");
}

TEST_CASE("two checkpoints that differ in bytes of a tensor alone are told apart by the seal") {
  MemoryFileSystem fs, other;
  save_to(fs, "/lr/step_1", 1, Value::integer(1));
  save_to(other, "/lr/step_1", 2, Value::integer(1));
  check_differ(load_two(fs, "/lr/step_1", other, "/lr/step_1"), "/lr/step_1", "/lr/step_1");
}

TEST_CASE("a pointer that moves between ranks is an error that says so") {
  MemoryFileSystem fs, other;
  for (MemoryFileSystem* each : {&fs, &other}) {
    save_to(*each, "/run/step_1", 1, Value::integer(1));
    save_to(*each, "/run/step_2", 1, Value::integer(2));
  }
  fs.write_file("/run/latest", as_bytes("step_1"));
  other.write_file("/run/latest", as_bytes("step_2"));
  const auto thrown = load_two(fs, "/run", other, "/run");
  check_differ(thrown, "/run/step_1", "/run/step_2");
}

TEST_CASE("ranks with different optimizers are refused; one that skips it is none") {
  MemoryFileSystem fs;
  const auto group = [](const char* key) {
    return below(Path{key_item("optim"), key_item("param_groups")}, {index_item(0), key_item(key)});
  };
  float w[4] = {1, 1, 1, 1};
  const auto state_of = [&](const std::vector<const char*>& keys, float* data) {
    LiveState state;
    state.add(at({"model", "w"}), {DType::kFloat32, {2}, {}, data});
    if (!keys.empty()) {
      state.add(at({"optim", "state", "w", "exp_avg"}), {DType::kFloat32, {2}, {}, data + 2});
      state.add_value(group("params"), Value::list({Value::string("w")}));
    }
    for (const char* key : keys) state.add_value(group(key), Value::real(0.5));
    return state;
  };
  {
    const auto ranks = single_rank();
    save("/run/a", state_of({"lr", "eps"}, w), *ranks, saving(fs));
  }
  const auto load_two_states = [&](const std::vector<const char*>& first,
                                   const std::vector<const char*>& second, PartPolicy optimizer) {
    return on_ranks(2, [&](RankGroup& ranks) {
      float memory[4] = {};
      LoadPolicy policy = loading(fs);
      policy.optimizer = optimizer;
      load("/run/a", state_of(ranks.rank() == 0 ? first : second, memory), ranks, policy);
    });
  };
  require_quiet(load_two_states({"lr", "eps"}, {"lr", "eps"}, PartPolicy::kStrict));
  for (const std::string& message : load_two_states({"lr", "eps"}, {"lr"}, PartPolicy::kStrict))
    CHECK_THAT(message, Contains("\"optim.param_groups.0.eps\"") &&
                            Contains("rank 0 asks for it, rank 1 does not"));
  for (const std::string& message : load_two_states({}, {"lr", "eps"}, PartPolicy::kStrict))
    CHECK_THAT(message, Contains("rank 1 asks for it, rank 0 does not"));
  require_quiet(load_two_states({}, {"lr", "eps"}, PartPolicy::kSkip));
}

}  // namespace live_same_checkpoint_test
