#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/json.h>
#include <tessera/ops/rules.h>

#include <algorithm>
#include <charconv>

#include "lib/ops/edit/megatron_places.h"
#include "lib/ops/edit/name_pattern.h"

namespace tessera {
namespace {

constexpr std::string_view kRulesSchema = "tessera.rules/1";

class Parser {
 public:
  explicit Parser(std::string origin) : origin_(std::move(origin)) {}

  RuleSet parse(std::string_view text) {
    Value root;
    try {
      root = parse_json(as_bytes(text));
    } catch (const Error& error) {
      refuse(error.status().message);
    }
    if (!root.is_dict()) refuse("expected a JSON object");
    only_keys(root, {"$schema", "schema", "name", "about", "sides", "places", "parameters",
                     "blocks", "tensors"});
    if (text_of(root, "schema", "") != kRulesSchema)
      refuse(fmt::format("\"schema\" must be \"{}\"", kRulesSchema));
    RuleSet rules;
    rules.name = text_of(root, "name", origin_);
    rules.sides = texts_of(root, "sides");
    if (rules.sides.size() < 2) refuse("\"sides\" must name at least two sides");
    if (const Value* places = root.find("places"))
      for (const auto& [format, value] : dict_of(*places, "places"))
        rules.places[format.as_string()] = places_of(value);
    if (const Value* parameters = root.find("parameters"))
      for (const auto& [name, value] : dict_of(*parameters, "parameters"))
        rules.parameters.push_back(parameter(name.as_string(), value));
    if (const Value* blocks = root.find("blocks"))
      for (const Value& value : list_of(*blocks, "blocks")) {
        where_ = fmt::format("blocks[{}]", blocks_.size());
        blocks_.push_back(block(value, rules));
      }
    const Value* tensors = root.find("tensors");
    where_.clear();
    if (tensors == nullptr) refuse("\"tensors\" must be a list");
    std::size_t place = 0;
    for (const Value& value : list_of(*tensors, "tensors")) {
      where_ = fmt::format("tensors[{}]", place++);
      add_rule(value, rules);
    }
    return rules;
  }

 private:
  /// What the names of a side begin with in one block, and what is stacked there.
  struct BlockSide {
    std::vector<std::string> prefixes;  // the first is written, all are read
    std::vector<std::string> stacks;
  };
  using Block = std::map<std::string, BlockSide>;

  [[noreturn]] void refuse(const std::string& why) const {
    fail(Code::kInvalidArgument,
         where_.empty() ? fmt::format("rules {}: {}", printable(origin_), why)
                        : fmt::format("rules {}, {}: {}", printable(origin_), where_, why),
         "docs/rules.md describes the file");
  }

  void only_keys(const Value& object, std::vector<std::string_view> known) const {
    for (const auto& [key, value] : object.as_dict())
      if (std::ranges::find(known, key.as_string()) == known.end())
        refuse(fmt::format("unknown key \"{}\"; known: {}", printable(key.as_string()),
                           fmt::join(known, ", ")));
  }

  const ValueDict& dict_of(const Value& value, std::string_view key) const {
    if (!value.is_dict()) refuse(fmt::format("\"{}\" must be an object", key));
    return value.as_dict();
  }

  const ValueList& list_of(const Value& value, std::string_view key) const {
    if (value.kind() != Value::Kind::kList) refuse(fmt::format("\"{}\" must be a list", key));
    return value.as_list();
  }

  std::string text_of(const Value& object, std::string_view key,
                      const std::string& fallback) const {
    const Value* value = object.find(key);
    if (value == nullptr) return fallback;
    if (!value->is_string() || value->as_string().empty())
      refuse(fmt::format("\"{}\" must be a string", key));
    return value->as_string();
  }

  bool flag_of(const Value& object, std::string_view key) const {
    const Value* value = object.find(key);
    if (value == nullptr) return false;
    if (value->kind() != Value::Kind::kBool)
      refuse(fmt::format("\"{}\" must be true or false", key));
    return value->as_bool();
  }

  std::vector<std::string> texts(const Value& value, std::string_view key) const {
    std::vector<std::string> out;
    for (const Value& item : list_of(value, key)) {
      if (!item.is_string() || item.as_string().empty())
        refuse(fmt::format("\"{}\" must be a list of strings", key));
      out.push_back(item.as_string());
    }
    return out;
  }
  std::vector<std::string> texts_of(const Value& object, std::string_view key) const {
    const Value* value = object.find(key);
    return value == nullptr ? std::vector<std::string>() : texts(*value, key);
  }

  /// One text, or a list of texts.
  std::vector<std::string> one_or_more(const Value& object, std::string_view key) const {
    const Value* value = object.find(key);
    if (value != nullptr && value->is_string()) return {text_of(object, key, "")};
    return texts_of(object, key);
  }

  /// A text, or a number as its text.
  std::string expression(const Value& value) const {
    if (value.is_int()) return fmt::format("{}", value.as_int());
    if (!value.is_string()) refuse("an expression is a number or a string");
    return value.as_string();
  }

  std::string places_of(const Value& value) const {
    if (!value.is_string()) refuse("\"places\" must have strings");
    parse_megatron_places(value.as_string());
    return value.as_string();
  }

