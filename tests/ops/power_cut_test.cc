// Power cuts over a whole job on a simulated disk: saves, an overwriting save, the pointer,
// retention. After a cut anywhere, what is visible is the state before or after the step that was
// cut, never a mix; what was acknowledged is there.
#include <fmt/format.h>
#include <tessera/live/load.h>
#include <tessera/live/save.h>
#include <tessera/storage/simulated_disk.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <map>

#include "tests/support/sanitized.h"
#include "tests/support/soak.h"

namespace power_cut_test {

using namespace tessera;
using tessera::testing::kSanitized;
using tessera::testing::repeated;

namespace {

using Tree = std::map<std::string, std::string>;

constexpr const char* kRun = "/jobs/new/run";  // two folders that do not exist yet
constexpr std::size_t kElements = 14'000;      // fourteen pages

/// What a reader may see once a step of the job is over.
struct Visible {
  std::map<std::string, float> values;  // by name of a checkpoint
  std::string latest;
};

struct Step {
  std::string name;
  float value = 0;
  bool force = false;
};
const std::vector<Step> kSteps = {{"step_1", 1}, {"step_2", 2}, {"step_2", 3, true}, {"step_3", 4},
                                  {"step_4", 5}, {"step_5", 6}, {"step_5", 7, true}};

void save_step(FileSystem& fs, const Step& step) {
  std::vector<float> memory(kElements, step.value);
  for (std::size_t i = 0; i < memory.size(); i += 100) memory[i] += static_cast<float>(i);
  LiveState state;
  state.add("w", {DType::kFloat32, {kElements}, {}, memory.data()});
  state.add_value("step", Value::integer(static_cast<std::int64_t>(step.value)));
  SaveOptions options;
  options.file_system = &fs;
  options.force = step.force;
  options.update_latest = true;
  options.keep_last = 2;
  const auto ranks = single_rank();
  save(std::string(kRun) + "/" + step.name, state, *ranks, options);
}

float value_of(FileSystem& fs, const std::string& path) {
  std::vector<float> memory(kElements);
  LiveState state;
  state.add("w", {DType::kFloat32, {kElements}, {}, memory.data()});
  LoadPolicy policy;
  policy.file_system = &fs;
  policy.verify = true;
  policy.other = PartPolicy::kAllowUnexpected;
  const auto ranks = single_rank();
  load(path, state, *ranks, policy);
  for (std::size_t i = 0; i < memory.size(); ++i)
    if (memory[i] != memory[1] + (i % 100 == 0 ? static_cast<float>(i) : 0)) return -1;
  return memory[1];
}

/// The job, and what must be visible after each of its steps.
class Job {
 public:
  explicit Job(bool has_exchange)
      : live_(MemoryFileSystemOptions{.has_exchange = has_exchange}), disk_(prepared()) {
    states_.push_back({});
    for (const Step& step : kSteps) {
      save_step(disk_, step);
      Visible state = states_.back();
      state.values[step.name] = step.value;
      state.latest = step.name;
      while (state.values.size() > 2) state.values.erase(state.values.begin());
      states_.push_back(state);
      acked_.push_back(disk_.operations());
      remember(step);
    }
    const Tree end = live_.contents(kRun);
    REQUIRE(problem(end, disk_.operations()) == "");
  }

  const SimulatedDisk& disk() const { return disk_; }
  const std::vector<std::size_t>& acked() const { return acked_; }

  /// What is wrong with the visible part of `tree` after `operations`; "" for nothing. Without
  /// exchange the old content may have no name but the trash's, whence the next save takes it back.
  std::string problem(const Tree& tree, std::size_t operations) const {
    std::size_t done = 0;
    while (done < acked_.size() && acked_[done] <= operations) ++done;
    const Visible& before = states_[done];
    const Visible& after = states_[std::min(done + 1, states_.size() - 1)];
    std::map<std::string, float> found;
    for (const std::string& folder : folders(tree)) {
      const std::size_t trash = folder.find(".trash-");
      if (folder[0] == '.' && trash == std::string::npos) continue;
      const std::string name = folder[0] == '.' ? folder.substr(1, trash - 1) : folder;
      const auto value = whole(tree, folder, name);
      if (value) found.emplace(name, *value);
      if (!value && folder == name) return name + " is no checkpoint that was ever saved";
    }
    const auto pointer = tree.find("latest");
    const std::string latest = pointer == tree.end() ? "" : pointer->second;
    if (latest != before.latest && latest != after.latest) return "latest names \"" + latest + "\"";
    if (!latest.empty() && !found.contains(latest)) return "latest names nothing";
    const bool pointed = latest == after.latest && before.latest != after.latest;
    for (const auto& [name, value] : before.values) {
      const bool goes = !after.values.contains(name);
      if (!found.contains(name) && !(goes && pointed)) return name + " is lost";
    }
    for (const auto& [name, value] : found) {
      const bool is_old = before.values.contains(name) && before.values.at(name) == value;
      const bool is_new = after.values.contains(name) && after.values.at(name) == value;
      if (!is_old && !is_new) return fmt::format("{} holds {}", name, value);
      if (pointed && name == latest && !is_new) return "latest came before its checkpoint";
    }
    return "";
  }

