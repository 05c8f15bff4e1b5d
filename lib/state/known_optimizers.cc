#include "lib/state/known_optimizers.h"

#include <tessera/base/text.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <array>
#include <unordered_set>

namespace tessera {
namespace {

// Rows before others that their leaves would fit, too. Sources: torch.optim of PyTorch 2.13;
// transformers and fairseq (Adafactor); NVIDIA apex and DeepSpeed (LAMB); bitsandbytes 0.4x;
// schedulefree; galore-torch; keller jordan's Muon; the authors' SOAP, PSGD and Adan; Meta's
// distributed Shampoo; pytorch_optimizer 3.x for the rest.
constexpr std::array kOptimizers = {
    // torch.optim
    KnownOptimizer{"NAdam", "exp_avg exp_avg_sq mu_product:one", ""},
    KnownOptimizer{"RAdam", "exp_avg exp_avg_sq", "differentiable decoupled_weight_decay !amsgrad"},
    KnownOptimizer{"SparseAdam", "exp_avg exp_avg_sq", "betas maximize !weight_decay !amsgrad"},
    KnownOptimizer{"Adamax", "exp_avg exp_inf exp_grad_adanorm:one?", ""},
    KnownOptimizer{"ASGD", "ax eta:one mu:one", ""},
    KnownOptimizer{"Adadelta", "square_avg acc_delta", ""},
    KnownOptimizer{"Adagrad", "sum", ""},
    KnownOptimizer{"RMSprop", "square_avg momentum_buffer? grad_avg?", ""},
    KnownOptimizer{"Rprop", "prev step_size", ""},
    KnownOptimizer{"L-BFGS",
                   "func_evals:opaque n_iter:opaque d:opaque? t:opaque? old_dirs:opaque? "
                   "old_stps:opaque? ro:opaque? al:opaque? H_diag:opaque? prev_flat_grad:opaque? "
                   "prev_loss:opaque?",
                   ""},
    KnownOptimizer{"Adafactor", "row_var:factored? col_var:factored? variance?", "beta2_decay"},
    KnownOptimizer{"Muon", "momentum_buffer", "ns_steps|ns_coefficients|use_muon"},
    KnownOptimizer{"Muon and AdamW", "momentum_buffer exp_avg exp_avg_sq",
                   "ns_steps|ns_coefficients|use_muon"},
    KnownOptimizer{"AdaMuon", "m v exp_avg? exp_avg_sq?", "ns_steps|use_muon"},
    // factored moments
    KnownOptimizer{"CAME",
                   "exp_avg exp_avg_sq_row:factored exp_avg_sq_col:factored "
                   "exp_avg_res_row:factored exp_avg_res_col:factored exp_avg_sq? exp_avg_sq_hat? "
                   "RMS:one?",
                   ""},
    KnownOptimizer{"Adafactor",
                   "exp_avg_sq_row:factored exp_avg_sq_col:factored exp_avg? exp_avg_sq? "
                   "exp_avg_sq_hat? RMS:one?",
                   ""},
    KnownOptimizer{"GaLore with Adafactor",
                   "exp_avg_sq_row:factored exp_avg_sq_col:factored projector:opaque exp_avg? "
                   "exp_avg_sq? RMS:one?",
                   "rank|update_proj_gap"},
    KnownOptimizer{"RACS", "s:factored q:factored theta:one", ""},
    KnownOptimizer{"SM3", "accumulator_*:factored momentum_buffer?", ""},
    KnownOptimizer{"Adalite",
                   "v_avg_0:factored v_avg_1:factored m_avg_c:factored m_avg_r:factored "
                   "m_avg_u:factored m_avg? v_avg?",
                   ""},
    KnownOptimizer{"Adam-mini",
                   "m vmean:row v? iteration:one? dim:one? head_per_gpu:one? dimension:one? "
                   "reduced:one?",
                   ""},
    KnownOptimizer{"Adam-mini", "m v_mean:row v? head:one? dimension:one? reduced:one?", ""},
    KnownOptimizer{"EmoFact", "exp_avg_r:factored exp_avg_c:factored exp_avg? exp_avg_sq? shadow?",
                   ""},
    // Kronecker factors and other bases
    KnownOptimizer{"Shampoo", "pre_cond_*:opaque inv_pre_cond_*:opaque momentum_buffer?", ""},
    KnownOptimizer{"Shampoo", "precond_*:opaque inv_precond_*:opaque momentum_buffer?", ""},
    KnownOptimizer{"scalable Shampoo", "momentum pre_conditioner:opaque graft:opaque", ""},
    KnownOptimizer{"distributed Shampoo", "block_*:opaque momentum_buffer? filtered_grad?", ""},
    KnownOptimizer{"SOAP",
                   "exp_avg exp_avg_sq:opaque GG:opaque Q:opaque precondition_frequency:one? "
                   "shampoo_beta:one?",
                   ""},
    KnownOptimizer{"PSGD Kron",
                   "Q:opaque momentum_buffer exprs:opaque? expressions:opaque? mu? GG:opaque?", ""},
    KnownOptimizer{"SPlus", "momentum ema sides:opaque? q_sides:opaque? param_buffer?", ""},
    // low rank
    KnownOptimizer{"APOLLO", "exp_avg exp_avg_sq projector:opaque? scaling_grad:one?",
                   "scale_type"},
    KnownOptimizer{"Fira", "exp_avg exp_avg_sq projector:opaque scaling_grad:one", ""},
    KnownOptimizer{"Conda", "exp_avg exp_avg_sq projector:opaque", "projection_type !rank"},
    KnownOptimizer{"GaLore", "exp_avg exp_avg_sq projector:opaque", "rank|update_proj_gap"},
    KnownOptimizer{"Alice", "U:opaque Q:opaque m:opaque v:opaque p:opaque? phi:one?", ""},
    // several moments
    KnownOptimizer{"D-Adaptation Adan", "s exp_avg exp_avg_sq exp_avg_diff previous_grad", ""},
    KnownOptimizer{"D-Adaptation Adan", "s exp_avg exp_avg_sq exp_avg_diff pre_grad", ""},
    KnownOptimizer{"Adan",
                   "exp_avg exp_avg_sq exp_avg_diff neg_pre_grad? previous_grad? pre_grad? "
                   "prev_grad? exp_grad_adanorm:one?",
                   ""},
    KnownOptimizer{"Adan", "prev_grad m v n", ""},
    KnownOptimizer{"Ranger25", "exp_avg exp_avg_sq exp_avg_slow slow_momentum", ""},
    KnownOptimizer{"AdEMAMix", "exp_avg_sq exp_avg_slow exp_avg? exp_avg_fast?", ""},
    KnownOptimizer{"AdEMAMix", "m1 m2 nu", ""},
    KnownOptimizer{"simplified AdEMAMix", "exp_avg exp_avg_sq num_sum:one den_sum:one", ""},
    KnownOptimizer{"MARS", "exp_avg exp_avg_sq last_grad max_exp_avg_sq?", ""},
    KnownOptimizer{"DiffGrad",
                   "exp_avg exp_avg_sq previous_grad max_exp_avg_sq? exp_grad_adanorm:one?", ""},
    KnownOptimizer{"AdaPNM", "exp_avg exp_avg_sq neg_exp_avg max_exp_avg_sq? exp_grad_adanorm:one?",
                   ""},
    KnownOptimizer{"LaProp",
                   "exp_avg exp_avg_sq exp_avg_lr_1:one exp_avg_lr_2:one exp_avg_mean_square? "
                   "max_exp_avg_sq?",
                   ""},
    KnownOptimizer{"AdaMod", "exp_avg exp_avg_sq exp_avg_lr", ""},
    KnownOptimizer{"Adai", "exp_avg exp_avg_sq beta1_prod", ""},
    KnownOptimizer{"StableAdamW", "exp_avg exp_avg_sq kahan_comp", ""},
    KnownOptimizer{"Grokfast AdamW", "exp_avg exp_avg_sq grok_exp_avg", ""},
    KnownOptimizer{"Ranger", "exp_avg exp_avg_sq slow_buffer exp_grad_adanorm:one?", ""},
    KnownOptimizer{"RangerVA", "exp_avg exp_avg_sq max_exp_avg_sq slow_buffer", ""},
    KnownOptimizer{"RangerQH", "exp_avg exp_avg_sq slow_buffer beta1_weight:one beta2_weight:one",
                   ""},
    KnownOptimizer{"QHAdam", "exp_avg exp_avg_sq beta1_weight:one beta2_weight:one", ""},
    KnownOptimizer{"SWATS", "exp_avg exp_avg_sq exp_avg2:one max_exp_avg_sq? momentum_buffer?", ""},
    KnownOptimizer{"AdaBelief",
                   "exp_avg exp_avg_var max_exp_avg_var? exp_grad_adanorm:one? rho_inf:one?", ""},
    KnownOptimizer{"AdaNorm", "exp_avg exp_avg_var exp_grad_norm:one max_exp_avg_var?", ""},
    KnownOptimizer{"AdaHessian", "exp_avg exp_hessian_diag_sq", ""},
    KnownOptimizer{"Sophia", "exp_avg hessian", ""},
    KnownOptimizer{"Sophia", "momentum hessian_moment", ""},
    KnownOptimizer{"FAdam", "momentum fim", ""},
    // learning rates that are found
    KnownOptimizer{"Prodigy", "s:opaque p0:opaque exp_avg_sq exp_avg?", "slice_p"},
    KnownOptimizer{"Prodigy", "s p0 exp_avg_sq exp_avg?", ""},
    KnownOptimizer{"D-Adaptation Adam", "s exp_avg exp_avg_sq", "growth_rate|d"},
    KnownOptimizer{"D-Adaptation SGD", "z s x0", ""},
    KnownOptimizer{"D-Adaptation AdaGrad", "alpha_k sk x0 weighted_sk?", ""},
    KnownOptimizer{"D-Adaptation AdaGrad", "alphak sk x0 weighted_sk?", ""},
    KnownOptimizer{"D-Adaptation Lion", "exp_avg s", ""},
    KnownOptimizer{"schedule-free RAdam", "z exp_avg_sq", "silent_sgd_phase"},
    KnownOptimizer{"schedule-free AdamW", "z exp_avg_sq", "weight_lr_power"},
    KnownOptimizer{"schedule-free SGD", "z", "weight_lr_power"},
    // layer-wise rates
    KnownOptimizer{"LAMB",
                   "exp_avg exp_avg_sq weight_norm:one adam_norm:one trust_ratio:one "
                   "exp_grad_adanorm:one?",
                   ""},
    KnownOptimizer{"NovoGrad", "exp_avg exp_avg_sq:one max_exp_avg_sq:one?",
                   "grad_averaging amsgrad"},
    KnownOptimizer{"LAMB", "exp_avg exp_avg_sq exp_grad_adanorm:one?",
                   "grad_averaging|max_coeff|pre_norm"},
    KnownOptimizer{"LARS", "momentum_buffer?", "trust_coefficient"},
    KnownOptimizer{"NovoGrad", "moments grads_ema:one", ""},
    KnownOptimizer{"MADGRAD", "grad_sum_sq s x0?", ""},
    // bitsandbytes: codes of blocks of the flat parameter, or float32 where it is small
    KnownOptimizer{"AdEMAMix of bitsandbytes",
                   "state1:opaque state2:blocks qmap1:opaque? qmap2:opaque? absmax1:opaque? "
                   "absmax2:opaque? gnorm_vec:opaque? __bnb_optimizer_quant_state__:opaque?",
                   "three_betas"},
    // LAMB and LARS alone have max_unorm above 0, and so unorm_vec; their groups are those of the others.
    KnownOptimizer{"LAMB of bitsandbytes",
                   "state1:blocks state2:blocks unorm_vec:opaque qmap1:opaque? qmap2:opaque? "
                   "absmax1:opaque? absmax2:opaque? max1:opaque? max2:opaque? new_max1:opaque? "
                   "new_max2:opaque? gnorm_vec:opaque? __bnb_optimizer_quant_state__:opaque?",
                   ""},
    KnownOptimizer{"Adam of bitsandbytes",
                   "state1:blocks state2:blocks qmap1:opaque? qmap2:opaque? absmax1:opaque? "
                   "absmax2:opaque? max1:opaque? max2:opaque? new_max1:opaque? new_max2:opaque? "
                   "gnorm_vec:opaque? __bnb_optimizer_quant_state__:opaque?",
                   ""},
    KnownOptimizer{"LARS of bitsandbytes",
                   "state1:blocks unorm_vec:opaque qmap1:opaque? absmax1:opaque? max1:opaque? "
                   "new_max1:opaque? gnorm_vec:opaque? __bnb_optimizer_quant_state__:opaque?",
                   ""},
    KnownOptimizer{"an optimizer of bitsandbytes",
                   "state1:blocks qmap1:opaque? absmax1:opaque? max1:opaque? new_max1:opaque? "
                   "gnorm_vec:opaque? __bnb_optimizer_quant_state__:opaque?",
                   ""},
    // the same leaves as Adam's, Lion's and SGD's
    KnownOptimizer{"ADOPT", "exp_avg exp_avg_sq", "clip_lambda|clip_exp"},
    KnownOptimizer{"AdaBound", "exp_avg exp_avg_sq max_exp_avg_sq?", "final_lr"},
    KnownOptimizer{"AdamP", "exp_avg exp_avg_sq", "wd_ratio delta"},
    KnownOptimizer{"RAdam", "exp_avg exp_avg_sq", "buffer"},
    KnownOptimizer{"Yogi", "exp_avg exp_avg_sq", "initial_accumulator"},
    KnownOptimizer{"a variant of Adam", "exp_avg exp_avg_sq max_exp_avg_sq? exp_grad_adanorm:one?",
                   "weight_decouple|decouple|fixed_decay|ams_bound"},
    KnownOptimizer{"MSVAG", "exp_avg exp_avg_sq", "beta !betas"},
    KnownOptimizer{"Adam", "exp_avg exp_avg_sq max_exp_avg_sq?", ""},
    KnownOptimizer{"Tiger", "exp_avg", "beta !betas"},
    KnownOptimizer{"Lion", "exp_avg exp_grad_adanorm:one?", ""},
    KnownOptimizer{"SGDP", "momentum", "wd_ratio delta"},
    KnownOptimizer{"AggMo", "momentum_buffer", "betas"},
    KnownOptimizer{"QHM", "momentum_buffer", "nu"},
    KnownOptimizer{"a variant of SGD", "momentum_buffer", "weight_decouple|fixed_decay"},
    KnownOptimizer{"AccSGD", "momentum_buffer", "kappa xi"},
    KnownOptimizer{"SGD with momentum", "momentum_buffer", ""},
    KnownOptimizer{"SGD", "", "momentum nesterov !ns_steps"},
};

/// What wrappers of any optimizer add: counters and master copies.
constexpr std::string_view kStep = "step";
/// bitsandbytes 0.50 keeps its leaves below this one.
constexpr std::string_view kWrapped = "__bnb_optimizer_quant_state__.";

struct Leaf {
  std::string_view name;  // without "*"
  LeafCut cut = LeafCut::kElementwise;
  bool needed = true;
  bool begins = false;

