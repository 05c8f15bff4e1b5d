#include "lib/format/deepspeed_universal/merge_notes.h"

#include <algorithm>

#include "lib/format/deepspeed_universal/parts.h"
#include "lib/format/deepspeed_zero/values.h"

namespace tessera::deepspeed {
namespace {

constexpr std::string_view kSubParams = "param_n_sub_params";
constexpr std::string_view kVocabulary = "vocab_tensor";
/// In all lists together: each byte of each name may take as many steps.
constexpr std::size_t kMostPatternBytes = 4096;

bool holds_some(const Value& info, std::string_view key) {
  const Value* found = info.find(key);
  if (!found || found->is_none()) return false;
  if (found->is_dict()) return !found->as_dict().empty();
  return found->kind() != Value::Kind::kList || !found->as_list().empty();
}

}  // namespace

MergeNotes::MergeNotes(const Value* info) {
  if (!info || !info->is_dict()) return;
  // Geometry of its own: which notes follow from it is for DeepSpeed to say.
  for (const std::string_view key : {"parameter_with_sub_params", "affine_map"})
    if (holds_some(*info, key)) return;
  known_ = true;
  take(*info, "tp_replicated_parameter_patterns", whole_);
  take(*info, "parameter_to_average_patterns", whole_);
  take(*info, "parameter_with_2_sub_params_cat_dim_0", two_parts_);
  take(*info, "parameter_with_row_parallelism_patterns", rows_);
  take(*info, "vocabulary_parameter_patterns", vocabulary_);
  known_ =
      known_ && !(whole_.empty() && two_parts_.empty() && rows_.empty() && vocabulary_.empty());
}

void MergeNotes::take(const Value& info, std::string_view key, Patterns& to) {
  const Value* list = info.find(key);
  if (!list) return;
  known_ = known_ && list->kind() == Value::Kind::kList;
  if (!known_) return;
  for (const Value& text : list->as_list()) {
    known_ = known_ && text.is_string();
    if (!known_) return;
    pattern_bytes_ += text.as_string().size() + 1;
    auto pattern = NamePattern::parse(text.as_string().substr(0, kMostPatternBytes));
    known_ = pattern && pattern_bytes_ <= kMostPatternBytes;
    if (!known_) return;
    to.push_back(std::move(*pattern));
  }
}

bool MergeNotes::any(const Patterns& patterns, const std::string& name) {
  return std::ranges::any_of(patterns, [&](const NamePattern& one) { return one.matches(name); });
}

ValueDict MergeNotes::of(const std::string& name) const {
  ValueDict out;
  const bool two = any(two_parts_, name);
  if (!any(whole_, name))
    out.emplace_back(text(kCatDim), Value::integer(!two && any(rows_, name) ? 1 : 0));
  if (!out.empty() && two) out.emplace_back(text(kSubParams), Value::integer(2));
  if (any(vocabulary_, name)) out.emplace_back(text(kVocabulary), Value::boolean(true));
  return out;
}

bool MergeNotes::explain(const std::string& name, const Value& file) const {
  if (!known_ || !file.is_dict()) return false;
  const ValueDict notes = of(name);
  return file.as_dict().size() == notes.size() + 1 &&
         std::ranges::all_of(notes, [&file](const auto& note) {
           const Value* found = file.find(note.first.as_string());
           return found && *found == note.second;
         });
}

}  // namespace tessera::deepspeed
