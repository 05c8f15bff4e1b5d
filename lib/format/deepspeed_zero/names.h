#pragma once
// Names of DeepSpeed's files and dictionary keys: the one place both formats take them from.
//
//   <dir>/latest                                     text: the tag; latest_universal beside it
//   <dir>/<tag>/mp_rank_00_model_states.pt           stages 0 to 2
//   <dir>/<tag>/zero_pp_rank_<D>_mp_rank_00_model_states.pt             stage 3, one per rank
//   <dir>/<tag>/[bf16_]zero_pp_rank_<D>_mp_rank_00_optim_states.pt      stages 1 to 3
//   <dir>/<tag>/layer_<L>[-model_<T>]-model_states.pt                   a layer of a pipeline
//   <dir>/<tag>/layer_<L>_expert_<E>_mp_rank_00_model_states.pt         experts
//
// "pp_rank" in a name is the data-parallel rank. In a pipeline M of mp_rank_<M> is the stage. Pure.
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::deepspeed {

inline constexpr std::int64_t kMostRanks = std::int64_t{1} << 20;  // data-parallel

inline constexpr std::string_view kZeroFormat = "deepspeed-zero";
inline constexpr std::string_view kUniversalFormat = "deepspeed-universal";
inline constexpr std::string_view kLatest = "latest";
inline constexpr std::string_view kLatestUniversal = "latest_universal";
inline constexpr std::string_view kZeroFolder = "zero";                        // universal
inline constexpr std::string_view kOptimizerStateFile = "optimizer_state.pt";  // universal

// The model file.
inline constexpr std::string_view kModule = "module";
inline constexpr std::string_view kOptimizer = "optimizer";
inline constexpr std::string_view kBufferNames = "buffer_names";
inline constexpr std::string_view kParamShapes = "param_shapes";
inline constexpr std::string_view kFrozenShapes = "frozen_param_shapes";
inline constexpr std::string_view kFrozenFragments = "frozen_param_fragments";
inline constexpr std::string_view kSharedParams = "shared_params";
inline constexpr std::string_view kDpWorldSize = "dp_world_size";
inline constexpr std::string_view kMpWorldSize = "mp_world_size";
inline constexpr std::string_view kParallelDimensions = "checkpoint_parallel_dimensions";
inline constexpr std::string_view kDsConfig = "ds_config";
inline constexpr std::string_view kDsVersion = "ds_version";
inline constexpr std::string_view kUniversalInfo = "universal_checkpoint_info";
inline constexpr std::string_view kTpDegree = "tp_degree";  // of kParallelDimensions
inline constexpr std::string_view kGlobalSteps = "global_steps";
inline constexpr std::string_view kNumExperts = "num_experts";  // of each layer that has experts
inline constexpr std::string_view kSkippedSteps = "skipped_steps";
/// Ours: how a source that DeepSpeed did not write named things (DeepSpeed hands it to the caller
/// as client state and ignores it).
inline constexpr std::string_view kTessera = "tessera";

// The optimizer file, below kOptimizerStateDict.
inline constexpr std::string_view kOptimizerStateDict = "optimizer_state_dict";
inline constexpr std::string_view kZeroStage = "zero_stage";
inline constexpr std::string_view kBaseState = "base_optimizer_state";
inline constexpr std::string_view kBaseStep = "base_optimizer_state_step";
inline constexpr std::string_view kFp32Groups = "single_partition_of_fp32_groups";
inline constexpr std::string_view kFp32FlatGroups = "fp32_flat_groups";  // stage 3
inline constexpr std::string_view kGroupPaddings = "group_paddings";
inline constexpr std::string_view kAlignmentPaddings = "param_alignment_paddings";
inline constexpr std::string_view kPartitionCount = "partition_count";
inline constexpr std::string_view kSliceMappings = "param_slice_mappings";
inline constexpr std::string_view kPartitionGroups = "ds_zero_partition_groups";
inline constexpr std::string_view kLossScaler = "loss_scaler";
inline constexpr std::string_view kState = "state";
inline constexpr std::string_view kParamGroups = "param_groups";
inline constexpr std::string_view kParams = "params";
inline constexpr std::string_view kStep = "step";
inline constexpr std::string_view kUseMuon = "use_muon";  // of a group of DeepSpeed's Muon
inline constexpr std::string_view kMomentum = "momentum_buffer";

// Classes.
inline constexpr std::string_view kScalerModule = "deepspeed.runtime.fp16.loss_scaler";
inline constexpr std::string_view kFragmentModule = "deepspeed.utils.tensor_fragment";
inline constexpr std::string_view kFragmentClass = "fragment_address";

// How a state is named here: model.<name>, optim.state.<name>.<leaf>, optim.param_groups.<i>.<key>,
// deepspeed.<field of the optimizer file>; what else the model file holds stands at the top.
inline constexpr std::string_view kModelRoot = "model";
inline constexpr std::string_view kOptimRoot = "optim";
inline constexpr std::string_view kGlobalsRoot = "deepspeed";
inline constexpr std::string_view kFp32Leaf = "fp32";
/// Key of Manifest::provenance: the tag the checkpoint has.
inline constexpr std::string_view kTagProvenance = "deepspeed.tag";
inline constexpr std::string_view kStageProvenance = "deepspeed.zero_stage";
inline constexpr std::string_view kBf16Provenance = "deepspeed.bf16";
/// Set where the checkpoint is of a pipeline: how many stages. Set where it has files of experts:
/// how many ranks share them out; and whether they are stacked (AutoEP).
inline constexpr std::string_view kPipelineProvenance = "deepspeed.pipeline_stages";
inline constexpr std::string_view kExpertProvenance = "deepspeed.expert_ranks";
inline constexpr std::string_view kStackedProvenance = "deepspeed.stacked_experts";

struct FileName {
  enum class Kind : std::uint8_t {
    kOther,
    kModel,     // mp_rank_.._model_states.pt, zero_pp_rank_.._model_states.pt
    kOptim,     // [bf16_|fp16_]zero_pp_rank_.._optim_states.pt
    kExpert,    // mixture of experts
    kPipeline,  // layer_NN-model_TT-model_states.pt
  };
  Kind kind = Kind::kOther;
  bool bf16 = false;
  std::int64_t dp_rank = -1;  // -1: one file for all data-parallel ranks; expp_rank_<S>: S
  std::int64_t mp_rank = 0;   // kPipeline: the tensor-parallel rank
  std::int64_t layer = -1;    // kPipeline, kExpert: which layer
  std::int64_t expert = -1;   // kExpert: which expert of the layer
  std::string name;
};

/// Parses a bare file name. Very old optimizer files lack the underscore before "optim_states".
FileName parse_file_name(std::string_view name);

std::string model_file_name();                      // stages 0 to 2
std::string stage_file_name(std::int64_t stage);    // of a pipeline
std::string model_file_name(std::int64_t dp_rank);  // stage 3
std::string expert_file_name(std::int64_t layer, std::int64_t expert);
/// `stage`: of a pipeline, else 0.
std::string optim_file_name(std::int64_t dp_rank, bool bf16, std::int64_t stage = 0);

}  // namespace tessera::deepspeed
