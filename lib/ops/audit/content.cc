// Content over time, by what is known of it without reading or by what `deep` read: checkpoints that
// repeat the one before, weights that were tied and differ.
#include <fmt/format.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>

#include "lib/ops/audit/run.h"

namespace tessera {
namespace {

using Facts = std::unordered_map<std::uint32_t, const TensorFact*>;

/// Tensors that change with every step: those that train, and their state; of a checkpoint without
/// an optimizer every weight.
std::vector<const TensorFact*> moving_tensors(const CheckpointFacts& facts) {
  std::vector<const TensorFact*> moving, weights;
  for (const AuditPart& part : facts.parts)
    for (const TensorFact& fact : part.tensors) {
      if (!fact.measured) continue;
      const bool state = fact.use == TensorUse::kMoment || fact.use == TensorUse::kSecond ||
                         fact.use == TensorUse::kMaster;
      if (fact.trains || state) moving.push_back(&fact);
      if (fact.use == TensorUse::kWeight) weights.push_back(&fact);
    }
  return moving.empty() ? weights : moving;
}

enum class Repeats : std::uint8_t { kNo, kYes, kUnknown };

/// Blocks of a seal hold several tensors, and a counter among them: an unknown rest says nothing
/// against most of the bytes.
Repeats repeats(const CheckpointFacts& before, const CheckpointFacts& own) {
  if (!own.row.root.empty() && own.row.root == before.row.root) return Repeats::kYes;
  std::uint64_t bytes = 0, same = 0;
  const Facts old = before.by_id();
  for (const TensorFact* fact : moving_tensors(own)) {
    const auto found = old.find(fact->id);
    if (found == old.end()) continue;
    bytes += fact->bytes();
    switch (compare_content(found->second->key, fact->key)) {
      case ContentChange::kChanged:
        return Repeats::kNo;
      case ContentChange::kSame:
        same += fact->bytes();
        break;
      case ContentChange::kUnknown:
        break;
    }
  }
  if (bytes == 0) return Repeats::kUnknown;
  return same * 2 > bytes ? Repeats::kYes : Repeats::kUnknown;
}

std::string advance_text(const AuditedCheckpoint& before, const AuditedCheckpoint& own) {
  return fmt::format("{} to {}", step_text(before), step_text(own));
}

void check_repeats(AuditRun& run, const std::vector<std::size_t>& series, const std::string& share,
                   std::size_t& unknown) {
  std::optional<std::size_t> before;
  for (const std::size_t i : series) {
    if (!run.row(i).complete) continue;
    if (before && run.row(i).step() != run.row(*before).step()) {
      const Repeats answer = repeats(run.checkpoints[*before], run.checkpoints[i]);
      unknown += answer == Repeats::kUnknown;
      if (answer == Repeats::kYes) {
        run.checkpoints[i].row.same_as = run.row(*before).name;
        run.add(Finding::kContentUnchanged, Severity::kError,
                fmt::format("what trains is that of {} bit for bit{}, though the run went from {}",
                            printable(run.row(*before).name), share,
                            advance_text(run.row(*before), run.row(i))),
                run.row(i).name);
      }
    }
    before = i;
  }
}

// ---- ties ----

using Pair = std::pair<std::uint32_t, std::uint32_t>;

/// Whether two tensors of one checkpoint hold the same bytes; nullopt: not known.
std::optional<bool> are_equal(const TensorFact& a, const TensorFact& b) {
  const ContentKey &x = a.key, &y = b.key;
  if (a.numel != b.numel || a.rank != b.rank) return false;
  if (x.exact == 0 || y.exact == 0 || x.kind != y.kind || x.kind == KeyKind::kRecords)
    return std::nullopt;
  return x.exact == y.exact;
}

/// Matrices of one checkpoint whose bytes are equal: twins, not yet ties.
std::set<Pair> equal_pairs(const CheckpointFacts& facts) {
  constexpr std::size_t kMostEqual = 8;  // more are initialized alike
  std::map<std::uint64_t, std::vector<std::uint32_t>> by_key;
  for (const AuditPart& part : facts.parts)
    for (const TensorFact& fact : part.tensors)
      if (fact.use == TensorUse::kWeight && fact.rank > 1 && fact.key.exact != 0 &&
          fact.key.kind != KeyKind::kRecords)
        by_key[fact.key.exact].push_back(fact.id);
  std::set<Pair> pairs;
  for (auto& [key, ids] : by_key) {
    if (ids.size() > kMostEqual) continue;
    std::ranges::sort(ids);
    for (std::size_t a = 0; a < ids.size(); ++a)
      for (std::size_t b = a + 1; b < ids.size(); ++b) pairs.emplace(ids[a], ids[b]);
  }
  return pairs;
}

class TieChecker {
 public:
  explicit TieChecker(AuditRun& run) : run_(run) {}

