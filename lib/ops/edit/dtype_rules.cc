#include "lib/ops/edit/dtype_rules.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>

#include "lib/state/quant_parts.h"

namespace tessera {
namespace {

constexpr std::array<std::pair<std::string_view, DType>, 20> kShortNames{{
    {"bf16", DType::kBFloat16},
    {"fp16", DType::kFloat16},
    {"half", DType::kFloat16},
    {"fp32", DType::kFloat32},
    {"float", DType::kFloat32},
    {"fp64", DType::kFloat64},
    {"double", DType::kFloat64},
    {"fp8_e4m3", DType::kFloat8E4M3Fn},
    {"fp8_e5m2", DType::kFloat8E5M2},
    {"f16", DType::kFloat16},
    {"f32", DType::kFloat32},
    {"f64", DType::kFloat64},
    {"i8", DType::kInt8},
    {"i16", DType::kInt16},
    {"i32", DType::kInt32},
    {"i64", DType::kInt64},
    {"u8", DType::kUInt8},
    {"int", DType::kInt32},
    {"long", DType::kInt64},
    {"f8_e4m3", DType::kFloat8E4M3Fn},
}};
constexpr std::size_t kMostNotes = 20;

/// Types that --dtype casts by itself. Smaller floats come with scales that stand elsewhere: only a
/// pattern casts them.
bool is_plain_float(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16 || dtype == DType::kFloat32 ||
         dtype == DType::kFloat64;
}

/// What one tensor is asked to become; nullopt: it stays.
class TypeChooser {
 public:
  TypeChooser(const Transformations& asked, const Manifest& manifest)
      : asked_(asked),
        quant_(quant_parts(manifest)),
        rules_(asked.keep_dtypes),
        used_(asked.keep_dtypes.size()),
        casts_(asked.keep_dtypes.size()) {}

  std::optional<DType> choose(const StoredTensor& tensor, std::uint32_t index,
                              const EntryRole& role) {
    const bool floating = is_floating(tensor.spec.dtype);
    const bool counter = role.role == Role::kOptimState && role.leaf == "step";
    std::size_t first = rules_.size();
    const bool fixed = !floating || counter;
    for (std::size_t i = rules_.size(); i-- > 0;) {
      if (!glob_match(rules_[i].glob, tensor.name)) continue;
      used_[first = i] = true;
      if (!fixed || !rules_[i].dtype) casts_[i] = true;
    }
    if (fixed) return std::nullopt;
    if (first < rules_.size()) return rules_[first].dtype;
    if (role.role != Role::kModel || !is_plain_float(tensor.spec.dtype)) return std::nullopt;
    const auto named = asked_.dtypes.find(tensor.name);
    if (named != asked_.dtypes.end() && is_plain_float(named->second)) return named->second;
    if (asked_.dtype && quant_[index] != QuantPart::kNone) {
      ++kept_parts_;
      return std::nullopt;
    }
    return asked_.dtype;
  }

  /// Scales and tables that --dtype passed over.
  std::size_t kept_parts() const { return kept_parts_; }

  void check_all_used(const Manifest& manifest) const {
    for (std::size_t i = 0; i < rules_.size(); ++i) {
      if (used_[i] && casts_[i]) continue;
      if (used_[i]) {
        fail(Code::kInvalidArgument,
             fmt::format("--keep-dtype \"{}\" casts nothing: what it matches are integers, complex "
                         "numbers or step counters, which are never cast",
                         printable(rules_[i].glob)));
      }
      std::vector<std::string_view> names;
      for (const StoredTensor& tensor : manifest.tensors) names.push_back(tensor.name);
      const std::string near = nearest(rules_[i].glob, names);
      fail(Code::kInvalidArgument,
           fmt::format("--keep-dtype \"{}\" matches no tensor", printable(rules_[i].glob)),
           near.empty() ? "ckpt-inspect ls shows the names"
                        : fmt::format("did you mean \"{}\"?", near));
    }
  }

