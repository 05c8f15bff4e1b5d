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

/// What is left of a name without the words that say what kind of thing it is, and its number:
/// "optG" is "g", "optimizers.1" and "model_1" are "" and "1".
struct OwnPart {
  std::string text, number;
};

void take_number(std::string& text, std::string& number) {
  std::size_t begin = text.size();
  while (begin > 0 && is_digit(text[begin - 1])) --begin;
  if (begin < text.size()) number = text.substr(begin);
  text.erase(begin);
}

OwnPart own_part(std::string_view name) {
  constexpr std::array<std::string_view, 16> kKinds = {
      "optimizers", "optimizer", "optim",  "opts",  "opt",  "state_dict", "states",  "state",
      "params",     "weights",   "models", "model", "nets", "net",        "modules", "module"};
  OwnPart own;
  // The place in a list: the key before it says the rest.
  std::size_t dot = name.rfind('.');
  while (dot != name.npos && std::ranges::all_of(name.substr(dot + 1), is_digit)) {
    own.number = name.substr(dot + 1);
    name = name.substr(0, dot);
    dot = name.rfind('.');
  }
  own.text = lower(dot == name.npos ? name : name.substr(dot + 1));
  for (const std::string_view kind : kKinds)
    if (const std::size_t at = own.text.find(kind); at != own.text.npos)
      own.text.erase(at, kind.size());
  std::erase_if(own.text, [](char c) { return c == '_' || c == '-'; });
  take_number(own.text, own.number);
  return own;
}

}  // namespace

bool is_model_name(std::string_view key) {
  constexpr std::string_view kNumbered = "model";  // "model_1", accelerate's second
  if (is_one_of(kModelNames, key)) return true;
  if (!key.starts_with(kNumbered) || key.size() == kNumbered.size()) return false;
  key.remove_prefix(kNumbered.size());
  if (key.starts_with('_')) key.remove_prefix(1);
  return is_decimal(key);
}

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
  const OwnPart a = own_part(optimizer), b = own_part(model);
  if (a.text.empty() && b.text.empty()) return a.number == b.number;
  if (a.text.empty() || b.text.empty()) return false;
  const bool other_numbers = !a.number.empty() && !b.number.empty() && a.number != b.number;
  return !other_numbers && (a.text.starts_with(b.text) || b.text.starts_with(a.text));
}

std::size_t keys_in_common(std::string_view a, std::string_view b) {
  const std::size_t length = std::min(a.size(), b.size());
  std::size_t keys = 0;
  for (std::size_t i = 0; i < length && a[i] == b[i]; ++i) keys += a[i] == '.';
  return keys;
}

bool trains_tensor(std::string_view optimizer, std::string_view tensor) {
  constexpr std::size_t kShortest = 3;
  const std::string a = own_part(optimizer).text;
  std::string b = own_part(tensor).text;
  if (b == a) return !a.empty();
  for (const std::string_view word : {"log", "raw"})
    if (b.starts_with(word) && b.size() > word.size()) b.erase(0, word.size());
  if (std::min(a.size(), b.size()) < kShortest) return a == b && !a.empty();
  return a.starts_with(b) || b.starts_with(a) || a.ends_with(b) || b.ends_with(a);
}

bool is_statistic_name(std::string_view key) {
  constexpr std::array<std::string_view, 17> kStatistics = {"mean",
                                                            "running_mean",
                                                            "var",
                                                            "variance",
                                                            "running_var",
                                                            "running_variance",
                                                            "std",
                                                            "m2",
                                                            "count",
                                                            "current_count",
                                                            "num",
                                                            "n",
                                                            "eps",
                                                            "epsilon",
                                                            "min",
                                                            "max",
                                                            "num_batches_tracked"};
  const std::string text = lower(key.starts_with('_') ? key.substr(1) : key);
  return is_one_of(kStatistics, text);
}

bool is_mean_name(std::string_view key) { return key.ends_with("mean") && is_statistic_name(key); }

}  // namespace tessera