  void check(const std::vector<std::size_t>& series) {
    std::map<Pair, std::string> tied;  // -> why
    std::set<Pair> equal_before;
    std::set<Pair> reported;
    Facts before;
    for (const std::size_t i : series) {
      const CheckpointFacts& own = run_.checkpoints[i];
      if (!own.row.complete) continue;
      Facts facts = own.by_id();
      std::set<Pair> one;
      for (const auto& [a, b] : own.ties) one.emplace(std::min(a, b), std::max(a, b));
      for (const auto& [pair, why] : tied)
        if (!one.contains(pair) && !reported.contains(pair) && differ(facts, pair)) {
          reported.insert(pair);
          run_.add(Finding::kTiesApart, Severity::kError,
                   fmt::format("differs from {}, with which it was {}",
                               printable(run_.names.name(pair.first)), why),
                   own.row.name, run_.names.name(pair.second));
        }
      for (const Pair& pair : one)
        tied.try_emplace(pair, "one tensor in " + printable(own.row.name));
      std::set<Pair> equal = equal_pairs(own);
      for (const Pair& pair : equal)
        if (equal_before.contains(pair) && moved(before, facts, pair))
          tied.try_emplace(pair, "equal while both trained, up to " + printable(own.row.name));
      equal_before = std::move(equal);
      before = std::move(facts);
      if (own.ties_embeddings) check_config(own, one);
    }
  }

 private:
  static bool differ(const Facts& facts, const Pair& pair) {
    const auto a = facts.find(pair.first), b = facts.find(pair.second);
    if (a == facts.end() || b == facts.end()) return false;
    return are_equal(*a->second, *b->second) == false;
  }

  static bool moved(const Facts& before, const Facts& facts, const Pair& pair) {
    const auto was = before.find(pair.first);
    return was != before.end() &&
           compare_content(was->second->key, facts.at(pair.first)->key) == ContentChange::kChanged;
  }

  /// The weight that one of these names is the end of.
  const TensorFact* named(const CheckpointFacts& own,
                          std::initializer_list<std::string_view> ends) const {
    for (const AuditPart& part : own.parts)
      for (const TensorFact& fact : part.tensors) {
        if (fact.use != TensorUse::kWeight || fact.rank != 2) continue;
        const std::string name = run_.names.name(fact.id);
        for (const std::string_view end : ends)
          if (name == end || name.ends_with("." + std::string(end))) return &fact;
      }
    return nullptr;
  }

  void check_config(const CheckpointFacts& own, const std::set<Pair>& one) {
    if (said_config_) return;
    const TensorFact* in =
        named(own, {"embed_tokens.weight", "wte.weight", "embed_in.weight",
                    "word_embeddings.weight", "tok_embeddings.weight", "shared.weight"});
    const TensorFact* out =
        named(own, {"lm_head.weight", "embed_out.weight", "output.weight", "output_layer.weight"});
    if (in == nullptr || out == nullptr || in->numel != out->numel) return;
    if (one.contains({std::min(in->id, out->id), std::max(in->id, out->id)})) return;
    const bool both_train = own.with_state.contains(in->id) && own.with_state.contains(out->id);
    const auto equal = are_equal(*in, *out);
    if (equal.value_or(true) && !both_train) return;
    said_config_ = true;
    run_.add(Finding::kTiedTrainedApart, Severity::kError,
             fmt::format("config.json says that it is tied to {}, and {}",
                         printable(run_.names.name(in->id)),
                         both_train ? "each has optimizer state of its own" : "the two differ"),
             own.row.name, run_.names.name(out->id));
  }

  AuditRun& run_;
  bool said_config_ = false;
};

}  // namespace

void check_content(AuditRun& run, const std::string& share) {
  std::size_t unknown = 0;
  for (const std::vector<std::size_t>& series : run.series) {
    check_repeats(run, series, share, unknown);
    TieChecker(run).check(series);
  }
  if (unknown > 0)
    run.notes.push_back({Finding::kNone, Severity::kInfo,
                         fmt::format("whether the content of {} checkpoint{} changed is not known "
                                     "from checksums: --deep reads it",
                                     unknown, unknown == 1 ? "" : "s"),
                         "", ""});
}

}  // namespace tessera