  RuleParameter parameter(const std::string& name, const Value& value) {
    where_ = fmt::format("parameter \"{}\"", name);
    dict_of(value, name);
    only_keys(value, {"about", "keys", "default", "first", "count"});
    RuleParameter out{name,
                      text_of(value, "about", name),
                      texts_of(value, "keys"),
                      text_of(value, "default", ""),
                      texts_of(value, "first"),
                      texts_of(value, "count")};
    for (const auto* patterns : {&out.first, &out.count})
      for (const std::string& text : *patterns)
        if (NamePattern(text).captures().size() != 1)
          refuse(fmt::format("\"{}\" must have one {{capture}}", printable(text)));
    where_.clear();
    return out;
  }

  /// Sides of which a key speaks: "hf", or "hf, stacked".
  std::vector<std::string> sides_of(const std::string& key, const RuleSet& rules) const {
    std::vector<std::string> names;
    for (std::string_view field : split(key, ',')) {
      while (field.starts_with(' ')) field.remove_prefix(1);
      const std::string name(field);
      if (std::ranges::find(rules.sides, name) == rules.sides.end())
        refuse(fmt::format("\"{}\" is no side; sides: {}", printable(name),
                           fmt::join(rules.sides, ", ")));
      names.push_back(name);
    }
    return names;
  }

  Block block(const Value& value, const RuleSet& rules) const {
    Block out;
    for (const auto& [key, of_side] : dict_of(value, "blocks")) {
      BlockSide side;
      if (of_side.is_string()) {
        side.prefixes = {of_side.as_string()};
      } else {
        dict_of(of_side, key.as_string());
        only_keys(of_side, {"name", "or", "stack"});
        side.prefixes = {text_of(of_side, "name", "")};
        for (std::string& other : texts_of(of_side, "or"))
          side.prefixes.push_back(std::move(other));
        side.stacks = one_or_more(of_side, "stack");
      }
      for (const std::string& name : sides_of(key.as_string(), rules)) out[name] = side;
    }
    return out;
  }

  void add_rule(const Value& value, RuleSet& rules) const {
    TensorRule parsed = rule(value, rules);
    std::vector<TensorRule> made;
    if (flag_of(value, "block")) {
      if (blocks_.empty()) refuse("\"block\" needs \"blocks\"");
      for (const auto& [name, side] : parsed.sides)
        if (!side.copies.empty()) refuse("\"copies\" stand outside of blocks");
      for (const Block& block : blocks_) made.push_back(inside(parsed, block));
    } else {
      made.push_back(std::move(parsed));
    }
    for (TensorRule& one : made) {
      for (const auto& [name, side] : one.sides) check_names(side, rules);
      rules.tensors.push_back(std::move(one));
    }
  }

  /// The rule with the names of a block. Sides that have no such block are left out.
  static TensorRule inside(const TensorRule& rule, const Block& block) {
    TensorRule out = rule;
    out.sides.clear();
    for (const auto& [name, relative] : rule.sides) {
      const auto found = block.find(name);
      if (found == block.end()) continue;
      const auto& [prefixes, stacks] = found->second;
      RuleSide side = relative;
      side.stacks.insert(side.stacks.begin(), stacks.begin(), stacks.end());
      side.alternatives.clear();
      side.beside.clear();
      for (std::string& text : side.names) text = prefixes[0] + text;
      for (std::string& text : side.turned_by) text = prefixes[0] + text;
      for (const std::string& prefix : prefixes) {
        if (prefix != prefixes[0])
          for (std::size_t part = 0; part < relative.names.size(); ++part)
            side.alternatives.push_back({part, prefix + relative.names[part]});
        for (const OtherName& other : relative.alternatives)
          side.alternatives.push_back({other.part, prefix + other.name});
        for (const std::string& text : relative.beside) side.beside.push_back(prefix + text);
      }
      out.sides[name] = std::move(side);
    }
    return out;
  }

  /// Names are patterns, and count from parameters that are counted.
  void check_names(const RuleSide& side, const RuleSet& rules) const {
    std::vector<std::string> all = side.names;
    for (const OtherName& other : side.alternatives) all.push_back(other.name);
    for (const auto* more : {&side.beside, &side.copies, &side.turned_by})
      all.insert(all.end(), more->begin(), more->end());
    for (const std::string& text : all) {
      for (const std::string& number : NamePattern(text).numbers()) {
        const auto counted = [&](const RuleParameter& parameter) {
          return parameter.name == number && !(parameter.first.empty() && parameter.count.empty());
        };
        if (std::ranges::none_of(rules.parameters, counted))
          refuse(
              fmt::format("\"{}\" counts from {}, which is no parameter with \"first\" or "
                          "\"count\"",
                          printable(text), printable(number)));
      }
    }
  }

