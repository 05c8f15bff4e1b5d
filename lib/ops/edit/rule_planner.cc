#include "lib/ops/edit/rule_planner.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/layout/fused_axis.h>

#include <algorithm>
#include <charconv>
#include <limits>

namespace tessera {
namespace {

constexpr std::int64_t kMostStacked = std::int64_t{1} << 16;  // layers, experts

/// Indices of stacked dims, outermost first.
using Indices = std::vector<std::int64_t>;

/// A parameter that a rule names: which part, and where it goes in the dims that become stacked.
struct Member {
  Indices tight;
  std::size_t part = 0;
  auto operator<=>(const Member&) const = default;
};

/// One use of a rule: one layer's attention, say.
struct Instance {
  Captures captures;                      // without those that become stacked
  std::map<Member, std::string> members;  // FQNs of the source side
};

/// Where a piece of a part belongs: the same on both sides.
struct PartPlace {
  std::int64_t loose = 0;  // which index of the dims that come apart, row-major
  std::int64_t tight = 0;  // of those that become stacked
  int part = 0;
  auto operator<=>(const PartPlace&) const = default;
};

/// Indices [run.part_begin, + run.size) of a part along the axis, in tensor `tensor`.
struct PartSegment {
  PartPlace place;
  std::size_t tensor = 0;
  FusedRun run;
};

/// One side of one instance: its tensors and how the parts lie in them.
struct Arrangement {
  std::vector<std::string> fqns;
  std::vector<Shape> shapes;
  std::vector<PartSegment> segments;
};

std::int64_t product(const Indices& extents) {
  std::int64_t all = 1;
  for (const std::int64_t extent : extents) {
    const auto more = checked_mul(all, extent);
    if (!more) return std::numeric_limits<std::int64_t>::max();
    all = *more;
  }
  return all;
}

/// The `number`-th index of a row-major grid.
Indices index_of(std::int64_t number, const Indices& extents) {
  Indices index(extents.size());
  for (std::size_t d = extents.size(); d-- > 0;) {
    index[d] = number % extents[d];
    number /= extents[d];
  }
  return index;
}

std::int64_t number_of(const Indices& index, const Indices& extents) {
  std::int64_t number = 0;
  for (std::size_t d = 0; d < extents.size(); ++d) number = number * extents[d] + index[d];
  return number;
}

class RulePlanner {
 public:
  RulePlanner(const TensorRule& rule, const RuleSide& from, const RuleSide& to,
              const Matchers& matchers, RulePlan& plan)
      : rule_(rule),
        from_(from),
        to_(to),
        source_(matchers.at(&from)),
        target_(matchers.at(&to)),
        plan_(plan) {
    if (from.fused && to.fused && from.axis != to.axis)
      fail(Code::kUnsupported, fmt::format("\"{}\" and \"{}\" are fused along different dims",
                                           from.names[0], to.names[0]));
    const auto has = [](const RuleSide& side, const std::string& capture) {
      return std::ranges::find(side.stacks, capture) != side.stacks.end();
    };
    for (const std::string& capture : to.stacks)
      if (!has(from, capture)) tight_.push_back(capture);
    for (const std::string& capture : from.stacks)
      if (!has(to, capture)) loose_.push_back(capture);
  }

  void plan() {
    for (const auto& [fqn, shape] : plan_.shapes) {
      auto found = source_.match(fqn, plan_.shapes);
      if (!found) continue;
      if (!plan_.taken.insert(fqn).second)
        fail(Code::kInvalidArgument, fmt::format("two rules name \"{}\", one of them as \"{}\"",
                                                 printable(fqn), printable(from_.names[0])));
      for (const auto& [capture, value] : found->captures) plan_.captured[capture].insert(value);
      if (found->copy) {
        take_copy(fqn, *found);
      } else {
        add_member(fqn, found->part, std::move(found->captures));
      }
    }
    for (const auto& [key, instance] : instances_) plan_instance(instance);
  }