 private:
  const Transformations& asked_;
  std::vector<QuantPart> quant_;  // by tensor
  std::size_t kept_parts_ = 0;
  const std::vector<DTypeRule>& rules_;
  std::vector<bool> used_, casts_;
};

void add_total(std::map<DType, DTypeTotal>& totals, TensorSpec spec, DType after) {
  DTypeTotal& old = totals[spec.dtype];
  ++old.tensors_before;
  old.bytes_before += static_cast<std::uint64_t>(spec.size_bytes());
  spec.dtype = after;
  DTypeTotal& fresh = totals[after];
  ++fresh.tensors_after;
  fresh.bytes_after += static_cast<std::uint64_t>(spec.size_bytes());
}

void set_type(StoredTensor& tensor, DType to) {
  if (!is_castable(tensor.spec.dtype) || tensor.quant >= 0) {
    in_tensor(tensor.name, [&] {
      fail(Code::kUnsupported, fmt::format("{} is not cast", torch_name(tensor.spec.dtype)),
           "take it out of --keep-dtype");
    });
  }
  tensor.cast_from = tensor.stored_dtype();
  tensor.spec.dtype = to;
}

}  // namespace

std::optional<DType> dtype_from_word(std::string_view text) {
  constexpr std::string_view kTorch = "torch.";
  if (text.starts_with(kTorch)) text.remove_prefix(kTorch.size());
  std::string word(text);
  for (char& c : word)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  const auto known =
      std::ranges::find_if(kShortNames, [&](const auto& n) { return n.first == word; });
  return known != kShortNames.end() ? known->second : dtype_from_torch_name(word);
}

DType parse_float_type(std::string_view flag, std::string_view text) {
  const std::optional<DType> type = dtype_from_word(text);
  if (type && is_floating(*type) && is_castable(*type)) return *type;
  fail(
      Code::kInvalidArgument,
      fmt::format("{} {}: no floating-point type that elements are cast to", flag, printable(text)),
      "as bfloat16, float16, float32, float64, or bf16, fp16, fp32, fp64");
}

DTypeRule parse_keep_dtype(std::string_view text) {
  const std::size_t equals = text.rfind('=');
  if (equals == std::string_view::npos || equals == 0) {
    fail(Code::kInvalidArgument,
         fmt::format("--keep-dtype {}: expected GLOB=TYPE", printable(text)),
         "as --keep-dtype '*norm*=fp32'");
  }
  DTypeRule rule{std::string(text.substr(0, equals)), std::nullopt};
  const std::string_view type = text.substr(equals + 1);
  if (type != "keep") rule.dtype = parse_float_type("--keep-dtype", type);
  return rule;
}

namespace {

/// Tensors inside of a model's values (a dict that DCP keeps as one item, a queue) have no names, and
/// are not cast: says so.
void note_inner_tensors(const Manifest& manifest, const Roles& roles, DType to,
                        std::vector<Note>& notes) {
  std::int64_t inner = 0;
  std::string first;
  for (std::size_t i = 0; i < roles.entries.size(); ++i) {
    const StateEntry& entry = manifest.state.entries[i];
    if (entry.value.is_tensor() || roles.entries[i].role != Role::kModel) continue;
    for_each_tensor(entry.value, [&](std::uint32_t index) {
      const StoredTensor& tensor = manifest.tensors[index];
      if (!is_plain_float(tensor.spec.dtype) || tensor.spec.dtype == to) return;
      if (inner++ == 0) first = entry.name.empty() ? "the top" : entry.name.view();
    });
  }
  if (inner > 0)
    notes.push_back(
        {Finding::kCast, Severity::kWarning,
         fmt::format("{} inside of values, first in {}, {} not cast: what is inside of a value "
                     "stays as it is",
                     with_noun(inner, "tensor"), printable(first), inner == 1 ? "was" : "were"),
         "", ""});
}

}  // namespace

void apply_dtypes(Manifest& manifest, const Transformations& asked, TransformOutcome& out) {
  if (!asked.dtype && asked.keep_dtypes.empty() && asked.dtypes.empty()) return;
  const Roles roles = find_roles(manifest.state);
  TypeChooser chooser(asked, manifest);
  std::map<std::pair<DType, DType>, std::vector<std::string>> cast;
  std::map<DType, DTypeTotal> totals;
  std::size_t left = 0;
  for (std::size_t i = 0; i < roles.entries.size(); ++i) {
    const Value& value = manifest.state.entries[i].value;
    if (!value.is_tensor()) continue;
    StoredTensor& tensor = manifest.tensors[value.tensor_index()];
    const DType from = tensor.spec.dtype;
    const std::optional<DType> to = chooser.choose(tensor, value.tensor_index(), roles.entries[i]);
    add_total(totals, tensor.spec, to.value_or(from));
    left += asked.dtype && roles.entries[i].role == Role::kModel && is_floating(from) &&
            !is_plain_float(from) && !to;
    if (!to || *to == from) continue;
    set_type(tensor, *to);
    cast[{from, *to}].push_back(tensor.name);
  }
  chooser.check_all_used(manifest);
  if (asked.dtype) note_inner_tensors(manifest, roles, *asked.dtype, out.notes);
  for (auto& [type, total] : totals) {
    total.dtype = type;
    out.dtypes.push_back(total);
  }
  std::ranges::stable_sort(out.dtypes, std::greater<>(), &DTypeTotal::bytes_before);
  for (auto& [types, names] : cast) {
    const std::uint64_t count = names.size();
    out.applied.push_back(
        {"dtype", fmt::format("{} -> {}", torch_name(types.first), torch_name(types.second)), count,
         std::move(names)});
  }
  if (left > 0) {
    out.notes.push_back({Finding::kCast, Severity::kInfo,
                         fmt::format("{} weights of 8 bits or less were not cast: their scales "
                                     "stand elsewhere; --keep-dtype GLOB=TYPE casts them",
                                     left),
                         "", ""});
  }
  if (chooser.kept_parts() > 0)
    out.notes.push_back({Finding::kCast, Severity::kInfo,
                         fmt::format("{} scales and tables of quantized weights were not cast: the "
                                     "weights would change with them",
                                     chooser.kept_parts()),
                         "", ""});
}

std::vector<Note> cast_notes(const Manifest& manifest,
                             const std::map<std::uint32_t, CastCounts>& casts) {
  std::vector<std::pair<std::int64_t, std::uint32_t>> worst;
  std::int64_t overflow = 0;
  std::int64_t underflow = 0;
  for (const auto& [tensor, counts] : casts) {
    overflow += counts.overflow_to_inf;
    underflow += counts.underflow_to_zero;
    if (counts.overflow_to_inf > 0) worst.emplace_back(-counts.overflow_to_inf, tensor);
  }
  std::ranges::sort(worst);
  std::vector<Note> notes;
  for (const auto& [count, index] : worst) {
    const StoredTensor& tensor = manifest.tensors[index];
    if (notes.size() == kMostNotes) break;
    notes.push_back({Finding::kCast, Severity::kWarning,
                     fmt::format("{} of {} elements do not fit {}: they became infinite, or NaN "
                                 "where it has no infinity",
                                 -count, tensor.spec.shape.numel(), torch_name(tensor.spec.dtype)),
                     "", tensor.name});
  }
  if (worst.size() > notes.size()) {
    notes.push_back(
        {Finding::kCast, Severity::kWarning,
         fmt::format("{} more tensors hold elements that do not fit; {} elements in all",
                     worst.size() - notes.size(), overflow),
         "", ""});
  }
  if (underflow > 0) {
    notes.push_back(
        {Finding::kCast, Severity::kInfo,
         fmt::format("{} elements other than zero became zero when they were cast", underflow), "",
         ""});
  }
  return notes;
}

}  // namespace tessera
