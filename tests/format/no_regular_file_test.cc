// A link that leads to no file, a folder or a FIFO in the place of a data file: every reader says
// what it is, and neither follows it nor waits for it.
#include <sys/stat.h>
#include <tessera/base/error.h>
#include <tessera/format/registry.h>
#include <tessera/ops/open.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/support/note_text.h"
#include "tests/support/sample_case.h"

namespace tessera::no_regular_file_test {
namespace {

namespace fs = std::filesystem;

/// A copy of a sample's checkpoint whose `file` is something else.
class Replaced {
 public:
  Replaced(const std::string& sample, const std::string& file) {
    std::string name = fs::temp_directory_path() / "tessera-no-file-XXXXXX";
    REQUIRE(mkdtemp(name.data()));
    root_ = name;
    fs::copy(fs::path(TESSERA_SOURCE_DIR) / sample, checkpoint(), fs::copy_options::recursive);
    REQUIRE(fs::is_regular_file(checkpoint() / file));
    fs::rename(checkpoint() / file, root_ / "kept");
    place_ = checkpoint() / file;
  }
  ~Replaced() { fs::remove_all(root_); }
  fs::path checkpoint() const { return root_ / "checkpoint"; }

  void put_link() const { fs::create_symlink(root_ / "gone", place_); }
  void put_folder() const { fs::create_directory(place_); }
  void put_fifo() const { REQUIRE(mkfifo(place_.c_str(), 0600) == 0); }
  void clear() const { fs::remove(place_); }

 private:
  fs::path root_, place_;
};

OpenedCheckpoint open(const fs::path& path, bool tolerate) {
  const auto files = make_posix_file_system();
  OpenOptions options;
  options.read.tolerate_damage = tolerate;
  return open_checkpoint(*files, path, options);
}

void check_said(const Replaced& replaced, const std::string& what) {
  CAPTURE(what);
  std::string said;
  try {
    open(replaced.checkpoint(), false).locate_all({});
  } catch (const Error& error) {
    CHECK(error.code() == Code::kCorrupt);
    said = error.status().to_string();
  }
  CHECK_THAT(said, Catch::Contains(what));
  try {
    const OpenedCheckpoint opened = open(replaced.checkpoint(), true);
    CHECK(std::ranges::any_of(opened.manifest.notes, [&](const Note& note) {
      return note.severity == Severity::kError && note.message.find(what) != std::string::npos;
    }));
  } catch (const Error& error) {  // nothing can be said without this file
    CHECK_THAT(error.status().to_string(), Catch::Contains(what));
  }
}

void check_all(const std::string& sample, const std::string& file) {
  CAPTURE(sample, file);
  const Replaced replaced(sample + "/checkpoint", file);
  replaced.put_link();
  check_said(replaced, "it is a symbolic link");
  replaced.clear();
  replaced.put_folder();
  check_said(replaced, "it is a folder");
  replaced.clear();
  replaced.put_fifo();
  check_said(replaced, "it is no regular file but a FIFO");
}

}  // namespace

TEST_CASE("a link or FIFO in the place of a data file is named as what it is") {
  const std::string s = "sample_checkpoints/";
  check_all(s + "dcp/fsdp2_w4", "__1_0.distcp");
  check_all(s + "deepspeed/zero2_w2", "global_step2/zero_pp_rank_1_mp_rank_00_optim_states.pt");
  check_all(s + "deepspeed/zero3_w2", "global_step2/zero_pp_rank_1_mp_rank_00_model_states.pt");
  check_all(s + "fairscale/nested_flat_w2", "rank_1.pt");
  check_all(s + "fairscale/nested_flat_w3", "rank_0.pt");
  check_all(s + "fairscale/nested_flat_w3", "rank_2.pt");
  check_all(s + "safetensors/hf_dcp_full_w2", "model-00001-of-00002.safetensors");
  check_all(s + "torchsnapshot/model_optim_w1", "batched/f4af5a0e-8a79-422a-872e-f07dd87fa37b");
  check_all("tests/format/data/rank_files_bf16_sgd/plain/sharded_w3", "rank1.pt");
}

TEST_CASE("a link in the place of the file that describes a checkpoint is named as what it is") {
  check_all("sample_checkpoints/deepspeed/zero2_w2", "global_step2/mp_rank_00_model_states.pt");
  check_all("sample_checkpoints/hdf5/virtual_over_ranks", "rank1.h5");
}

TEST_CASE("a FIFO in the place of the only file is named as what it is") {
  for (const auto& [sample, file] : std::vector<std::pair<std::string, std::string>>{
           {"torchsave/adamw_zip", "file.pt"}, {"hdf5/contiguous", "checkpoint.h5"}}) {
    CAPTURE(sample);
    const Replaced replaced("sample_checkpoints/" + sample + "/checkpoint", file);
    replaced.put_fifo();
    check_said(replaced, "it is no regular file but a FIFO");
    check_said(replaced, file);
  }
}

TEST_CASE("numbered shards without an index count their links too") {
  const Replaced replaced("sample_checkpoints/safetensors/hf_dcp_full_w2/checkpoint",
                          "model-00001-of-00002.safetensors");
  fs::remove(replaced.checkpoint() / "model.safetensors.index.json");
  replaced.put_link();
  check_said(replaced, "it is a symbolic link");
}

}  // namespace tessera::no_regular_file_test
