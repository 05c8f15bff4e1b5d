#include "lib/ops/audit/deep.h"

#include <fmt/format.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "lib/ops/inspect/name_families.h"

namespace tessera {
namespace {

constexpr std::size_t kMostBadListed = 30;
constexpr double kSpikeRatio = 10;
constexpr double kLeastLargeChange = 0.5;  // of a weight, to be a spike

const TensorNumbers* at(const std::unordered_map<std::uint32_t, const TensorNumbers*>& numbers,
                        std::uint32_t id) {
  const auto found = numbers.find(id);
  return found == numbers.end() ? nullptr : found->second;
}

std::unordered_map<std::uint32_t, const TensorNumbers*> indexed(
    const std::vector<TensorNumbers>& numbers) {
  std::unordered_map<std::uint32_t, const TensorNumbers*> out;
  for (const TensorNumbers& each : numbers) out.emplace(each.id, &each);
  return out;
}

double middle(std::vector<float> values) {
  std::ranges::sort(values);
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

template <class Visit>
void each_fact(CheckpointFacts& facts, Visit&& visit) {
  for (AuditPart& part : facts.parts)
    for (TensorFact& fact : part.tensors) visit(fact);
}

bool holds_state(const TensorFact& fact) {
  return fact.use == TensorUse::kMoment || fact.use == TensorUse::kSecond;
}

}  // namespace

double DeepSeries::steps_since(std::size_t checkpoint) const {
  const AuditedCheckpoint &was = run_.row(*before_), &is = run_.row(checkpoint);
  if (was.optimizer_step && is.optimizer_step)
    return std::max(0.0, *is.optimizer_step - *was.optimizer_step);
  if (was.step() && is.step()) return std::max(0.0, *is.step() - *was.step());
  return 0;
}

void DeepSeries::take_digests(std::size_t checkpoint, const Numbers& numbers) {
  each_fact(run_.checkpoints[checkpoint], [&](TensorFact& fact) {
    const TensorNumbers* t = at(numbers, fact.id);
    if (t == nullptr) return;
    fact.key = {KeyKind::kDigest, t->digest == 0 ? 1 : t->digest, 0, 0};
    TensorHistory& history = histories_[fact.id];
    if (history.seen++ == 0) history.digest = t->digest, history.first = checkpoint;
    history.last = checkpoint;
    history.moved = history.moved || history.digest != t->digest;
    history.is_zero = t->all_zero;
    note_bad(run_.row(checkpoint), fact, *t, history);
  });
}

/// -Inf that a mask holds from the start, and that no training touches, is no onset.
void DeepSeries::note_bad(const AuditedCheckpoint& row, const TensorFact& fact,
                          const TensorNumbers& t, TensorHistory& history) {
  if (t.nan + t.inf == 0) return;
  const bool trains = fact.trains || holds_state(fact) || fact.use == TensorUse::kMaster;
  if (t.nan == 0 && !trains && (history.seen == 1 || history.is_masked)) {
    history.is_masked = true;
    return;
  }
  run_.checkpoints[history.last].holds_errors = true;
  if (std::exchange(history.bad, true)) return;
  if (bad_listed_++ >= kMostBadListed) {
    ++bad_more_;
    return;
  }
  const std::string since =
      before_ ? fmt::format("; none in {}", printable(run_.row(*before_).name)) : "";
  run_.add(Finding::kNonFiniteOnset, Severity::kError,
           fmt::format("{} NaN and {} Inf from {} on{}, first at element {}{}", t.nan, t.inf,
                       step_text(row), share_, t.first_bad, since),
           row.name, run_.names.name(fact.id));
}

bool DeepSeries::is_reset(const TensorFact& fact, const TensorNumbers& before,
                          const TensorNumbers& after, double steps) const {
  // v' >= decay^steps v, whatever the gradients were. Half of it leaves room for narrow types.
  if (fact.decay < 0 || fact.element_bytes < 2 || before.sample.size() != after.sample.size() ||
      before.count != after.count)
    return false;
  const double bound = 0.5 * std::pow(static_cast<double>(fact.decay), steps);
  std::size_t below = 0, all = 0;
  for (std::size_t i = 0; i < before.sample.size(); ++i) {
    const double was = before.sample[i], is = after.sample[i];
    if (!(was > 1e-30) || !std::isfinite(is) || !std::isfinite(was) || bound * was < 1e-35)
      continue;
    ++all;
    below += is < bound * was;
  }
  return all > 0 && below * 5 > all;
}

void DeepSeries::check_moments(std::size_t checkpoint, const Numbers& numbers) {
  const Numbers before = indexed(before_numbers_);
  const AuditedCheckpoint &was = run_.row(*before_), &row = run_.row(checkpoint);
  // An optimizer that began again by its step has a finding for that.
  if (was.optimizer_step && row.optimizer_step && *row.optimizer_step < *was.optimizer_step) return;
  const double steps = steps_since(checkpoint);
  std::size_t seconds = 0, reset = 0, moments = 0, zeroed = 0;
  std::uint32_t first_reset = 0, first_zeroed = 0;
  each_fact(run_.checkpoints[checkpoint], [&](const TensorFact& fact) {
    const TensorNumbers *old = at(before, fact.id), *now = at(numbers, fact.id);
    if (!holds_state(fact) || old == nullptr || now == nullptr) return;
    if (!old->all_zero && old->count > 0) {
      ++moments;
      if (now->all_zero && zeroed++ == 0) first_zeroed = fact.id;
    }
    if (fact.decay < 0) return;
    ++seconds;
    if (steps > 0 && is_reset(fact, *old, *now, steps) && reset++ == 0) first_reset = fact.id;
  });
  const bool all_zero = moments > 0 && zeroed * 10 >= moments * 9;
  if (all_zero)
    run_.add(
        Finding::kMomentsReset, Severity::kError,
        fmt::format("{} of {} moments that {} has are zero", zeroed, moments, printable(was.name)),
        row.name, run_.names.name(first_zeroed));
  else if (seconds > 0 && reset * 2 > seconds)
    run_.add(
        Finding::kMomentsReset, Severity::kError,
        fmt::format("{} of {} second moments are smaller than those of {} can decay to in {:g} "
                    "steps: they were reset in between",
                    reset, seconds, printable(was.name), steps),
        row.name, run_.names.name(first_reset));
}

void DeepSeries::check_reinitialized(std::size_t checkpoint, const Numbers& numbers) {
  constexpr double kNothingInCommon = 0.3, kAlmostTheSame = 0.8;
  const Numbers before = indexed(before_numbers_);
  std::size_t moved = 0, alike = 0;
  std::vector<std::uint32_t> lost;
  each_fact(run_.checkpoints[checkpoint], [&](const TensorFact& fact) {
    const TensorNumbers *old = at(before, fact.id), *now = at(numbers, fact.id);
    if (fact.use != TensorUse::kWeight || fact.rank < 2 || !old || !now) return;
    if (old->digest == now->digest) return;
    const auto change = sampled_change(*old, *now);
    if (!change || change->before == 0) return;
    ++moved;
    alike += change->cosine > kAlmostTheSame;
    if (std::abs(change->cosine) < kNothingInCommon && looks_fresh(fact, *now))
      lost.push_back(fact.id);
  });
  if (alike * 10 < (moved - lost.size()) * 8 || alike == 0) return;
  for (const std::uint32_t id : lost)
    run_.add(Finding::kReinitialized, Severity::kError,
             fmt::format("has nothing in common with itself in {}, and looks freshly initialized; "
                         "{} of {} other matrices moved little",
                         printable(run_.row(*before_).name), alike, moved - lost.size()),
             run_.row(checkpoint).name, run_.names.name(id));
}

void DeepSeries::judge(std::vector<float>& before, double now, std::uint32_t id, Jump& jump) {
  if (before.size() >= 2) {
    const double usual = middle(before);
    const double ratio = usual > 0 ? now / usual : 0;
    jump.jumped += ratio >= kSpikeRatio;
    if (ratio > jump.ratio) jump.ratio = ratio, jump.id = id;
  }
  before.push_back(static_cast<float>(now));
}

void DeepSeries::judge_gradients(const TensorFact& fact, const TensorNumbers& t,
                                 TensorHistory& history, const AuditedCheckpoint& row, Jump& jump) {
  if (fact.use != TensorUse::kSecond || fact.decay < 0 || t.mean < 0 || t.nan + t.inf > 0) return;
  const bool corrects = fact.decay > 0 && fact.decay < 1 && row.optimizer_step.value_or(0) > 0;
  const double correction =
      corrects ? 1 - std::pow(static_cast<double>(fact.decay), *row.optimizer_step) : 1;
  const double square = t.mean / correction;
  jump.all += square * static_cast<double>(fact.numel);
  jump.has_any = true;
  judge(history.gradients, std::sqrt(square), fact.id, jump);
}

/// One tensor alone may well go its own way: a norm's bias has hardly a gradient at first.
bool DeepSeries::is_spike(const Jump& jump, std::vector<float>& before, double all) const {
  if (!jump.has_any) return false;
  const double usual = before.size() >= 2 ? middle(before) : 0;
  before.push_back(static_cast<float>(all));
  return usual > 0 && all >= kSpikeRatio * usual && jump.ratio >= kSpikeRatio;
}

void DeepSeries::report_spike(const AuditedCheckpoint& row, const Jump& jump, const char* what) {
  run_.add(Finding::kSpike, Severity::kWarning,
           fmt::format("its {} are {:.3g} times those of the checkpoints before; {} more tensor{} "
                       "jumped with it",
                       what, jump.ratio, jump.jumped - 1, jump.jumped == 2 ? "" : "s"),
           row.name, run_.names.name(jump.id));
}

void DeepSeries::add_to_layers(std::size_t checkpoint, const Numbers& numbers) {
  struct Sums {
    double norm = 0, change = 0, before = 0, v_max = -1;
    bool has_norm = false, has_change = false;
  };
  std::map<std::string, Sums> sums;
  const Numbers before = indexed(before_numbers_);
  const double steps = before_ ? steps_since(checkpoint) : 0;
  Jump gradients, updates;
  double largest_change = 0, weights = 0;
  each_fact(run_.checkpoints[checkpoint], [&](const TensorFact& fact) {
    const TensorNumbers* now = at(numbers, fact.id);
    if (now == nullptr) return;
    TensorHistory& history = histories_[fact.id];
    judge_gradients(fact, *now, history, run_.row(checkpoint), gradients);
    Sums& layer = sums[layer_of(run_.names.name(fact.parameter))];
    if (fact.use == TensorUse::kSecond) layer.v_max = std::max(layer.v_max, now->abs_max);
    if (fact.use != TensorUse::kWeight) return;
    layer.norm += now->l2 * now->l2;
    layer.has_norm = true;
    const TensorNumbers* old = at(before, fact.id);
    const auto change = old ? sampled_change(*old, *now) : std::nullopt;
    const auto relative = change ? change->relative() : std::nullopt;
    if (!relative) return;
    layer.has_change = true;
    layer.change += *relative * old->l2 * *relative * old->l2;
    layer.before += old->l2 * old->l2;
    if (steps <= 0) return;
    largest_change = std::max(largest_change, *relative);
    updates.has_any = true;
    updates.all += *relative * old->l2 * *relative * old->l2;
    weights += old->l2 * old->l2;
    judge(history.rates, *relative / steps, fact.id, updates);
  });
  const AuditedCheckpoint& row = run_.row(checkpoint);
  const bool by_gradients = is_spike(gradients, gradients_, std::sqrt(gradients.all));
  const double rate = weights > 0 ? std::sqrt(updates.all / weights) / steps : 0;
  const bool by_updates = is_spike(updates, rates_, rate) && largest_change >= kLeastLargeChange;
  if (by_gradients && !spiked_)
    report_spike(row, gradients, "gradients");
  else if (by_updates && !spiked_)
    report_spike(row, updates, "updates");
  spiked_ = by_gradients || by_updates;
  for (const auto& [name, sum] : sums) {
    if (!sum.has_norm && sum.v_max < 0) continue;
    const auto [found, is_new] = layer_index_.emplace(name, layers_.size());
    if (is_new) {
      const std::size_t rows = run_.checkpoints.size();
      layers_.push_back({run_.row(checkpoint).series, name, {}, {}, {}});
      layers_.back().norm.resize(rows);
      layers_.back().update.resize(rows);
      layers_.back().v_max.resize(rows);
    }
    AuditLayer& layer = layers_[found->second];
    if (sum.has_norm) layer.norm[checkpoint] = std::sqrt(sum.norm);
    if (sum.has_change && sum.before > 0)
      layer.update[checkpoint] = std::sqrt(sum.change / sum.before);
    if (sum.v_max >= 0) layer.v_max[checkpoint] = sum.v_max;
  }
}

void DeepSeries::feed(std::size_t checkpoint, const DeepNumbers& read) {
  const Numbers numbers = indexed(read.tensors);
  take_digests(checkpoint, numbers);
  if (!read.drifted.empty()) run_.checkpoints[checkpoint].holds_errors = true;
  if (!read.drifted.empty() && !std::exchange(drifted_, true))
    run_.add(Finding::kReplicasDrifted, Severity::kError,
             fmt::format("copies of {} tensor{} differ from {} on: {}", read.drifted.size(),
                         read.drifted.size() == 1 ? "" : "s", step_text(run_.row(checkpoint)),
                         read.drift),
             run_.row(checkpoint).name, read.drifted[0]);
  run_.checkpoints[checkpoint].odd_steps = read.odd_steps;
  run_.checkpoints[checkpoint].odd_step = read.odd_step;
  if (before_) {
    check_moments(checkpoint, numbers);
    check_reinitialized(checkpoint, numbers);
  }
  add_to_layers(checkpoint, numbers);
  before_ = checkpoint;
  before_numbers_ = read.tensors;
}

void DeepSeries::check_never_moved() {
  std::map<std::uint32_t, bool> masters;  // parameter -> its master moved
  std::map<std::uint32_t, bool> zero_state;
  std::size_t moved = 0;
  CheckpointFacts& last = run_.checkpoints[*before_];
  each_fact(last, [&](const TensorFact& fact) {
    const auto found = histories_.find(fact.id);
    if (found == histories_.end()) return;
    if (fact.use == TensorUse::kMaster)
      masters[fact.parameter] = masters[fact.parameter] || found->second.moved;
    if (holds_state(fact)) {
      const auto [state, is_new] = zero_state.emplace(fact.parameter, true);
      state->second = state->second && found->second.is_zero;
    }
    moved += fact.use == TensorUse::kWeight && fact.trains && found->second.moved;
  });
  if (moved == 0) return;
  each_fact(last, [&](const TensorFact& fact) {
    const auto found = histories_.find(fact.id);
    if (fact.use != TensorUse::kWeight || !fact.trains || found == histories_.end()) return;
    const TensorHistory& history = found->second;
    if (history.moved || history.seen < 2 || masters[fact.id]) return;
    const auto state = zero_state.find(fact.id);
    const bool zero = state != zero_state.end() && state->second;
    const bool rounds = fact.rank < 2 && fact.element_bytes <= 2 && !zero;
    run_.add(
        Finding::kNeverMoved, rounds ? Severity::kWarning : Severity::kError,
        fmt::format("is bit for bit the same{} from {} to {}, while {} others trained; its "
                    "optimizer state is {}",
                    share_, step_text(run_.row(history.first)), step_text(run_.row(history.last)),
                    moved, zero ? "zero: no gradient reaches it" : "not zero"),
        "", run_.names.name(fact.id));
  });
}

void DeepSeries::check_fresh() {
  constexpr double kApart = 0.1;
  struct Member {
    const TensorFact* fact;
    double spread;
    bool fresh;
  };
  std::map<std::string, std::vector<Member>> kinds;
  const Numbers numbers = indexed(before_numbers_);
  each_fact(run_.checkpoints[*before_], [&](const TensorFact& fact) {
    const TensorNumbers* t = at(numbers, fact.id);
    if (fact.use != TensorUse::kWeight || fact.rank < 2 || !t || t->nan + t->inf > 0) return;
    const std::string name = run_.names.name(fact.id);
    const std::string kind = kind_of(name);
    if (kind == name) return;
    kinds[kind + fmt::format(" {} {}", fact.numel, fact.fan_in)].push_back(
        {&fact, t->l2 / std::sqrt(static_cast<double>(fact.numel)), looks_fresh(fact, *t)});
  });
  for (const auto& [kind, members] : kinds) {
    if (members.size() < 3) continue;
    for (const Member& member : members) {
      if (!member.fresh) continue;
      const auto apart = std::ranges::count_if(members, [&](const Member& other) {
        return !other.fresh && std::abs(other.spread / member.spread - 1) > kApart;
      });
      if (static_cast<std::size_t>(apart) * 3 < (members.size() - 1) * 2) continue;
      run_.add(Finding::kLooksFresh, Severity::kWarning,
               fmt::format("has the spread ({:.3g}) and form of a usual initializer; {} of {} of "
                           "its kind have not",
                           member.spread, apart, members.size() - 1),
               run_.row(*before_).name, run_.names.name(member.fact->id));
    }
  }
}

void DeepSeries::finish() {
  if (bad_more_ > 0)
    run_.notes.push_back({Finding::kNonFiniteOnset, Severity::kInfo,
                          fmt::format("{} more tensors hold NaN or Inf", bad_more_), "", ""});
  if (!before_) return;
  check_never_moved();
  check_fresh();
}

}  // namespace tessera
