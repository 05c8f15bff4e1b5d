#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/large_array.h>
#include <tessera/base/text_index.h>
#include <tessera/encoding/json.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {
namespace {

/// Names of one open object. Few names are compared one by one; of many, which may be a million,
/// the text is kept in one piece and looked up by hash.
class KeySet {
 public:
  /// False when the name was there already.
  bool insert(const std::string& name) {
    const auto text_of = [this](std::size_t i) { return text(i); };
    if (ends_.size() < kFew) {
      for (std::size_t i = 0; i < ends_.size(); ++i)
        if (text(i) == name) return false;
    } else {
      if (ends_.size() == kFew)
        for (std::size_t i = 0; i < kFew; ++i) many_.add(text(i), text_of);
      if (many_.add(name, text_of)) return false;
    }
    grow_large(text_, name.size());
    text_.insert(text_.end(), name.begin(), name.end());
    ends_.push_back(text_.size());
    return true;
  }

 private:
  static constexpr std::size_t kFew = 16;

  std::string_view text(std::size_t i) const {
    const std::size_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::string_view(text_.data() + begin, ends_[i] - begin);
  }

  std::vector<char> text_;
  std::vector<std::size_t> ends_;
  TextIndex many_;  // of more than kFew
};

/// Stands between nlohmann's parser and a JsonHandler and refuses what the parser would let pass.
class StrictSax : public nlohmann::json_sax<nlohmann::json> {
 public:
  StrictSax(JsonHandler& handler, const JsonLimits& limits) : handler_(handler), limits_(limits) {}

  bool null() override { return give(Value()); }
  bool boolean(bool v) override { return give(Value::boolean(v)); }
  bool number_integer(number_integer_t v) override {
    // Only numbers with a sign come here. Some readers take this one for a real number, no writer
    // writes it.
    if (v == 0) fail(Code::kCorrupt, "JSON: the integer -0");
    return give(Value::integer(v));
  }
  bool number_unsigned(number_unsigned_t v) override {
    if (v > static_cast<number_unsigned_t>(INT64_MAX))
      fail(Code::kCorrupt, fmt::format("JSON: integer {} is outside int64", v));
    return give(Value::integer(static_cast<std::int64_t>(v)));
  }
  bool number_float(number_float_t v, const string_t& text) override {
    if (text.find_first_of(".eE") == string_t::npos)
      fail(Code::kCorrupt, fmt::format("JSON: integer {:.40} is outside int64", text));
    if (!std::isfinite(v))
      fail(Code::kCorrupt, fmt::format("JSON: number {:.40} is not finite", text));
    return give(Value::real(v));
  }
  bool string(string_t& v) override { return give(Value::string(std::move(v))); }
  bool binary(binary_t&) override { return false; }  // never made from text

  bool start_object(std::size_t) override {
    enter();
    keys_.emplace_back();
    handler_.begin_object();
    return true;
  }
  bool key(string_t& name) override {
    if (name.find('\0') != string_t::npos) fail(Code::kCorrupt, "JSON: a name contains a NUL byte");
    if (!keys_.back().insert(name))
      fail(Code::kCorrupt, fmt::format("JSON: duplicate key \"{:.200}\"", name));
    handler_.key(std::move(name));
    return true;
  }
  bool end_object() override {
    keys_.pop_back();
    --depth_;
    handler_.end_object();
    return true;
  }
  bool start_array(std::size_t) override {
    enter();
    handler_.begin_array();
    return true;
  }
  bool end_array() override {
    --depth_;
    handler_.end_array();
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    // The library's text starts with "[json.exception...] "; what follows is for people.
    std::string_view what = error.what();
    if (const auto end = what.find("] "); end != what.npos) what.remove_prefix(end + 2);
    if (error.id == 406) what = "a number is too large";
    fail(Code::kCorrupt, fmt::format("JSON: byte {}: {:.200}", position, what));
  }

 private:
  bool give(Value value) {
    handler_.scalar(std::move(value));
    return true;
  }
  void enter() {
    if (++depth_ > limits_.max_depth)
      fail(Code::kCorrupt, fmt::format("JSON: nested deeper than {} levels", limits_.max_depth));
  }

  JsonHandler& handler_;
  const JsonLimits& limits_;
  int depth_ = 0;
  std::vector<KeySet> keys_;
};

class TreeBuilder : public JsonHandler {
 public:
  explicit TreeBuilder(std::uint64_t max_values) : budget_(max_values) {}
  Value take() { return std::move(root_); }

  void begin_object() override { open(true); }
  void begin_array() override { open(false); }
  void key(std::string&& name) override { open_.back().name = std::move(name); }
  void end_object() override {
    Value done = Value::dict(std::move(open_.back().entries));
    open_.pop_back();
    add(std::move(done));
  }
  void end_array() override {
    Value done = Value::list(std::move(open_.back().items));
    open_.pop_back();
    add(std::move(done));
  }
  void scalar(Value value) override {
    budget_.spend();
    add(std::move(value));
  }

 private:
  struct Container {
    bool is_object = false;
    std::string name;
    ValueDict entries;
    ValueList items;
  };
  void open(bool is_object) {
    budget_.spend();
    open_.emplace_back().is_object = is_object;
  }
  void add(Value value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return;
    }
    Container& top = open_.back();
    if (top.is_object)
      top.entries.emplace_back(Value::string(std::move(top.name)), std::move(value));
    else
      top.items.push_back(std::move(value));
  }

  ValueBudget budget_;
  std::vector<Container> open_;
  Value root_;
};

}  // namespace

void parse_json_events(ByteView text, JsonHandler& handler, const JsonLimits& limits) {
  const std::string_view view = as_text(text);
  if (view.starts_with("\xEF\xBB\xBF")) fail(Code::kCorrupt, "JSON: starts with a byte order mark");
  // The library takes it for the end of the text.
  if (const auto at = view.find('\0'); at != view.npos)
    fail(Code::kCorrupt, fmt::format("JSON: byte {}: a NUL byte", at));
  StrictSax sax(handler, limits);
  // parse_error() throws, so `false` cannot come back; the check keeps that an invariant.
  const bool parsed = nlohmann::json::sax_parse(view.begin(), view.end(), &sax);
  TESSERA_CHECK(parsed);
}

Value parse_json(ByteView text, const JsonLimits& limits) {
  TreeBuilder tree(limits.max_values);
  parse_json_events(text, tree, limits);
  return tree.take();
}

}  // namespace tessera
