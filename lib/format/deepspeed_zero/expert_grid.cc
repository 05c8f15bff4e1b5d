#include "lib/format/deepspeed_zero/expert_grid.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <charconv>

namespace tessera::deepspeed {
namespace {

constexpr std::int64_t kMostExperts = std::int64_t{1} << 30;
constexpr std::string_view kLayer = ".deepspeed_moe.";
constexpr std::string_view kExperts = ".deepspeed_moe.experts.deepspeed_experts.";

}  // namespace

ExpertName expert_name(const std::string& name) {
  constexpr std::string_view kWord = "experts.";
  const std::size_t word = name.rfind(kWord);
  ExpertName out;
  out.begin = word == std::string::npos ? name.size() : word + kWord.size();
  const auto [end, error] =
      std::from_chars(name.data() + out.begin, name.data() + name.size(), out.number);
  out.end = static_cast<std::size_t>(end - name.data());
  if (error != std::errc() || out.number < 0 || out.number > kMostExperts || out.end == out.begin ||
      out.end == name.size() || name[out.end] != '.')
    fail(Code::kUnsupported,
         fmt::format("\"{}\" is in a group of experts, but its name is not an expert's",
                     printable(name)));
  return out;
}

ExpertGrid::ExpertGrid(std::int64_t ranks, const std::vector<std::string>& names) : ranks_(ranks) {
  std::map<std::string, std::int64_t> layers;
  for (const std::string& name : names) {
    const std::size_t at = name.find(kLayer);
    if (at == std::string::npos) continue;
    const auto layer = layers.emplace(name.substr(0, at), layers.size()).first->second;
    counts_.resize(layers.size(), 0);
    if (name.find(kExperts) == std::string::npos) continue;
    const std::int64_t number = expert_name(name).number;
    places_[name] = {layer, number, 0, name};
    std::int64_t& count = counts_[static_cast<std::size_t>(layer)];
    count = std::max(count, number + 1);
  }
  for (const std::int64_t count : counts_)
    if (count % ranks_ != 0)
      fail(Code::kUnsupported,
           fmt::format("{} experts of a layer over {} ranks that share them", count, ranks_));
  for (auto& [name, place] : places_) {
    const std::int64_t each = counts_[static_cast<std::size_t>(place.layer)] / ranks_;
    const ExpertName at = expert_name(name);
    place.share = place.number / each;
    place.stored =
        fmt::format("{}{}{}", name.substr(0, at.begin), place.number % each, name.substr(at.end));
  }
}

const ExpertPlace* ExpertGrid::find(const std::string& name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : &found->second;
}

}  // namespace tessera::deepspeed