 private:
  /// A copy goes where the target has copies, too; else it is one with what it is a copy of.
  void take_copy(const std::string& fqn, const SideMatch& found) {
    if (*found.copy < to_.copies.size()) {
      plan_.out.renames.emplace_back(fqn, target_.copies()[*found.copy].fill(found.captures));
      note_vocabulary({plan_.out.renames.back().second});
      return;
    }
    const std::string kept = source_.names()[0].fill(found.captures);
    if (!plan_.shapes.contains(kept))
      fail(Code::kInvalidArgument,
           fmt::format("\"{}\" is a copy of \"{}\" by the rules, which is missing", printable(fqn),
                       printable(kept)));
    plan_.out.copies_dropped.emplace_back(fqn, kept);
  }

  void add_member(const std::string& fqn, std::size_t part, Captures captures) {
    Member member{{}, part};
    for (const std::string& stacked : tight_) {
      const auto index = captures.find(stacked);
      if (index == captures.end() || !is_decimal(index->second)) {
        fail(Code::kInvalidArgument, fmt::format("\"{}\" has no number for {{{}}} to be stacked by",
                                                 printable(fqn), stacked));
      }
      std::int64_t number = 0;
      const char* end = index->second.data() + index->second.size();
      if (std::from_chars(index->second.data(), end, number).ec != std::errc() ||
          number >= kMostStacked)
        fail(Code::kInvalidArgument, fmt::format("\"{}\" would be stacked as one of {} or more",
                                                 printable(fqn), kMostStacked));
      member.tight.push_back(number);
      captures.erase(index);
    }
    Instance& instance = instances_[captures];
    instance.captures = captures;
    const auto [slot, fresh] = instance.members.try_emplace(member, fqn);
    if (fresh) return;
    fail(Code::kInvalidArgument, fmt::format("\"{}\" and \"{}\" are the same part by the rules",
                                             printable(slot->second), printable(fqn)));
  }

  void plan_instance(const Instance& instance) {
    turned_ =
        from_.transposed &&
        !source_.stands_upright(captures_of(*instance.members.begin(), instance), plan_.shapes);
    if (arranged_alike()) return rename(instance);
    const Indices tight = check_complete(instance);
    const Arrangement source = arrange_source(instance, tight);
    const Arrangement target = arrange_target(instance, source, tight);
    ParameterEdit& edit = plan_.out.edits.emplace_back();
    for (std::size_t i = 0; i < source.fqns.size(); ++i)
      edit.olds.push_back({source.fqns[i], source.shapes[i]});
    for (std::size_t i = 0; i < target.fqns.size(); ++i)
      edit.made.push_back({target.fqns[i], target.shapes[i], {}});
    std::map<PartPlace, std::vector<const PartSegment*>> stored;
    for (const PartSegment& segment : source.segments) stored[segment.place].push_back(&segment);
    for (const PartSegment& to : target.segments) {
      const auto found = stored.find(to.place);
      if (found == stored.end()) continue;
      for (const PartSegment* from : found->second) connect(source, *from, target, to, tight, edit);
    }
    note_vocabulary(target.fqns);
  }

  /// What the names of a member capture.
  Captures captures_of(const std::pair<const Member, std::string>& member,
                       const Instance& instance) const {
    Captures captures = instance.captures;
    for (std::size_t d = 0; d < tight_.size(); ++d)
      captures[tight_[d]] = fmt::format("{}", member.first.tight[d]);
    return captures;
  }

  bool arranged_alike() const {
    return from_.stacks == to_.stacks && turned_ == to_.transposed && from_.fused == to_.fused &&
           (!from_.fused || (from_.axis == to_.axis && from_.ratios == to_.ratios &&
                             from_.groups == to_.groups && from_.interleaved == to_.interleaved));
  }

  void note_vocabulary(const std::vector<std::string>& fqns) {
    auto& names = plan_.out.vocabulary;
    if (rule_.vocabulary) names.insert(names.end(), fqns.begin(), fqns.end());
  }