  bool fits(std::string_view leaf) const {
    if (leaf.starts_with(kWrapped)) leaf.remove_prefix(kWrapped.size());
    const std::string_view first = leaf.substr(0, leaf.find('.'));
    return begins ? first.starts_with(name) : first == name || leaf == name;
  }
};

LeafCut parse_cut(std::string_view word) {
  if (word == "one") return LeafCut::kOne;
  if (word == "row") return LeafCut::kPerRow;
  if (word == "factored") return LeafCut::kFactored;
  if (word == "blocks") return LeafCut::kBlocks;
  return LeafCut::kOpaque;
}

Leaf parse_leaf(std::string_view word) {
  Leaf leaf;
  if (word.ends_with('?')) {
    leaf.needed = false;
    word.remove_suffix(1);
  }
  if (const std::size_t colon = word.find(':'); colon != word.npos) {
    leaf.cut = parse_cut(word.substr(colon + 1));
    word = word.substr(0, colon);
  }
  leaf.begins = word.ends_with('*');
  if (leaf.begins) word.remove_suffix(1);
  leaf.name = word;
  return leaf;
}

std::vector<Leaf> leaves_of(const KnownOptimizer& optimizer) {
  std::vector<Leaf> leaves;
  for (const std::string_view word : split(optimizer.leaves, ' '))
    if (!word.empty()) leaves.push_back(parse_leaf(word));
  return leaves;
}

using Names = std::set<std::string, std::less<>>;

bool leaves_fit(const KnownOptimizer& optimizer, const Names& names) {
  const std::vector<Leaf> leaves = leaves_of(optimizer);
  const auto is_listed = [&](const std::string& name) {
    return name == kStep || is_master_leaf(name) ||
           std::ranges::any_of(leaves, [&](const Leaf& leaf) { return leaf.fits(name); });
  };
  const auto is_there = [&](const Leaf& leaf) {
    return !leaf.needed ||
           std::ranges::any_of(names, [&](const std::string& name) { return leaf.fits(name); });
  };
  return std::ranges::all_of(names, is_listed) && std::ranges::all_of(leaves, is_there);
}

bool options_fit(std::string_view wanted, const Names& options) {
  for (const std::string_view word : split(wanted, ' ')) {
    if (word.empty()) continue;
    const bool absent = word.starts_with('!');
    const auto ways = split(absent ? word.substr(1) : word, '|');
    const bool found =
        std::ranges::any_of(ways, [&](std::string_view way) { return options.contains(way); });
    if (found == absent) return false;
  }
  return true;
}

/// Leaves of all rows that show an optimizer by themselves. Shorter ones do not, nor words that models
/// use.
struct KnownLeaves {
  static constexpr std::size_t kShortest = 4;
  static constexpr std::array kCommon = {
      std::string_view("head"),     std::string_view("dimension"), std::string_view("iteration"),
      std::string_view("block_"),   std::string_view("update"),    std::string_view("momentum"),
      std::string_view("projector")};

