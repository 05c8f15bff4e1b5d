// A link in the place of a file or folder of a checkpoint is called a link, not missing.
#include <tessera/base/error.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/format/megatron_dist_fixture.h"
#include "tests/format/megatron_fixture.h"

namespace tessera::megatron_odd_files_test {
namespace {

using testing::DistFolder;
using testing::RankFolders;

testing::ToyOptions two_ranks() {
  testing::ToyOptions options;
  options.tp = 2;
  options.optimizer = testing::ToyOptions::Optimizer::kDistributed;
  return options;
}

/// Moves a file or folder away and leaves a link to it.
void link_instead(MemoryFileSystem& fs, const std::string& path) {
  fs.make_directories("/elsewhere");
  fs.rename(path, "/elsewhere/it");
  fs.add_symlink(path, "/elsewhere/it");
}

}  // namespace

TEST_CASE("a link in the place of a rank's folder or file is called a link") {
  for (const std::string path :
       {"/c/mp_rank_01", "/c/mp_rank_01/model_optim_rng.pt", "/c/mp_rank_01/distrib_optim.pt"}) {
    CAPTURE(path);
    RankFolders toy(two_ranks());
    link_instead(toy.fs, path);
    std::string message;
    CHECK(toy.failure(message) != Code::kOk);
    CHECK_THAT(message, Catch::Contains("symbolic link") && Catch::Contains("mp_rank_01"));
    CHECK_THAT(message, !Catch::Contains("missing"));
  }
}

TEST_CASE("a link in the place of a file of dist_checkpointing is called a link") {
  for (const std::string path : {"/c/metadata.json", "/c/common.pt", "/c/__0_0.distcp"}) {
    CAPTURE(path);
    DistFolder folder;
    folder.config(testing::kTorchDistConfig);
    folder.common(testing::dict({{"iteration", Value::integer(7)}}));
    testing::BuiltMetadata metadata;
    metadata.tensors = {{"w", "float32", {2}, {{{0}, {2}}}}};
    metadata.items = {testing::dist_item("w", testing::Numbers{0})};
    folder.data(metadata, {testing::tensor_item({2}, 1)});
    link_instead(folder.fs, path);
    std::string message;
    CHECK(folder.failure(message) == Code::kCorrupt);
    CHECK_THAT(message, Catch::Contains("symbolic link") && !Catch::Contains("missing"));
  }
}

TEST_CASE("a link in the place of a zarr chunk is called a link") {
  DistFolder folder;
  folder.config(R"({"sharded_backend": "zarr", "sharded_backend_version": 1})");
  folder.common(testing::dict({}));
  folder.fs.write_file("/c/w/.zarray",
                       as_bytes(std::string_view(R"({"zarr_format":2,"shape":[4],"chunks":[2],)"
                                                 R"("dtype":"<f4","compressor":null})")));
  for (const std::string name : {"0", "1"})
    folder.fs.write_file("/c/w/" + name, as_bytes(std::string_view("\0\0\0\0\0\0\0\0", 8)));
  link_instead(folder.fs, "/c/w/1");
  std::string message;
  CHECK(folder.failure(message) == Code::kCorrupt);
  CHECK_THAT(message, Catch::Contains("symbolic link") && Catch::Contains("w/1"));
  CHECK_THAT(message, !Catch::Contains("missing"));
}

}  // namespace tessera::megatron_odd_files_test