  void rename(const Instance& instance) {
    for (const auto& [member, fqn] : instance.members) {
      const std::string fresh = target_.names()[member.part].fill(instance.captures);
      plan_.out.renames.emplace_back(fqn, fresh);
      note_vocabulary({fresh});
    }
  }

  /// The extents of the dims that become stacked; each place of them must have every part.
  Indices check_complete(const Instance& instance) const {
    Indices extents(tight_.size(), 0);
    for (const auto& [member, fqn] : instance.members)
      for (std::size_t d = 0; d < extents.size(); ++d)
        extents[d] = std::max(extents[d], member.tight[d] + 1);
    const std::size_t parts = from_.fused ? 1 : rule_.parts.size();
    const std::string& example = instance.members.begin()->second;
    const auto have = static_cast<std::int64_t>(instance.members.size());
    // Not the product: an index out of a name may be huge.
    const std::int64_t places = std::min(product(extents), have + 1);
    for (std::int64_t place = 0; place < places; ++place) {
      const Indices index = index_of(place, extents);
      for (std::size_t part = 0; part < parts; ++part) {
        if (instance.members.contains({index, part})) continue;
        Captures captures = instance.captures;
        for (std::size_t d = 0; d < index.size(); ++d)
          captures[tight_[d]] = fmt::format("{}", index[d]);
        fail(Code::kInvalidArgument,
             fmt::format("\"{}\" is there, \"{}\" is missing: they belong together by the rules",
                         printable(example), source_.names()[part].fill(captures)));
      }
    }
    return extents;
  }

  FusedAxis fused_axis(const RuleSide& side, const std::string& fqn) {
    FusedAxis axis;
    axis.dim = side.axis;
    axis.names = rule_.parts;
    axis.ratios.assign(rule_.parts.size(), 1);
    for (std::size_t p = 0; p < side.ratios.size(); ++p)
      axis.ratios[p] = plan_.numbers.evaluate(side.ratios[p], fqn);
    axis.groups = side.interleaved ? 0 : plan_.numbers.evaluate(side.groups, fqn);
    return axis;
  }

  [[noreturn]] void refuse_rank(const std::string& fqn, const Shape& shape, int wanted) const {
    fail(Code::kInvalidArgument, fmt::format("\"{}\" {} should have {} or more dims by the rules",
                                             printable(fqn), shape.to_string(), wanted));
  }

  static int stacked(const RuleSide& side) { return static_cast<int>(side.stacks.size()); }

  /// The dim of a stored tensor of `rank` dims that runs along dim `dim` of its parts.
  static int stored_dim(const RuleSide& side, bool turned, int rank, int dim) {
    const int dims = rank - stacked(side);
    return stacked(side) + (turned && dim >= dims - 2 ? 2 * dims - 3 - dim : dim);
  }
  int source_dim(const Shape& shape, int dim) const {
    return stored_dim(from_, turned_, shape.rank(), dim);
  }
  int target_dim(int rank, int dim) const { return stored_dim(to_, to_.transposed, rank, dim); }

  /// How many indices dim `capture` of a stored tensor has.
  static std::int64_t stacked_extent(const RuleSide& side, const Shape& shape,
                                     const std::string& capture) {
    const auto at = std::ranges::find(side.stacks, capture) - side.stacks.begin();
    return shape[static_cast<int>(at)];
  }

