#include "lib/state/model_names.h"

#include <tessera/base/text.h>

#include <algorithm>
#include <array>
#include <span>

namespace tessera {
namespace {

using Words = std::span<const std::string_view>;

constexpr std::array<std::string_view, 7> kModelNames = {
    "model", "module", "state_dict", "model_state_dict", "net", "weights", "params"};

/// Words that a copy's name begins, or goes on, with.
constexpr std::array<std::string_view, 12> kCopyWords = {"ema",     "swa",    "avg",     "averaged",
                                                         "average", "shadow", "teacher", "target",
                                                         "best",    "old",    "ref",     "backup"};

constexpr std::array<std::string_view, 38> kRunStateNames = {
    "train_state",  "trainer_state", "training_state", "rng",         "rng_state",
    "rng_states",   "random_state",  "random_states",  "scheduler",   "schedulers",
    "lr_scheduler", "lr_schedulers", "scaler",         "grad_scaler", "loss_scaler",
    "dataloader",   "data_loader",   "sampler",        "replay",      "replay_buffer",
    "metrics",      "callbacks",     "loops",          "history",     "loss",
    "losses",       "train_loss",    "val_loss",       "best_loss",   "step",
    "steps",        "global_step",   "iteration",      "epoch",       "ntokens",
    "ntokens_seen", "num_tokens",    "tokens_seen"};

/// "dino_loss", "cuda_rng_state", ...
constexpr std::array<std::string_view, 9> kRunStateEndings = {
    "_loss",   "_losses",        "_rng",     "_rng_state", "_scheduler",
    "_scaler", "_replay_buffer", "_sampler", "_metrics"};

bool is_one_of(Words words, std::string_view word) {
  return std::ranges::find(words, word) != words.end();
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

/// The last key of a dotted name that is no number.
std::string last_word(std::string_view name) {
  while (true) {
    const std::size_t dot = name.rfind('.');
    const std::string_view key = dot == name.npos ? name : name.substr(dot + 1);
    const bool number = std::ranges::all_of(key, is_digit);
    if (!number || dot == name.npos) return lower(key);
    name = name.substr(0, dot);
  }
}

/// What is left of a name without the words that say what kind of thing it is: "optG" -> "g".
std::string own_part(std::string_view name) {
  constexpr std::array<std::string_view, 12> kKinds = {
      "optimizers", "optimizer", "optim",   "opt",   "state_dict", "states",
      "state",      "params",    "weights", "model", "net",        "module"};
  std::string text = last_word(name);
  for (const std::string_view kind : kKinds)
    if (const std::size_t at = text.find(kind); at != text.npos && text.size() > kind.size())
      text.erase(at, kind.size());
  std::erase_if(text, [](char c) { return c == '_' || c == '-'; });
  return text;
}

}  // namespace

bool is_model_name(std::string_view key) { return is_one_of(kModelNames, key); }

bool is_copy_name(std::string_view key) {
  std::string text = lower(key);
  std::ranges::replace(text, '.', '_');
  std::ranges::replace(text, '-', '_');
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('_', begin), text.size());
    if (is_one_of(kCopyWords, std::string_view(text).substr(begin, end - begin))) return true;
    begin = end + 1;
  }
  return false;
}

bool is_run_state_name(std::string_view key) {
  const auto ends = [key](std::string_view ending) { return key.ends_with(ending); };
  return is_one_of(kRunStateNames, key) || std::ranges::any_of(kRunStateEndings, ends);
}

bool is_counter_name(std::string_view key) {
  for (const std::string_view word : {"step", "global_step", "iteration", "epoch", "loss"})
    if (key == word) return true;
  return false;
}

bool names_agree(std::string_view optimizer, std::string_view model) {
  const std::string a = own_part(optimizer), b = own_part(model);
  if (a.empty() || b.empty()) return false;
  return a.starts_with(b) || b.starts_with(a);
}

}  // namespace tessera
