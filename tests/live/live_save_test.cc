// Saving the state of many ranks: what is on disk is what brute force says, whoever reads it.
#include <tessera/live/save.h>
#include <tessera/ops/open.h>
#include <tessera/ops/verify.h>
#include <tessera/reshard/tensor_reader.h>
#include <tessera/storage/memory_file_system.h>

#include <catch2/catch.hpp>

#include "tests/support/live_job.h"

namespace live_save_test {

using namespace tessera;
using namespace tessera::test;

namespace {

/// Every tensor of the checkpoint against the job's bytes.
void require_content(FileSystem& fs, const std::string& path,
                     const std::vector<JobTensor>& tensors) {
  OpenedCheckpoint opened = open_checkpoint(fs, path);
  opened.locate_all({});
  REQUIRE(opened.manifest.tensors.size() == tensors.size());
  const TensorReader reader(opened.manifest, *opened.directory, {});
  for (const JobTensor& tensor : tensors) {
    INFO(tensor.name << " " << tensor.spec.to_string());
    const StateEntry* entry = opened.manifest.state.find("model." + tensor.name);
    REQUIRE(entry != nullptr);
    REQUIRE(entry->path.size() == 2);
    const std::uint32_t index = entry->value.tensor_index();
    REQUIRE(opened.manifest.tensors[index].spec == tensor.spec);
    const Bytes expected = tensor_bytes(tensor.number, tensor.spec);
    Bytes found(expected.size());
    reader.read(index, 0, tensor.spec.shape.numel(), found);
    REQUIRE(found == expected);
  }
}

}  // namespace

TEST_CASE("what any number of ranks saves is read back element by element") {
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    INFO("seed " << seed);
    const int world = static_cast<int>(1 + seed % 5);
    LiveJob job(random_tensors(seed), world, seed);
    job.fill();
    MemoryFileSystem fs;
    SaveOptions options;
    options.file_system = &fs;
    options.threads = 1 + static_cast<int>(seed % 2);
    require_quiet(on_ranks(world, [&](RankGroup& ranks) {
      save("/run/step_1", job.state(ranks.rank()), ranks, options);
    }));
    require_content(fs, "/run/step_1", job.tensors());
    VerifyOptions verifying;
    verifying.level = VerifyLevel::kFull;
    verifying.require_sums = true;
    const VerifyReport report = verify_checkpoint(fs, "/run/step_1", verifying);
    INFO((report.findings.empty() ? "" : report.findings[0].message));
    REQUIRE(report.ok);
    REQUIRE(report.sealed);
    // Nothing but the checkpoint is left.
    REQUIRE(fs.open_directory("/run")->list().size() == 1);
  }
}

}  // namespace live_save_test