  Arrangement arrange_source(const Instance& instance, const Indices& tight) {
    Arrangement out;
    for (const auto& [member, fqn] : instance.members) {
      const std::size_t tensor = out.fqns.size();
      const Shape& shape = plan_.shapes.at(fqn);
      const int least = stacked(from_) + (turned_ || to_.transposed ? 2 : 0);
      if (shape.rank() < least) refuse_rank(fqn, shape, least);
      out.fqns.push_back(fqn);
      out.shapes.push_back(shape);
      const std::int64_t rows = rows_of(fqn, shape);
      std::vector<FusedRun> runs{{static_cast<int>(member.part), 0, 0, 1, rows}};
      if (from_.fused) {
        const FusedAxis fused = fused_axis(from_, fqn);
        runs = in_tensor(fqn, [&] { return fused.runs(rows); });
      }
      const std::int64_t depth = product(loose_extents(shape));
      if (depth > kMostStacked)
        fail(Code::kInvalidArgument, fmt::format("\"{}\" {} would come apart into {} tensors",
                                                 printable(fqn), shape.to_string(), depth));
      for (int d = 0; d < stacked(from_); ++d)
        if (shape[d] != out.shapes[0][d]) refuse_shape(fqn, shape);
      const std::int64_t place = number_of(member.tight, tight);
      for (std::int64_t loose = 0; loose < depth; ++loose)
        for (const FusedRun& run : runs)
          out.segments.push_back({{loose, place, run.part}, tensor, run});
    }
    return out;
  }

  [[noreturn]] void refuse_shape(const std::string& fqn, const Shape& shape) const {
    fail(Code::kInvalidArgument,
         fmt::format("\"{}\" {} has another shape than the others it is stacked with",
                     printable(fqn), shape.to_string()));
  }

  Indices loose_extents(const Shape& shape) const {
    Indices extents;
    for (const std::string& capture : loose_)
      extents.push_back(stacked_extent(from_, shape, capture));
    return extents;
  }

  /// Rows along the axis that matters: the fused side's. Plain tensors that are only stacked need
  /// none, whatever their rank.
  std::int64_t rows_of(const std::string& fqn, const Shape& shape) const {
    const int dims = shape.rank() - stacked(from_);
    if (!from_.fused && !to_.fused && dims <= 0) return 1;
    if (axis() >= dims) refuse_rank(fqn, shape, stacked(from_) + axis() + 1);
    return shape[source_dim(shape, axis())];
  }

  int axis() const { return from_.fused || !to_.fused ? from_.axis : to_.axis; }

  /// A part's shape: the stored one without the stacked dims, as it stands by itself, with `rows`
  /// along the axis.
  Shape part_shape(const Shape& shape, std::int64_t rows) const {
    std::vector<std::int64_t> extents;
    for (int d = 0; d < shape.rank() - stacked(from_); ++d)
      extents.push_back(d == axis() ? rows : shape[source_dim(shape, d)]);
    return Shape(std::move(extents));
  }

  Arrangement arrange_target(const Instance& instance, const Arrangement& source,
                             const Indices& tight) {
    // Every part's shape, the same at every stacked index.
    std::vector<std::optional<Shape>> part_shapes(rule_.parts.size());
    std::vector<std::int64_t> rows(rule_.parts.size());
    for (const PartSegment& segment : source.segments)
      if (segment.place.loose == 0 && segment.place.tight == 0)
        rows[static_cast<std::size_t>(segment.run.part)] += segment.run.size;
    for (const PartSegment& segment : source.segments) {
      const auto part = static_cast<std::size_t>(segment.run.part);
      const Shape shape = part_shape(source.shapes[segment.tensor], rows[part]);
      const bool own_rows = from_.fused ? source.shapes[segment.tensor] == source.shapes[0]
                                        : segment.run.size == rows[part];
      if (!part_shapes[part]) part_shapes[part] = shape;
      if (*part_shapes[part] != shape || !own_rows)
        refuse_shape(source.fqns[segment.tensor], source.shapes[segment.tensor]);
    }
    Arrangement out;
    const Indices loose = loose_extents(source.shapes[0]);
    for (std::int64_t place = 0; place < product(loose); ++place) {
      Captures captures = instance.captures;
      const Indices index = index_of(place, loose);
      for (std::size_t d = 0; d < index.size(); ++d)
        captures[loose_[d]] = fmt::format("{}", index[d]);
      add_target(captures, source, part_shapes, rows, tight, place, out);
    }
    return out;
  }