 private:
  MemoryFileSystem& prepared() {
    live_.make_directories("/jobs");
    return live_;
  }
  /// The files of a checkpoint that was just saved.
  void remember(const Step& step) {
    saved_.emplace_back(step, part(live_.contents(kRun), step.name));
  }
  static Tree part(const Tree& tree, const std::string& name) {
    Tree out;
    for (auto at = tree.lower_bound(name + "/"); at != tree.end(); ++at) {
      if (!at->first.starts_with(name + "/")) break;
      out.emplace(at->first.substr(name.size() + 1), at->second);
    }
    return out;
  }
  /// Of `tree` itself, the visible ones first.
  static std::vector<std::string> folders(const Tree& tree) {
    std::vector<std::string> names;
    for (const auto& [path, content] : tree)
      if (path.ends_with('/') && path.find('/') == path.size() - 1)
        names.push_back(path.substr(0, path.size() - 1));
    std::ranges::sort(names, std::greater<>(), [](const std::string& n) { return n[0] != '.'; });
    return names;
  }
  /// The value of the checkpoint in `folder`, if every byte of it is that of a save to `name`.
  std::optional<float> whole(const Tree& tree, const std::string& folder,
                             const std::string& name) const {
    const std::string prefix = folder + "/";
    for (const auto& [step, files] : saved_) {
      if (step.name != name) continue;
      auto at = tree.lower_bound(prefix);
      bool equal = true;
      for (const auto& [path, content] : files) {
        equal = equal && at != tree.end() && at->first.starts_with(prefix) &&
                at->first.compare(prefix.size(), std::string::npos, path) == 0 &&
                at->second == content;
        if (!equal) break;
        ++at;
      }
      equal = equal && (at == tree.end() || !at->first.starts_with(prefix));
      if (equal) return step.value;
    }
    return std::nullopt;
  }

  MemoryFileSystem live_;
  SimulatedDisk disk_;
  std::vector<Visible> states_;  // [i]: after i steps
  std::vector<std::size_t> acked_;
  std::vector<std::pair<Step, Tree>> saved_;
};

Tree tree_of(const MemoryFileSystem& fs) { return fs.stat(kRun) ? fs.contents(kRun) : Tree{}; }

/// A reader opens what the pointer names, and the job goes on: with a save that clears away what
/// the cut left.
void go_on(MemoryFileSystem& fs, const Tree& tree) {
  const bool whole =
      tree.contains("latest") && fs.stat(std::string(kRun) + "/" + tree.at("latest"));
  if (whole) REQUIRE(value_of(fs, kRun) > 0);
  if (tree.contains("latest") && !whole)  // an overwriting save without exchange was cut: again
    save_step(fs, {tree.at("latest"), 8, true});
  save_step(fs, {"step_9", 9, true});
  REQUIRE(value_of(fs, kRun) == 9);
  for (const FileInfo& entry : fs.open_directory(kRun)->list()) {
    INFO(entry.name);
    REQUIRE(entry.name[0] != '.');
  }
}

}  // namespace

TEST_CASE("a power cut anywhere in a job leaves old or new checkpoints and a pointer to one",
          "[wide]") {
  const std::uint64_t promised = kSanitized ? 10'000 : repeated(100'000, 25'000);
  CrashCounts total;
  std::uint64_t gone_on = 0;
  std::size_t prefixes = 0;
  for (const bool has_exchange : {true, false}) {
    const Job job(has_exchange);
    CrashOptions options{.random_subsets = kSanitized ? 600 : repeated(10'000, 2'000), .seed = 7};
    options.marks = job.acked();
    std::uint64_t count = 0;
    const CrashCounts counts = job.disk().for_each_crash_state(
        options, [&](MemoryFileSystem& fs, const CrashState& state) {
          const Tree tree = tree_of(fs);
          const std::string problem = job.problem(tree, state.prefix);
          if (!problem.empty())
            FAIL(problem << ", " << state.description << ", exchange " << has_exchange);
          if (++count % 200 != 0) return;
          INFO(state.description << ", exchange " << has_exchange);
          go_on(fs, tree);
          ++gone_on;
        });
    total.generated += counts.generated;
    total.distinct += counts.distinct;
    prefixes += job.disk().operations() + 1;
  }
  fmt::print(
      "power cuts: {} distinct states of {} made after {} operations of save, overwrite, pointer "
      "and "
      "removal; 0 mixes; the job went on from {}\n",
      total.distinct, total.generated, prefixes, gone_on);
  REQUIRE(total.distinct >= promised);
  REQUIRE(gone_on >= promised / 250);
}

}  // namespace power_cut_test
