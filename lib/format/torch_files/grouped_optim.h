#pragma once
// GroupedOptimizer: an optimizer's state by parameter, for formats that keep the state of several
// parameters in one flat buffer (FairScale, DeepSpeed ZeRO, FSDP1). A buffer has room for one of
// each leaf, so whether parameters can share one is decided here, once:
//
//   leaf      form       in a shared buffer
//   exp_avg   kSharded   end to end, as the parameters are: all of one dtype
//   step      kScalar    once: the same in all, by where it is stored or by its value
//   factors   kTensor    "
//   ...       kList      "  tensors, one for each rank of the source
//   lr        kValue     "
//
//   a: exp_avg f4, step 3      a and b may share one (the order of leaves does not matter);
//   b: step 3, exp_avg f4      c may not: only one of them has "momentum"
//   c: momentum f4, step 3
//
// ... and one group lists them. Not thread-safe; no tensor byte is read.
#include <tessera/state/manifest.h>
#include <tessera/state/value.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

struct GroupedLeaf {
  enum class Form : std::uint8_t {
    kSharded,  // a tensor of its parameter's shape
    kScalar,   // a tensor without dims
    kTensor,   // a tensor of another shape
    kList,     // tensors
    kValue,
  };
  std::string name;
  Form form = Form::kValue;
  std::vector<std::uint32_t> tensors;  // of the manifest; none for kValue
  Value value = {};                    // as stored; none for a list that was flattened
};
using GroupedState = std::vector<GroupedLeaf>;

struct OptimizerGroup {
  ValueDict options;                 // everything but `params`
  std::vector<std::size_t> members;  // parameters
};

class GroupedOptimizer {
 public:
  /// Values of steps that are stored as tensors, ascending by tensor (TargetRequest::steps).
  using Steps = std::span<const std::pair<std::uint32_t, double>>;

  GroupedOptimizer() = default;
  /// Both must outlive it.
  GroupedOptimizer(const Manifest& source, Steps steps) : source_(&source), steps_(steps) {}

  /// Parameters are numbered as they are added.
  std::size_t add_parameter(std::string name, Shape shape);
  void add_leaf(std::size_t parameter, std::string name, const Value& value);
  /// Form as the caller knows it: DeepSpeed's step is a scalar whatever its shape.
  void add_leaf(std::size_t parameter, GroupedLeaf leaf);
  /// One more item of a list that stands flattened in the source: tensors alone (kUnsupported).
  void add_item(std::size_t parameter, const std::string& name, const Value& value);
  void add_group(OptimizerGroup group);

  std::size_t size() const { return parameters_.size(); }
  const GroupedState& state(std::size_t parameter) const { return parameters_[parameter].state; }
  /// The last group that lists it, or -1.
  std::int64_t group_of(std::size_t parameter) const { return parameters_[parameter].group; }
  const std::vector<OptimizerGroup>& groups() const { return groups_; }
  GroupedLeaf::Form form_of(std::size_t parameter, std::string_view name, const Value& value) const;

  /// The step that a tensor holds, where it is known.
  std::optional<double> number_of(std::uint32_t tensor) const;

  /// Why parameters cannot share a buffer.
  struct Apart {
    std::string why;      // "a" and "b" share a flat buffer, but ...
    bool number = false;  // leaves that a buffer holds once differ, nothing else
  };
  /// nullopt: `members` can share a buffer, and their leaves now stand in the first one's order.
  /// `equal_numbers`: false where every parameter keeps its own of what a buffer would hold once.
  std::optional<Apart> unite(std::span<const std::size_t> members, bool equal_numbers = true);

 private:
  struct Parameter {
    std::string name;
    Shape shape;
    GroupedState state;
    std::int64_t group = -1;
  };
  std::string arrange(const GroupedState& first, GroupedState& other) const;
  std::string difference(const GroupedLeaf& a, const GroupedLeaf& b) const;
  bool is_same(const GroupedLeaf& a, const GroupedLeaf& b) const;

  const Manifest* source_ = nullptr;
  Steps steps_;
  std::vector<Parameter> parameters_;
  std::vector<OptimizerGroup> groups_;
};

/// kUnsupported, for who holds one optimizer, and state of the model's parameters alone. `holder`:
/// "fairscale-fsdp", "megatron-torch over 4 ranks".
[[noreturn]] void refuse_second_optimizer(std::string_view one, std::string_view other,
                                          std::string_view holder);
[[noreturn]] void refuse_unknown_parameter(std::string_view name);
[[noreturn]] void refuse_unlisted_parameter(std::string_view name);

/// `param_groups` as torch.optim keeps it: each group's options, then its `params`. `params`: by
/// group. `take`: a value of the source as the file holds it.
Value param_groups_value(const std::vector<OptimizerGroup>& groups, std::vector<ValueList> params,
                         const std::function<Value(const Value&)>& take);

}  // namespace tessera