  /// A part, or what is fused of them, with the dims that the target stacks.
  Shape target_shape(const Shape& part, const Shape& source, const Indices& tight) const {
    std::vector<std::int64_t> extents;
    for (const std::string& capture : to_.stacks) {
      const auto fresh = std::ranges::find(tight_, capture);
      extents.push_back(fresh == tight_.end()
                            ? stacked_extent(from_, source, capture)
                            : tight[static_cast<std::size_t>(fresh - tight_.begin())]);
    }
    const int rank = part.rank() + stacked(to_);
    extents.resize(static_cast<std::size_t>(rank));
    for (int d = 0; d < part.rank(); ++d)
      extents[static_cast<std::size_t>(target_dim(rank, d))] = part[d];
    return Shape(std::move(extents));
  }

  /// The tensors of one index of the dims that come apart.
  void add_target(const Captures& captures, const Arrangement& source,
                  const std::vector<std::optional<Shape>>& part_shapes,
                  const std::vector<std::int64_t>& rows, const Indices& tight, std::int64_t loose,
                  Arrangement& out) {
    const auto add = [&](std::size_t name, const Shape& part, const std::vector<FusedRun>& runs) {
      const std::size_t tensor = out.fqns.size();
      out.fqns.push_back(target_.names()[name].fill(captures));
      out.shapes.push_back(target_shape(part, source.shapes[0], tight));
      for (std::int64_t place = 0; place < product(tight); ++place)
        for (const FusedRun& run : runs)
          out.segments.push_back({{loose, place, run.part}, tensor, run});
    };
    if (!to_.fused) {
      for (std::size_t p = 0; p < to_.names.size(); ++p)
        add(p, *part_shapes[p], {{static_cast<int>(p), 0, 0, 1, rows[p]}});
      return;
    }
    std::int64_t total = 0;
    for (const std::int64_t r : rows) total += r;
    const FusedAxis fused = fused_axis(to_, source.fqns[0]);
    check_parts(fused, total, rows, part_shapes, source);
    Shape shape = *part_shapes[0];
    shape[axis()] = total;
    add(0, shape, fused.runs(total));
  }

  /// Parts that go into one tensor: rows as the ratios say, all else alike.
  void check_parts(const FusedAxis& fused, std::int64_t total,
                   const std::vector<std::int64_t>& rows,
                   const std::vector<std::optional<Shape>>& part_shapes,
                   const Arrangement& source) const {
    const std::string fqn = printable(source.fqns[0]);
    for (std::size_t p = 0; p < rows.size(); ++p) {
      Shape alike = *part_shapes[p];
      if (axis() >= alike.rank()) refuse_rank(fqn, alike, axis() + 1);
      alike[axis()] = (*part_shapes[0])[axis()];
      const bool same = alike == *part_shapes[0];
      std::int64_t wanted = -1;
      try {
        wanted = fused.part_extent(total, static_cast<int>(p));
      } catch (const Error&) {  // said below, with the parts' own numbers
      }
      if (same && wanted == rows[p]) continue;
      std::vector<std::string> have;
      for (std::size_t q = 0; q < rows.size(); ++q)
        have.push_back(fmt::format("{} {}", rule_.parts[q], part_shapes[q]->to_string()));
      fail(Code::kInvalidArgument,
           fmt::format("{} of \"{}\" do not divide into {} groups of {} units",
                       fmt::join(have, ", "), fqn, fused.groups, fmt::join(fused.ratios, "+")),
           "check the numbers of heads and groups: --rules NAME,heads=N,groups=N");
    }
  }

