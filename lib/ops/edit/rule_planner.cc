#include "lib/ops/edit/rule_planner.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/layout/fused_axis.h>

#include <algorithm>
#include <charconv>

namespace tessera {
namespace {

constexpr std::int64_t kMostStacked = std::int64_t{1} << 16;  // layers, experts

/// A parameter that a rule names: which part, and which index of the stacked capture.
struct Member {
  std::int64_t stack = 0;
  std::size_t part = 0;
  auto operator<=>(const Member&) const = default;
};

/// One use of a rule: one layer's attention, say.
struct Instance {
  Captures captures;                      // without the stacked one
  std::map<Member, std::string> members;  // FQNs of the source side
};

/// Part `part` of stack index `stack`, indices [part_begin, + size) of its axis, in tensor
/// `tensor`.
struct StackSegment {
  std::int64_t stack = 0;
  std::size_t tensor = 0;
  FusedRun run;
};

/// One side of one instance: its tensors and how the parts lie in them.
struct Arrangement {
  std::vector<std::string> fqns;
  std::vector<Shape> shapes;
  std::vector<StackSegment> segments;
};

class RulePlanner {
 public:
  RulePlanner(const TensorRule& rule, const RuleSide& from, const RuleSide& to,
              const std::map<std::string, Shape>& shapes, RuleNumbers& numbers, RulesOutcome& out)
      : rule_(rule), from_(from), to_(to), shapes_(shapes), numbers_(numbers), out_(out) {
    const bool turns = from.fused && to.fused && from.axis != to.axis;
    const bool restacks = !from.stack.empty() && !to.stack.empty() && from.stack != to.stack;
    if (!turns && !restacks) return;
    fail(Code::kUnsupported, fmt::format("\"{}\" and \"{}\" are {} different dims", from.names[0],
                                         to.names[0], turns ? "fused along" : "stacked over"));
  }

  /// Marks the FQNs it takes in `taken`.
  void plan(const SideMatcher& matcher, std::set<std::string>& taken) {
    for (const auto& [fqn, shape] : shapes_) {
      auto found = matcher.match(fqn);
      if (!found) continue;
      if (!taken.insert(fqn).second)
        fail(Code::kInvalidArgument, fmt::format("two rules name \"{}\", one of them as \"{}\"",
                                                 printable(fqn), printable(from_.names[0])));
      add_member(fqn, found->first, std::move(found->second));
    }
    for (const auto& [key, instance] : instances_) plan_instance(instance);
  }

 private:
  bool stacks() const { return !to_.stack.empty() && from_.stack != to_.stack; }
  bool unstacks() const { return !from_.stack.empty() && from_.stack != to_.stack; }