  TensorRule rule(const Value& value, const RuleSet& rules) const {
    dict_of(value, "tensors");
    TensorRule out;
    out.parts = texts_of(value, "parts");
    out.vocabulary = flag_of(value, "vocabulary");
    for (const auto& [key, side] : value.as_dict()) {
      const std::string& name = key.as_string();
      if (name == "parts" || name == "vocabulary" || name == "about" || name == "block") continue;
      const std::vector<std::string> sides = sides_of(name, rules);
      for (const std::string& one : sides) out.sides[one] = rule_side(side, out.parts.size());
    }
    if (out.sides.empty()) refuse("names no side");
    if (out.parts.empty()) out.parts = {"all"};
    return out;
  }

  RuleSide rule_side(const Value& value, std::size_t parts) const {
    RuleSide side;
    if (value.is_string()) {
      side.names = {value.as_string()};
      side.fused = parts > 1;
    } else if (value.kind() == Value::Kind::kList) {
      side.names = texts(value, "names");
      if (side.names.size() != std::max<std::size_t>(parts, 1))
        refuse(fmt::format("{} names for {} parts", side.names.size(), parts));
    } else {
      fused_side(value, parts, side);
    }
    return side;
  }

  void fused_side(const Value& value, std::size_t parts, RuleSide& side) const {
    dict_of(value, "side");
    only_keys(value, {"name", "names", "or", "beside", "copies", "axis", "ratios", "groups",
                      "interleaved", "transposed", "stack"});
    if (value.find("names") != nullptr) {
      side.names = texts_of(value, "names");
      if (side.names.size() != std::max<std::size_t>(parts, 1))
        refuse(fmt::format("{} names for {} parts", side.names.size(), parts));
    } else {
      side.names = {text_of(value, "name", "")};
      if (side.names[0].empty()) refuse("a side needs \"name\" or \"names\"");
      side.fused = parts > 1;
    }
    for (std::string& other : texts_of(value, "or"))
      side.alternatives.push_back({0, std::move(other)});
    if (!side.alternatives.empty() && side.names.size() > 1) refuse("\"or\" goes with one name");
    side.beside = one_or_more(value, "beside");
    side.copies = one_or_more(value, "copies");
    if (const Value* axis = value.find("axis")) {
      if (!axis->is_int() || axis->as_int() < 0 || axis->as_int() > 7)
        refuse("\"axis\" must be a number from 0 to 7");
      side.axis = static_cast<int>(axis->as_int());
    }
    if (const Value* ratios = value.find("ratios")) {
      if (ratios->kind() != Value::Kind::kList || ratios->as_list().size() != parts)
        refuse(fmt::format("\"ratios\" must be a list, one for each of {} parts", parts));
      for (const Value& ratio : ratios->as_list()) side.ratios.push_back(expression(ratio));
    }
    if (const Value* groups = value.find("groups")) side.groups = expression(*groups);
    side.interleaved = flag_of(value, "interleaved");
    const Value* transposed = value.find("transposed");
    if (transposed != nullptr && transposed->is_dict()) {
      only_keys(*transposed, {"by"});
      side.transposed = true;
      side.turned_by = texts_of(*transposed, "by");
      if (side.turned_by.empty() || side.turned_by.size() % 2 != 0)
        refuse("\"by\" must be pairs of names: a matrix, a vector");
    } else {
      side.transposed = flag_of(value, "transposed");
    }
    side.stacks = one_or_more(value, "stack");
    if (!side.copies.empty() && (parts > 1 || !side.stacks.empty()))
      refuse("\"copies\" are of one tensor that is neither fused nor stacked");
    const bool grouped = !side.ratios.empty() || side.groups != "1" || side.interleaved;
    if (grouped && !side.fused) refuse("\"ratios\", \"groups\" and \"interleaved\" fuse parts");
    if (side.interleaved && (side.groups != "1" || !side.ratios.empty()))
      refuse("\"interleaved\" parts have no groups and no ratios");
  }

  std::string origin_;
  std::string where_;
  std::vector<Block> blocks_;
};

bool is_word(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
  });
}

}  // namespace

RuleSet parse_rules(std::string_view text, const std::string& origin) {
  return Parser(origin).parse(text);
}

RulesRequest parse_rules_flag(std::string_view value) {
  RulesRequest request;
  const std::vector<std::string_view> fields = split(value, ',');
  std::string_view head = fields[0];
  const std::size_t colon = head.rfind(':');
  if (colon != std::string_view::npos && is_word(head.substr(colon + 1))) {
    request.side = head.substr(colon + 1);
    head = head.substr(0, colon);
  }
  request.name = head;
  if (head.empty()) fail(Code::kInvalidArgument, "--rules needs a name or a file");
  for (std::size_t i = 1; i < fields.size(); ++i) {
    const std::size_t equals = fields[i].find('=');
    std::int64_t number = 0;
    const std::string_view digits =
        equals == std::string_view::npos ? std::string_view() : fields[i].substr(equals + 1);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (digits.empty() || error != std::errc() || end != digits.data() + digits.size() ||
        number < 1) {
      fail(Code::kInvalidArgument,
           fmt::format("--rules {}: \"{}\" is no PARAMETER=N", printable(head),
                       printable(fields[i])),
           "as --rules llama,heads=32,groups=8");
    }
    request.parameters[std::string(fields[i].substr(0, equals))] = number;
  }
  return request;
}

}  // namespace tessera
