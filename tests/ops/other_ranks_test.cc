// One file of a set in another's place, and one that is read alone: what shows it, and what does
// not.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/ops/open.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <optional>

#include "tests/support/broken_checkpoint.h"
#include "tests/support/verify_case.h"

namespace other_ranks_test {

using namespace tessera;
using namespace tessera::testing;
using Catch::Contains;

namespace {

struct Pair {
  const char* sample;
  const char* from;  // the file that is copied
  const char* to;    // the one that it takes the place of
};

ConvertReport salvage_of(BrokenSample& broken, Status& status) {
  status = broken.convert_to("torch-dcp", std::nullopt, [](ConvertOptions& o) {
    o.salvage = true;
    o.rank_state = RankStatePolicy::kKeep;
  });
  return broken.report;
}

}  // namespace

TEST_CASE("a rank's file that was copied over another's is refused, by salvage too") {
  const Pair pairs[] = {
      {"deepspeed/zero3_w4", "global_step2/zero_pp_rank_1_mp_rank_00_optim_states.pt",
       "global_step2/zero_pp_rank_0_mp_rank_00_optim_states.pt"},
      {"deepspeed/zero1_w4", "global_step2/zero_pp_rank_1_mp_rank_00_optim_states.pt",
       "global_step2/zero_pp_rank_0_mp_rank_00_optim_states.pt"},
      {"fairscale/nested_flat_w3", "rank_1.pt", "rank_0.pt"},
      {"fairscale/nested_flat_w4", "rank_1.pt", "rank_0.pt"},
      {"fairscale/single_flat_w4", "rank_1.pt", "rank_0.pt"},
      {"fairscale/nested_unflat_w2", "rank_0.pt", "rank_1.pt"},
      {"torchsave/dtensor_rankfiles_w2", "rank0.pt", "rank1.pt"},
      {"torchsave/fsdp1_local_rankfiles_w3", "rank1.pt", "rank0.pt"},
      {"torchsave/fsdp1_sharded_rankfiles_w2", "rank1.pt", "rank0.pt"},
      {"safetensors/hf_dcp_sharded_w2", "shard-00001-model-00001-of-00001.safetensors",
       "shard-00002-model-00001-of-00001.safetensors"},
      {"safetensors/hf_dcp_sharded_w2", "shard-00002-model-00001-of-00001.safetensors",
       "shard-00001-model-00001-of-00001.safetensors"}};
  for (const auto& [sample, from, to] : pairs) {
    INFO(sample << ": " << from << " over " << to);
    BrokenSample broken(sample);
    broken.fs.write_file("/source/" + std::string(to),
                         broken.fs.read_file("/source/" + std::string(from)));
    CHECK(broken.convert_to("torch-dcp").code == Code::kCorrupt);
    Status salvaged;
    salvage_of(broken, salvaged);
    CHECK(salvaged.code == Code::kCorrupt);
    std::optional<Status> failure;
    CHECK_FALSE(verify_or_report(broken.fs, broken.path, {}, failure).ok);
  }
}

TEST_CASE("files that lie under each other's names are refused where they carry their own") {
  const Pair pairs[] = {
      {"deepspeed/zero3_w4", "global_step2/zero_pp_rank_1_mp_rank_00_optim_states.pt",
       "global_step2/zero_pp_rank_2_mp_rank_00_optim_states.pt"},
      {"fairscale/nested_flat_w4", "rank_0.pt", "rank_1.pt"},
      {"torchsave/dtensor_rankfiles_w2", "rank0.pt", "rank1.pt"},
      {"torchsave/fsdp1_sharded_rankfiles_w2", "rank0.pt", "rank1.pt"},
      {"torchsave/fsdp1_mesh_rankfiles_w2", "rank0.pt", "rank1.pt"},
      {"torchsave/fsdp1_local_orig_rankfiles_w2", "rank0.pt", "rank1.pt"},
      {"torchsave/fsdp1_local_rankfiles_w3", "rank0.pt", "rank2.pt"}};
  for (const auto& [sample, a, b] : pairs) {
    INFO(sample);
    BrokenSample broken(sample);
    const Bytes first = broken.fs.read_file("/source/" + std::string(a));
    const Bytes second = broken.fs.read_file("/source/" + std::string(b));
    broken.fs.write_file("/source/" + std::string(a), second);
    broken.fs.write_file("/source/" + std::string(b), first);
    const Status status = broken.convert_to("torch-dcp");
    CHECK(status.code == Code::kCorrupt);
    CHECK_THAT(status.message,
               Contains("under each other's names") || Contains("is named as rank"));
    CHECK_THAT(broken.verify(), Contains("CK067 error"));
    Status salvaged;
    salvage_of(broken, salvaged);
    CHECK(salvaged.code == Code::kCorrupt);
  }
}

TEST_CASE("files that were all renamed alike are worth a warning") {
  BrokenSample broken("fairscale/nested_flat_w3");
  for (int rank = 2; rank >= 0; --rank) {
    const std::string from = fmt::format("/source/rank_{}.pt", rank);
    broken.fs.write_file(fmt::format("/source/rank_{}.pt", rank + 1), broken.fs.read_file(from));
    broken.fs.remove_file(from);
  }
  CHECK(broken.convert_to("torch-dcp").code == Code::kOk);
  CHECK_THAT(broken.verify(), Contains("CK067 warning") && !Contains("CK067 error"));
}

TEST_CASE("a shard or a rank's file that is read alone says what is not read") {
  const std::pair<const char*, const char*> files[] = {
      {"safetensors/hf_sharded", "model-00002-of-00003.safetensors"},
      {"torchsave/dtensor_rankfiles_w2", "rank1.pt"},
      {"megatron/legacy_tp2", "iter_0000100/mp_rank_01/model_optim_rng.pt"}};
  for (const auto& [sample, file] : files)
    for (const bool alone : {false, true}) {
      INFO(sample << " " << alone);
      BrokenSample broken(sample);
      if (alone)
        for (const auto& [name, text] : broken.fs.contents("/source"))
          if (name != file && !name.ends_with('/')) broken.remove(name);
      broken.path = "/source/" + std::string(file);
      CHECK(broken
                .convert_to("torch-save", std::nullopt,
                            [](ConvertOptions& o) { o.rank_state = RankStatePolicy::kKeep; })
                .code == Code::kOk);
      CHECK(broken.report.balance.left_behind.size() == 1);
      CHECK(find(verify(broken.fs, broken.path), "CK050"));
    }
}

TEST_CASE("rank files of PyTorch's FSDP are never taken for FairScale's") {
  for (const char* torch :
       {"torchsave/fsdp1_local_rankfiles_w3", "torchsave/fsdp1_sharded_rankfiles_w2",
        "torchsave/dtensor_rankfiles_w2"}) {
    INFO(torch);
    const bool three = std::string_view(torch).ends_with("w3");
    BrokenSample broken(three ? "fairscale/nested_flat_w3" : "fairscale/nested_flat_w2");
    const BrokenSample other(torch);
    for (int rank = 0; rank < (three ? 3 : 2); ++rank) {
      const std::string file = fmt::format("/source/rank{}.pt", rank);
      broken.fs.write_file(file, other.fs.read_file(file));
    }
    const Status status = broken.convert_to("torch-dcp");
    CHECK(status.code == Code::kUnsupported);
    CHECK_THAT(status.to_string(), Contains("rank_*.pt") || Contains("several formats"));
  }
}

}  // namespace other_ranks_test