  KnownLeaves() {
    for (const KnownOptimizer& optimizer : kOptimizers) {
      for (const Leaf& leaf : leaves_of(optimizer)) {
        if (leaf.name.size() < kShortest || std::ranges::find(kCommon, leaf.name) != kCommon.end())
          continue;
        if (leaf.begins)
          beginnings.insert(leaf.name);
        else
          exact.insert(leaf.name);
      }
    }
  }
  std::unordered_set<std::string_view> exact;
  std::set<std::string_view> beginnings;
};

const Leaf* find_leaf(const std::vector<Leaf>& leaves, std::string_view name) {
  const auto found =
      std::ranges::find_if(leaves, [&](const Leaf& leaf) { return leaf.fits(name); });
  return found == leaves.end() ? nullptr : &*found;
}

}  // namespace

std::span<const KnownOptimizer> known_optimizers() { return kOptimizers; }

const KnownOptimizer* recognize_optimizer(const Names& leaves, const Names& options) {
  for (const KnownOptimizer& optimizer : kOptimizers)
    if (options_fit(optimizer.options, options) && leaves_fit(optimizer, leaves)) return &optimizer;
  return nullptr;
}

LeafCut cut_of_leaf(const KnownOptimizer& optimizer, std::string_view leaf) {
  if (leaf == kStep) return LeafCut::kOne;
  const std::vector<Leaf> leaves = leaves_of(optimizer);
  const Leaf* found = find_leaf(leaves, leaf);
  return found == nullptr ? LeafCut::kElementwise : found->cut;
}

bool is_needed_leaf(const KnownOptimizer& optimizer, std::string_view leaf) {
  const std::vector<Leaf> leaves = leaves_of(optimizer);
  const Leaf* found = find_leaf(leaves, leaf);
  return leaf == kStep || (found != nullptr && found->needed && !found->begins);
}

bool is_known_optimizer_leaf(std::string_view leaf) {
  constexpr std::array kShort = {std::string_view("sum"), std::string_view("ax"),
                                 std::string_view("mu"), std::string_view("eta")};
  if (leaf == kStep || is_master_leaf(leaf)) return true;
  if (std::ranges::find(kShort, leaf) != kShort.end()) return true;
  if (leaf == "momentum_1" || leaf == "momentum_2") return true;
  static const KnownLeaves kKnown;
  return kKnown.exact.contains(leaf) ||
         std::ranges::any_of(kKnown.beginnings,
                             [&](std::string_view begin) { return leaf.starts_with(begin); });
}

}  // namespace tessera