  /// What both segments hold of one part becomes a piece of the target tensor.
  void connect(const Arrangement& source, const PartSegment& from, const Arrangement& target,
               const PartSegment& to, const Indices& tight, ParameterEdit& edit) const {
    const std::int64_t begin = std::max(from.run.part_begin, to.run.part_begin);
    const std::int64_t end =
        std::min(from.run.part_begin + from.run.size, to.run.part_begin + to.run.size);
    if (begin >= end) return;
    const Shape& shape = source.shapes[from.tensor];
    const int to_rank = target.shapes[to.tensor].rank();
    TensorPiece piece;
    piece.source = static_cast<std::uint32_t>(from.tensor);
    piece.box = Box::whole(shape);
    piece.origin.assign(static_cast<std::size_t>(to_rank), 0);
    if (axis() < shape.rank() - stacked(from_)) {
      const auto d = static_cast<std::size_t>(source_dim(shape, axis()));
      piece.box.origin[d] =
          from.run.fused_begin + (begin - from.run.part_begin) * from.run.fused_step;
      piece.box.shape[static_cast<int>(d)] = end - begin;
      set_step(piece.steps, shape.rank(), d, from.run.fused_step);
      const auto t = static_cast<std::size_t>(target_dim(to_rank, axis()));
      piece.origin[t] = to.run.fused_begin + (begin - to.run.part_begin) * to.run.fused_step;
      set_step(piece.to_steps, to_rank, t, to.run.fused_step);
    }
    place_dims(piece, from, to, shape, to_rank, tight);
    edit.made[to.tensor].pieces.push_back(std::move(piece));
  }

  static void set_step(std::vector<std::int64_t>& steps, int rank, std::size_t dim,
                       std::int64_t step) {
    if (step == 1) return;
    steps.assign(static_cast<std::size_t>(rank), 1);
    steps[dim] = step;
  }

  /// Which dim of the source runs along which of the target; one index of those that only one side
  /// stacks.
  void place_dims(TensorPiece& piece, const PartSegment& from, const PartSegment& to,
                  const Shape& shape, int to_rank, const Indices& tight) const {
    const Indices apart = index_of(from.place.loose, loose_extents(shape));
    for (std::size_t d = 0; d < loose_.size(); ++d) {
      const auto at = std::ranges::find(from_.stacks, loose_[d]) - from_.stacks.begin();
      piece.box.origin[static_cast<std::size_t>(at)] = apart[d];
      piece.box.shape[static_cast<int>(at)] = 1;
    }
    piece.dims.assign(static_cast<std::size_t>(to_rank), -1);
    const Indices together = index_of(to.place.tight, tight);
    for (std::size_t d = 0; d < to_.stacks.size(); ++d) {
      const auto fresh = std::ranges::find(tight_, to_.stacks[d]);
      if (fresh != tight_.end()) {
        piece.origin[d] = together[static_cast<std::size_t>(fresh - tight_.begin())];
        continue;
      }
      const auto at = std::ranges::find(from_.stacks, to_.stacks[d]) - from_.stacks.begin();
      piece.dims[d] = static_cast<int>(at);
    }
    for (int d = 0; d < shape.rank() - stacked(from_); ++d)
      piece.dims[static_cast<std::size_t>(target_dim(to_rank, d))] = source_dim(shape, d);
    bool same = to_rank == shape.rank();
    for (std::size_t d = 0; same && d < piece.dims.size(); ++d)
      same = piece.dims[d] == static_cast<int>(d);
    if (same) piece.dims.clear();
  }

  const TensorRule& rule_;
  const RuleSide& from_;
  const RuleSide& to_;
  const SideMatcher& source_;
  const SideMatcher& target_;
  RulePlan& plan_;
  bool turned_ = false;             // the source's parts, in the instance at hand
  std::vector<std::string> tight_;  // captures that become stacked
  std::vector<std::string> loose_;  // captures whose dims come apart
  std::map<Captures, Instance> instances_;
};

}  // namespace

void plan_rule(const TensorRule& rule, const RuleSide& from, const RuleSide& to,
               const Matchers& matchers, RulePlan& plan) {
  RulePlanner(rule, from, to, matchers, plan).plan();
}

}  // namespace tessera
