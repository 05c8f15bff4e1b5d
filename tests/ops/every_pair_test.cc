// A to B to A for every ordered pair of formats that are written: all of it is as it was, or B is
// refused by the name of what it cannot hold before a byte is written.
#include <tessera/base/error.h>
#include <tessera/format/registry.h>
#include <tessera/state/roles.h>

#include <catch2/catch.hpp>
#include <span>

#include "lib/ops/inspect/canonical_state.h"
#include "tests/support/convert_case.h"
#include "tests/support/random_optimizer.h"
#include "tests/support/sample_case.h"
#include "tests/support/sanitized.h"
#include "tests/support/written_checkpoint.h"
#include "tests/support/written_formats.h"

namespace every_pair_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

std::size_t pair_count() { return written_formats().size() * written_formats().size(); }

Status convert_to(MemoryFileSystem& fs, const std::string& from, const std::string& to,
                  const std::string& format) {
  const Capabilities can = find_format(format)->capabilities();
  ConvertOptions options = convert_options(from, to, std::nullopt, format);
  if (format.starts_with("megatron")) {
    options.target.mesh = Mesh({{"dp", 2}});
  } else if (can.many_ranks) {
    options.target.world_size = 3;
  }
  try {
    convert(fs, options);
  } catch (const Error& error) {
    return error.status();
  }
  return {};
}

/// Everything at `path`, by names that all formats share: leaves of one tree, the optimizer by
/// parameter, whatever it is keyed by, and the model and its optimizer under any root (Megatron's
/// files have them under `model` and `optimizer`).
std::map<std::string, std::string> content_by_fqn(FileSystem& fs, const std::string& path) {
  OpenedCheckpoint opened = open_checkpoint(fs, path);
  opened.locate_all({});
  const CanonicalState one_tree(opened.manifest.state);  // whatever rule flattened it
  const Roles roles = find_roles(opened.manifest.state);
  std::map<std::string, std::string> out =
      roles.optimizers.empty() ? std::map<std::string, std::string>()
                               : canonical_content(opened.manifest, *opened.directory);
  auto all = content_of(opened.manifest, *opened.directory);
  all.merge(values_of(opened.manifest, *opened.directory));
  for (std::size_t i = 0; i < roles.entries.size(); ++i) {
    const StateEntry& entry = opened.manifest.state.entries[i];
    const Role role = roles.entries[i].role;
    if (role != Role::kModel && role != Role::kOther) continue;
    const auto* tensor =
        entry.value.is_tensor() ? &opened.manifest.tensors[entry.value.tensor_index()] : nullptr;
    const auto found = all.find(tensor ? tensor->name : entry.name);
    // Inside of a list, a tensor has no name of its own.
    out[role == Role::kModel ? "model " + roles.entries[i].fqn : "other " + entry.name] =
        found != all.end() ? found->second : tensor->spec.to_string();
  }
  return out;
}

std::vector<std::string> differences(const std::map<std::string, std::string>& got,
                                     const std::map<std::string, std::string>& want) {
  std::vector<std::string> out;
  for (const auto& [name, value] : want) {
    const auto found = got.find(name);
    if (found == got.end()) {
      out.push_back("missing " + name);
    } else if (found->second != value) {
      out.push_back(name + ": " + found->second.substr(0, 100) + " for " + value.substr(0, 100));
    }
  }
  for (const auto& [name, value] : got)
    if (!want.contains(name)) out.push_back("new " + name);
  return out;
}

struct Tally {
  std::size_t equal = 0;
  std::size_t refused = 0;
};

/// A refusal: at once, by name, and nothing is left.
void check_refused(const MemoryFileSystem& fs, const Status& status, const std::string& path) {
  INFO(status.to_string());
  CHECK((status.code == Code::kUnsupported || status.code == Code::kInvalidArgument));
  CHECK(status.message.size() > 20);
  CHECK_FALSE(fs.stat(path));
}

