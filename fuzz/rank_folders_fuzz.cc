// A torch.save file in the place of a rank's, of the only one or of two, for every format whose
// folders are made of such files: reading and locating either succeed or throw tessera::Error.
#include <tessera/format/deepspeed_universal.h>
#include <tessera/format/deepspeed_zero.h>
#include <tessera/format/fairscale_fsdp.h>
#include <tessera/format/megatron_torch.h>
#include <tessera/format/torch_rank_files.h>

#include "fuzz/fuzz_checkpoint.h"
#include "fuzz/mutators.h"

using namespace tessera;

namespace {

struct Folder {
  const FormatDriver& (*driver)();
  std::vector<std::string> files;  // all of them hold the input
};

const std::vector<Folder>& folders() {
  static const std::vector<Folder> all = {
      {fairscale_fsdp_driver, {"rank_0.pt"}},
      {fairscale_fsdp_driver, {"rank_0.pt", "rank_1.pt"}},
      {fairscale_fsdp_driver, {"rank_0.pt", "rank_1.pt", "optim.pt"}},
      {torch_rank_files_driver, {"rank0.pt"}},
      {torch_rank_files_driver, {"rank0.pt", "rank1.pt"}},
      {torch_rank_files_driver, {"rank0.pt", "rank1.pt", "rank2.pt", "full.pt"}},
      {torch_rank_files_driver,
       {"model_world_size_2_rank_0.pt", "model_world_size_2_rank_1.pt",
        "optim_world_size_2_rank_0.pt", "optim_world_size_2_rank_1.pt"}},
      {deepspeed_zero_driver,
       {"mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"}},
      {deepspeed_zero_driver,
       {"zero_pp_rank_0_mp_rank_00_model_states.pt", "zero_pp_rank_1_mp_rank_00_model_states.pt",
        "zero_pp_rank_0_mp_rank_00_optim_states.pt", "zero_pp_rank_1_mp_rank_00_optim_states.pt"}},
      {deepspeed_universal_driver,
       {"mp_rank_00_model_states.pt", "zero/optimizer_state.pt", "zero/w/fp32.pt",
        "zero/w/exp_avg.pt"}},
      {megatron_torch_driver, {"mp_rank_00/model_optim_rng.pt"}},
      {megatron_torch_driver,
       {"mp_rank_00/model_optim_rng.pt", "mp_rank_01/model_optim_rng.pt",
        "mp_rank_00/distrib_optim.pt", "mp_rank_01/distrib_optim.pt"}}};
  return all;
}

}  // namespace

TESSERA_MUTATOR(mutate_archive)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ByteView bytes{reinterpret_cast<const std::byte*>(data), size};
  for (const Folder& folder : folders()) {
    MemoryFileSystem fs;
    for (const std::string& file : folder.files) {
      const std::string path = "/ck/" + file;
      fs.make_directories(path.substr(0, path.rfind('/')));
      fs.write_file(path, bytes);
    }
    fuzz::read_checkpoint(folder.driver(), fs, "/ck");
  }
  return 0;
}
