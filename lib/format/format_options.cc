#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/format/format_options.h>

namespace tessera {
namespace {

using Kind = FormatOption::Kind;

std::string text_of(Kind kind, const std::any& value) {
  switch (kind) {
    case Kind::kSwitch:
      return std::any_cast<bool>(value) ? "true" : "false";
    case Kind::kChoice:
      return fmt::format("{}", std::any_cast<std::int64_t>(value));
    case Kind::kSize:
      return fmt::format("{}", std::any_cast<std::uint64_t>(value));
    case Kind::kFile:
    case Kind::kPath:
      return std::any_cast<const std::string&>(value);
    case Kind::kHanded:
      break;
  }
  return {};
}

}  // namespace

void FormatSettings::put(const FormatOption& option, std::any value) {
  if (option.kind != Kind::kHanded) text_of(option.kind, value);  // of the kind's type, or throws
  values_[option.flag] = {&option, std::move(value)};
}

std::vector<const FormatOption*> FormatSettings::given() const {
  std::vector<const FormatOption*> out;
  for (const auto& [flag, given] : values_)
    if (given.option->kind != Kind::kHanded) out.push_back(given.option);
  return out;
}

std::vector<std::pair<std::string, std::string>> FormatSettings::texts() const {
  std::vector<std::pair<std::string, std::string>> out;
  for (const FormatOption* option : given())
    out.emplace_back(option->flag, text_of(option->kind, values_.at(option->flag).value));
  return out;
}

}  // namespace tessera