void check_back(MemoryFileSystem& fs, const std::map<std::string, std::string>& before,
                const std::string& a, Tally& tally) {
  const Status back = convert_to(fs, "/b", "/back", a);
  REQUIRE(back.to_string() == Status{}.to_string());
  for (const auto& difference : differences(content_by_fqn(fs, "/back"), before))
    FAIL_CHECK(difference);
  fs.remove_tree("/back");
  ++tally.equal;
}

/// Every A that holds the source, to every B and back.
Tally check_pairs(MemoryFileSystem& fs, const std::string& source) {
  Tally tally;
  for (const FormatDriver* from : written_formats()) {
    const std::string a(from->id());
    INFO("A = " << a);
    const Status held = convert_to(fs, source, "/a", a);
    if (!held.ok()) {
      check_refused(fs, held, "/a");
      tally.refused += written_formats().size();
      continue;
    }
    const auto before = content_by_fqn(fs, "/a");
    for (const FormatDriver* to : written_formats()) {
      const std::string b(to->id());
      INFO("B = " << b);
      const Status there = convert_to(fs, "/a", "/b", b);
      if (there.ok()) {
        check_back(fs, before, a, tally);
        fs.remove_tree("/b");
      } else {
        check_refused(fs, there, "/b");
        ++tally.refused;
      }
    }
    fs.remove_tree("/a");
  }
  return tally;
}

}  // namespace

TEST_CASE("a model with AdamW goes from every format to every other and back") {
  for (const std::string name : {"dcp/fsdp2_w3", "dcp/fsdp2_w2_model_only"}) {
    if (kSanitized && name == "dcp/fsdp2_w3") continue;  // the larger one
    INFO(name);
    MemoryFileSystem fs;
    const Tally tally = check_pairs(fs, load_sample(fs, name));
    CHECK(tally.equal == pair_count());
  }
}

TEST_CASE("checkpoints of every framework come back from every format that takes them", "[wide]") {
  if (!reads_hdf5()) return;
  struct Row {
    std::string name;
    std::size_t equal;  // of the pairs; the others are refused
  };
  const std::vector<Row> rows = {
      {"torchsave/sgd_tied_zip", 121}, {"torchsave/quantized_zip", 9},
      {"deepspeed/zero3_w2", 121},     {"fairscale/nested_flat_w3", 121},
      {"torchsave/nested_zip", 17},    {"torchsave/numpy_objects_zip", 81},
      {"torchsave/dtypes_zip", 49},    {"deepspeed/zero2_w2", 100},
      {"megatron/legacy_tp2", 64},     {"megatron/torch_dist_tp2_dp2", 36},
      {"safetensors/all_dtypes", 64},  {"dcp/objects_w2", 49}};
  for (const Row& row : std::span(rows).first(kSanitized ? 2 : rows.size())) {
    INFO(row.name);
    MemoryFileSystem fs;
    const Tally tally = check_pairs(fs, load_sample(fs, row.name));
    CHECK(tally.equal == row.equal);
    CHECK(tally.equal + tally.refused == pair_count());
  }
}

TEST_CASE("optimizers of many kinds come back from every format that takes them", "[wide]") {
  if (!reads_hdf5()) return;
  constexpr std::size_t kEqual[kOptimizerKinds] = {100, 100, 100, 121, 121, 121, 81,
                                                   100, 64,  100, 100, 100, 81};
  for (int kind = 0; kind < kOptimizerKinds; kind += kSanitized ? 6 : 2) {
    const auto which = static_cast<OptimizerKind>(kind);
    INFO(kind_text(which));
    MemoryFileSystem fs;
    const Tally tally =
        check_pairs(fs, save_made(fs, random_optimizer(7040, which, OptimizerForm::kNames)));
    CHECK(tally.equal == kEqual[kind]);
    CHECK(tally.equal + tally.refused == pair_count());
  }
}

}  // namespace every_pair_test
