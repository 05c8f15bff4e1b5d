#include "lib/format/deepspeed_zero/names.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

namespace tessera::deepspeed {
namespace {

bool take(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

std::optional<std::int64_t> take_number(std::string_view& text) {
  constexpr std::size_t kMostDigits = 9;
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const auto digits = static_cast<std::size_t>(end - text.data());
  if (error != std::errc() || digits == 0 || digits > kMostDigits || text[0] == '-')
    return std::nullopt;
  text.remove_prefix(digits);
  return number;
}

/// "zero_pp_rank_<D>_" and "mp_rank_<M>" at the front, either of which may be all there is.
bool take_ranks(std::string_view& text, FileName& out) {
  if (take(text, "zero_pp_rank_")) {
    const auto dp = take_number(text);
    if (!dp || !take(text, "_")) return false;
    out.dp_rank = *dp;
  }
  if (!take(text, "mp_rank_")) return false;
  const auto mp = take_number(text);
  if (mp) out.mp_rank = *mp;
  return mp.has_value();
}

bool is_expert(std::string_view name) {
  return name.starts_with("expert_") || name.starts_with("expp_rank_") ||
         (name.starts_with("layer_") && name.find("_expert_") != std::string_view::npos);
}

/// "expp_rank_<S>_", or "layer_<L>_expert_<E>_", whose first part very old files lack.
void take_expert(std::string_view text, FileName& out) {
  if (take(text, "expp_rank_")) {
    if (const auto share = take_number(text)) out.dp_rank = *share;
    return;
  }
  if (take(text, "layer_")) {
    if (const auto layer = take_number(text)) out.layer = *layer;
    take(text, "_");
  }
  if (take(text, "expert_"))
    if (const auto expert = take_number(text)) out.expert = *expert;
}

}  // namespace

FileName parse_file_name(std::string_view name) {
  using Kind = FileName::Kind;
  FileName out;
  out.name = std::string(name);
  const bool model = name.ends_with("model_states.pt");
  if (!model && !name.ends_with("optim_states.pt")) return out;
  if (is_expert(name)) {
    out.kind = Kind::kExpert;
    take_expert(name, out);
    return out;
  }
  std::string_view rest = name;
  if (model && take(rest, "layer_")) {
    out.kind = Kind::kPipeline;
    if (const auto layer = take_number(rest)) out.layer = *layer;
    if (take(rest, "-model_"))
      if (const auto part = take_number(rest)) out.mp_rank = *part;
    return out;
  }
  out.bf16 = take(rest, "bf16_");
  if (!out.bf16) take(rest, "fp16_");
  if (!take_ranks(rest, out)) return out;
  if (model && rest == "_model_states.pt") out.kind = Kind::kModel;
  if (!model && out.dp_rank >= 0 && (rest == "_optim_states.pt" || rest == "optim_states.pt"))
    out.kind = Kind::kOptim;
  return out;
}

std::string stage_file_name(std::int64_t stage) {
  return fmt::format("mp_rank_{:02}_model_states.pt", stage);
}
std::string model_file_name() { return stage_file_name(0); }
std::string model_file_name(std::int64_t dp_rank) {
  return fmt::format("zero_pp_rank_{}_mp_rank_00_model_states.pt", dp_rank);
}
std::string expert_file_name(std::int64_t layer, std::int64_t expert) {
  return fmt::format("layer_{}_expert_{}_mp_rank_00_model_states.pt", layer, expert);
}

std::string optim_file_name(std::int64_t dp_rank, bool bf16, std::int64_t stage) {
  return fmt::format("{}zero_pp_rank_{}_mp_rank_{:02}_optim_states.pt", bf16 ? "bf16_" : "",
                     dp_rank, stage);
}

}  // namespace tessera::deepspeed
