#include "lib/format/torch_dcp/names.h"

#include <fmt/format.h>

#include <charconv>

namespace tessera::dcp {
namespace {

/// The decimal number that is all of `text`; at most nine digits, as no job has more ranks.
std::optional<std::int64_t> decimal(std::string_view text) {
  if (text.empty() || text.size() > 9) return std::nullopt;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

/// What stands between "__" and `suffix`.
std::optional<std::string_view> middle(std::string_view name, std::string_view suffix) {
  if (!name.starts_with("__") || !name.ends_with(suffix)) return std::nullopt;
  if (name.size() < 2 + suffix.size()) return std::nullopt;
  return name.substr(2, name.size() - 2 - suffix.size());
}

}  // namespace

std::optional<std::int64_t> rank_of_data_file(std::string_view name) {
  const auto text = middle(name, kDataSuffix);
  if (!text) return std::nullopt;
  const auto bar = text->find('_');
  if (bar == std::string_view::npos || !decimal(text->substr(bar + 1))) return std::nullopt;
  return decimal(text->substr(0, bar));
}

std::optional<std::int64_t> rank_of_metadata_file(std::string_view name) {
  const auto text = middle(name, kRankMetadataSuffix);
  return text ? decimal(*text) : std::nullopt;
}

std::string data_file_name(std::int64_t rank) { return fmt::format("__{}_0{}", rank, kDataSuffix); }

}  // namespace tessera::dcp