  void add_member(const std::string& fqn, std::size_t part, Captures captures) {
    Member member{0, part};
    if (stacks()) {
      const auto index = captures.find(to_.stack);
      if (index == captures.end() || !is_decimal(index->second)) {
        fail(Code::kInvalidArgument, fmt::format("\"{}\" has no number for {{{}}} to be stacked by",
                                                 printable(fqn), to_.stack));
      }
      std::from_chars(index->second.data(), index->second.data() + index->second.size(),
                      member.stack);
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
    if (!stacks() && !unstacks() && arranged_alike()) return rename(instance);
    const std::int64_t count = check_complete(instance);
    const Arrangement source = arrange_source(instance);
    const std::int64_t depth = unstacks() ? source.shapes[0][0] : count;
    const Arrangement target = arrange_target(instance, source, depth);
    ParameterEdit& edit = out_.edits.emplace_back();
    for (std::size_t i = 0; i < source.fqns.size(); ++i)
      edit.olds.push_back({source.fqns[i], source.shapes[i]});
    for (std::size_t i = 0; i < target.fqns.size(); ++i)
      edit.made.push_back({target.fqns[i], target.shapes[i], {}});
    for (const StackSegment& to : target.segments)
      for (const StackSegment& from : source.segments) connect(source, from, target, to, edit);
    note_vocabulary(target.fqns);
  }

  bool arranged_alike() const {
    return from_.fused == to_.fused &&
           (!from_.fused || (from_.axis == to_.axis && from_.ratios == to_.ratios &&
                             from_.groups == to_.groups && from_.interleaved == to_.interleaved));
  }

  void note_vocabulary(const std::vector<std::string>& fqns) {
    if (rule_.vocabulary) out_.vocabulary.insert(out_.vocabulary.end(), fqns.begin(), fqns.end());
  }

  void rename(const Instance& instance) {
    for (const auto& [member, fqn] : instance.members) {
      const std::string fresh = NamePattern(to_.names[member.part]).fill(instance.captures);
      out_.renames.emplace_back(fqn, fresh);
      note_vocabulary({fresh});
    }
  }

  /// How many stack indices there are (1 without stacking); each must have every part.
  std::int64_t check_complete(const Instance& instance) const {
    const std::int64_t count = instance.members.rbegin()->first.stack + 1;
    const std::size_t parts = from_.fused ? 1 : rule_.parts.size();
    const std::string& example = instance.members.begin()->second;
    const auto have = static_cast<std::int64_t>(instance.members.size());
    // Not the product: an index out of a name may be huge.
    for (std::int64_t stack = 0; stack < std::min(count, have + 1); ++stack) {
      for (std::size_t part = 0; part < parts; ++part) {
        if (instance.members.contains({stack, part})) continue;
        Captures captures = instance.captures;
        if (stacks()) captures[to_.stack] = fmt::format("{}", stack);
        fail(Code::kInvalidArgument,
             fmt::format("\"{}\" is there, \"{}\" is missing: they belong together by the rules",
                         printable(example), NamePattern(from_.names[part]).fill(captures)));
      }
    }
    return count;
  }

  FusedAxis fused_axis(const RuleSide& side, const std::string& fqn) {
    FusedAxis axis;
    axis.dim = side.axis;
    axis.names = rule_.parts;
    axis.ratios.assign(rule_.parts.size(), 1);
    for (std::size_t p = 0; p < side.ratios.size(); ++p)
      axis.ratios[p] = numbers_.evaluate(side.ratios[p], fqn);
    axis.groups = side.interleaved ? 0 : numbers_.evaluate(side.groups, fqn);
    return axis;
  }

  [[noreturn]] void refuse_rank(const std::string& fqn, const Shape& shape, int wanted) const {
    fail(Code::kInvalidArgument, fmt::format("\"{}\" {} should have {} or more dims by the rules",
                                             printable(fqn), shape.to_string(), wanted));
  }

  /// The extent of `axis` in a tensor of this side.
  std::int64_t extent(const RuleSide& side, bool stacked, const std::string& fqn,
                      const Shape& shape) const {
    const int dim = side.axis + (stacked ? 1 : 0);
    if (dim >= shape.rank()) refuse_rank(fqn, shape, dim + 1);
    return shape[dim];
  }

  Arrangement arrange_source(const Instance& instance) {
    Arrangement out;
    const bool stacked = !from_.stack.empty();
    for (const auto& [member, fqn] : instance.members) {
      const std::size_t tensor = out.fqns.size();
      const Shape& shape = shapes_.at(fqn);
      out.fqns.push_back(fqn);
      out.shapes.push_back(shape);
      const std::int64_t rows = whole_extent(from_, to_, stacked, fqn, shape);
      std::vector<FusedRun> runs{{static_cast<int>(member.part), 0, 0, 1, rows}};
      if (from_.fused) {
        const FusedAxis fused = fused_axis(from_, fqn);
        runs = in_tensor(fqn, [&] { return fused.runs(rows); });
      }
      const std::int64_t depth = unstacks() ? shape[0] : 1;
      if (depth > kMostStacked)
        fail(Code::kInvalidArgument, fmt::format("\"{}\" {} would come apart into {} tensors",
                                                 printable(fqn), shape.to_string(), depth));
      for (std::int64_t stack = 0; stack < depth; ++stack)
        for (const FusedRun& run : runs)
          out.segments.push_back({unstacks() ? stack : member.stack, tensor, run});
    }
    return out;
  }

  /// Rows along the axis that matters: the fused side's. Plain tensors that are only stacked need
  /// none, whatever their rank.
  std::int64_t whole_extent(const RuleSide& side, const RuleSide& other, bool stacked,
                            const std::string& fqn, const Shape& shape) const {
    if (stacked && shape.rank() == 0) refuse_rank(fqn, shape, 1);
    if (!side.fused && !other.fused && shape.rank() <= (stacked ? 1 : 0)) return 1;
    const RuleSide& axis = side.fused || !other.fused ? side : other;
    return extent(axis, stacked, fqn, shape);
  }

  int axis() const { return from_.fused || !to_.fused ? from_.axis : to_.axis; }

  /// A part's shape: the tensor's without the stacked dim, with `rows` along the axis.
  Shape part_shape(const Shape& shape, bool stacked, std::int64_t rows) const {
    std::vector<std::int64_t> extents(shape.extents().begin() + (stacked ? 1 : 0),
                                      shape.extents().end());
    if (static_cast<std::size_t>(axis()) < extents.size())
      extents[static_cast<std::size_t>(axis())] = rows;
    return Shape(std::move(extents));
  }

  Arrangement arrange_target(const Instance& instance, const Arrangement& source,
                             std::int64_t depth) {
    // Every part's shape, the same at every stack index.
    std::vector<std::optional<Shape>> part_shapes(rule_.parts.size());
    std::vector<std::int64_t> rows(rule_.parts.size());
    for (const StackSegment& segment : source.segments)
      if (segment.stack == 0) rows[static_cast<std::size_t>(segment.run.part)] += segment.run.size;
    for (const StackSegment& segment : source.segments) {
      const auto part = static_cast<std::size_t>(segment.run.part);
      const Shape shape =
          part_shape(source.shapes[segment.tensor], !from_.stack.empty(), rows[part]);
      const bool own_rows = from_.fused ? source.shapes[segment.tensor] == source.shapes[0]
                                        : segment.run.size == rows[part];
      if (!part_shapes[part]) part_shapes[part] = shape;
      if (*part_shapes[part] == shape && own_rows) continue;
      fail(Code::kInvalidArgument,
           fmt::format("\"{}\" {} has another shape than the others it is stacked with",
                       printable(source.fqns[segment.tensor]),
                       source.shapes[segment.tensor].to_string()));
    }
    Arrangement out;
    for (std::int64_t stack = 0; stack < (to_.stack.empty() ? depth : 1); ++stack)
      add_target(instance, source, part_shapes, rows, depth, stack, out);
    return out;
  }

  /// The tensors of one stack index, or, stacked, of all.
  void add_target(const Instance& instance, const Arrangement& source,
                  const std::vector<std::optional<Shape>>& part_shapes,
                  const std::vector<std::int64_t>& rows, std::int64_t depth, std::int64_t stack,
                  Arrangement& out) {
    Captures captures = instance.captures;
    if (unstacks()) captures[from_.stack] = fmt::format("{}", stack);
    const bool stacked = !to_.stack.empty();
    const std::int64_t tall =
        from_.stack == to_.stack && stacked ? source.shapes[0][0] : depth;  // stacked on both sides
    const auto add = [&](const std::string& pattern, Shape shape, std::vector<FusedRun> runs) {
      if (stacked) {
        std::vector<std::int64_t> extents(shape.extents().begin(), shape.extents().end());
        extents.insert(extents.begin(), tall);
        shape = Shape(std::move(extents));
      }
      out.fqns.push_back(NamePattern(pattern).fill(captures));
      out.shapes.push_back(std::move(shape));
      const bool one_run = !stacks();
      for (std::int64_t s = one_run ? stack : 0; s < (one_run ? stack + 1 : depth); ++s)
        for (const FusedRun& run : runs) out.segments.push_back({s, out.fqns.size() - 1, run});
    };
    if (!to_.fused) {
      for (std::size_t p = 0; p < to_.names.size(); ++p)
        add(to_.names[p], *part_shapes[p], {{static_cast<int>(p), 0, 0, 1, rows[p]}});
      return;
    }
    std::int64_t total = 0;
    for (const std::int64_t r : rows) total += r;
    const FusedAxis fused = fused_axis(to_, source.fqns[0]);
    check_parts(fused, total, rows, part_shapes, source);
    Shape shape = *part_shapes[0];
    shape[axis()] = total;
    add(to_.names[0], std::move(shape), fused.runs(total));
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

  /// What both segments hold of one part becomes pieces of the target tensor.
  void connect(const Arrangement& source, const StackSegment& from, const Arrangement& target,
               const StackSegment& to, ParameterEdit& edit) const {
    const bool both_stacked = !from_.stack.empty() && from_.stack == to_.stack;
    if (from.run.part != to.run.part || (!both_stacked && from.stack != to.stack)) return;
    const std::int64_t begin = std::max(from.run.part_begin, to.run.part_begin);
    const std::int64_t end =
        std::min(from.run.part_begin + from.run.size, to.run.part_begin + to.run.size);
    if (begin >= end) return;
    const Shape& shape = source.shapes[from.tensor];
    const bool from_stacked = !from_.stack.empty();
    const bool to_stacked = !to_.stack.empty();
    const int dim = axis() + (from_stacked ? 1 : 0);
    const bool cuts = dim < shape.rank();
    // Rows that alternate in the target go one by one.
    const std::int64_t count = to.run.fused_step == 1 || !cuts ? end - begin : 1;
    for (std::int64_t at = begin; at < end; at += count) {
      TensorPiece piece;
      piece.source = static_cast<std::uint32_t>(from.tensor);
      piece.box = Box::whole(shape);
      piece.steps.assign(static_cast<std::size_t>(shape.rank()), 1);
      piece.origin.assign(static_cast<std::size_t>(target.shapes[to.tensor].rank()), 0);
      if (cuts) {
        const auto d = static_cast<std::size_t>(dim);
        piece.box.origin[d] =
            from.run.fused_begin + (at - from.run.part_begin) * from.run.fused_step;
        piece.box.shape[dim] = count;
        piece.steps[d] = from.run.fused_step;
        piece.origin[static_cast<std::size_t>(axis() + (to_stacked ? 1 : 0))] =
            to.run.fused_begin + (at - to.run.part_begin) * to.run.fused_step;
      }
      place_stack(piece, from, to, shape.rank(), both_stacked, from_stacked, to_stacked);
      edit.made[to.tensor].pieces.push_back(std::move(piece));
    }
  }

  static void place_stack(TensorPiece& piece, const StackSegment& from, const StackSegment& to,
                          int rank, bool both_stacked, bool from_stacked, bool to_stacked) {
    if (both_stacked || (!from_stacked && !to_stacked)) return;
    if (from_stacked) {
      piece.box.origin[0] = from.stack;
      piece.box.shape[0] = 1;
    }
    if (to_stacked) {
      piece.dims.push_back(-1);
      piece.origin[0] = to.stack;
    }
    for (int d = from_stacked ? 1 : 0; d < rank; ++d) piece.dims.push_back(d);
  }

  const TensorRule& rule_;
  const RuleSide& from_;
  const RuleSide& to_;
  const std::map<std::string, Shape>& shapes_;
  RuleNumbers& numbers_;
  RulesOutcome& out_;
  std::map<Captures, Instance> instances_;
};

}  // namespace

void plan_rule(const TensorRule& rule, const RuleSide& from, const RuleSide& to,
               const SideMatcher& matcher, const std::map<std::string, Shape>& shapes,
               RuleNumbers& numbers, std::set<std::string>& taken, RulesOutcome& out) {
  RulePlanner(rule, from, to, shapes, numbers, out).plan(matcher, taken);
}

}  // namespace tessera
