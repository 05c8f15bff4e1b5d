#pragma once
// What names say of models: which are a model's, which a copy's, and which optimizer trains which.
#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// "model", "module", "state_dict", ...: what training code calls the one model; "model_1": one of
/// several.
bool is_model_name(std::string_view key);

/// "ema", "model_avg", "critic_target": averaged or frozen copies of a model.
bool is_copy_name(std::string_view key);

/// What the run keeps beside the weights: counters, losses, schedulers, random states.
bool is_run_state_name(std::string_view key);

/// "step", "loss", ...: a tensor of that name beside weights at the top, in a training state. Others
/// ("tokens_seen") may be buffers of the model.
bool is_counter_name(std::string_view key);

/// Whether both are of one model: "optG" and "netG", "d_optimizer" and "discriminator",
/// "actor_opt" and "actor"; by their numbers "optimizers.1" and "models.1", "optimizer_1" and
/// "model_1"; and "optimizer" and "model", which say nothing else.
bool names_agree(std::string_view optimizer, std::string_view model);

/// How many keys from the top both names begin with, joined by dots: one of "gen.optim" and
/// "gen.model".
std::size_t keys_in_common(std::string_view a, std::string_view b);

/// Takes from `models` all but those that stand nearest to the optimizer.
template <class Models, class NameOf>
void keep_nearest(std::string_view optimizer, Models& models, NameOf name_of) {
  std::size_t most = 0;
  for (const auto& model : models)
    most = std::max(most, keys_in_common(optimizer, std::string_view(name_of(model))));
  std::erase_if(models, [&](const auto& model) {
    return keys_in_common(optimizer, std::string_view(name_of(model))) < most;
  });
}

/// Whether an optimizer of one parameter is called by this tensor: "alpha_optimizer" and "log_alpha".
bool trains_tensor(std::string_view optimizer, std::string_view tensor);

/// "mean", "var", "count": what a running statistic of observations or rewards is made of.
bool is_statistic_name(std::string_view key);
bool is_mean_name(std::string_view key);

}  // namespace tessera
