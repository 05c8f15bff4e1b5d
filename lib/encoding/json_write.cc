// Writing JSON: plain text (dump_json) and the canonical form of RFC 8785 (canonical_json).
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/encoding/json.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {
namespace {

constexpr char32_t kInvalid = 0xFFFFFFFF;

/// The code point at `at` (surrogates included, as Python's surrogatepass writes them), `at` moved
/// past it; kInvalid, one byte further, where no sequence starts.
char32_t next_code_point(std::string_view text, std::size_t& at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(at);
  if (lead < 0x80) return text[at++];
  const int length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC2 ? 2 : 0;
  if (length == 0 || lead > 0xF4 || text.size() - at < static_cast<std::size_t>(length)) {
    ++at;
    return kInvalid;
  }
  char32_t point = lead & (0xFF >> (length + 1));
  for (int i = 1; i < length; ++i) {
    const unsigned char next = byte(at + static_cast<std::size_t>(i));
    if ((next & 0xC0) != 0x80) {
      ++at;
      return kInvalid;
    }
    point = point << 6 | (next & 0x3F);
  }
  constexpr std::array<char32_t, 5> kSmallest = {0, 0, 0x80, 0x800, 0x10000};
  if (point < kSmallest[static_cast<std::size_t>(length)] || point > 0x10FFFF) {
    ++at;
    return kInvalid;
  }
  at += static_cast<std::size_t>(length);
  return point;
}

void append_control(std::string& out, char c) {
  switch (c) {
    case '\b':
      out += "\\b";
      return;
    case '\t':
      out += "\\t";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\f':
      out += "\\f";
      return;
    case '\r':
      out += "\\r";
      return;
    default:
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
  }
}

void append_string(std::string& out, std::string_view text) {
  out += '"';
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const char32_t point = next_code_point(text, at);
    if (point == '"' || point == '\\') {
      out += '\\';
      out += static_cast<char>(point);
    } else if (point < 0x20) {
      append_control(out, static_cast<char>(point));
    } else if (point == kInvalid) {
      out += "\xEF\xBF\xBD";
    } else if (point >= 0xD800 && point <= 0xDFFF) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(point));
    } else {
      out += text.substr(begin, at - begin);
    }
  }
  out += '"';
}

double finite(double v) {
  if (!std::isfinite(v))
    fail(Code::kInvalidArgument, "JSON cannot hold a number that is not finite");
  return v;
}

std::string shortest(double v) {
  std::array<char, 32> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), finite(v)).ptr;
  std::string text(buffer.data(), end);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

/// ECMAScript's Number::toString: digits without exponent where 1e-7 < |v| < 1e21.
std::string ecmascript(double v) {
  if (finite(v) == 0) return "0";  // -0 too
  std::array<char, 32> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), std::fabs(v),
                                 std::chars_format::scientific)
                       .ptr;
  const std::string_view text(buffer.data(), static_cast<std::size_t>(end - buffer.data()));
  const std::size_t e = text.find('e');
  std::string digits(text.substr(0, 1));
  if (e > 1) digits += text.substr(2, e - 2);
  const int exponent = std::stoi(std::string(text.substr(e + 1)));  // of the first digit
  const int k = static_cast<int>(digits.size());
  const int n = exponent + 1;  // digits before the point
  std::string out = v < 0 ? "-" : "";
  if (k <= n && n <= 21) return out + digits + std::string(static_cast<std::size_t>(n - k), '0');
  if (0 < n && n <= 21)
    return out + digits.substr(0, static_cast<std::size_t>(n)) + '.' +
           digits.substr(static_cast<std::size_t>(n));
  if (-6 < n && n <= 0) return out + "0." + std::string(static_cast<std::size_t>(-n), '0') + digits;
  out += digits.substr(0, 1);
  if (k > 1) out += '.' + digits.substr(1);
  return out + fmt::format("e{}{}", n > 0 ? '+' : '-', std::abs(n - 1));
}

std::u16string utf16(std::string_view text) {
  std::u16string out;
  for (std::size_t at = 0; at < text.size();) {
    char32_t point = next_code_point(text, at);
    if (point == kInvalid) point = 0xFFFD;
    if (point >= 0x10000) {
      out += static_cast<char16_t>(0xD800 + ((point - 0x10000) >> 10));
      out += static_cast<char16_t>(0xDC00 + ((point - 0x10000) & 0x3FF));
    } else {
      out += static_cast<char16_t>(point);
    }
  }
  return out;
}

const std::string& key_text(const Value& key) {
  if (!key.is_string()) fail(Code::kInvalidArgument, "JSON names are strings");
  return key.as_string();
}

class Writer {
 public:
  Writer(int indent, bool canonical) : indent_(indent), canonical_(canonical) {}
  std::string take() { return std::move(out_); }

  void write(const Value& value, int level) {
    switch (value.kind()) {
      case Value::Kind::kNone:
        out_ += "null";
        return;
      case Value::Kind::kBool:
        out_ += value.as_bool() ? "true" : "false";
        return;
      case Value::Kind::kInt:
        write_integer(value.as_int());
        return;
      case Value::Kind::kFloat:
        out_ += canonical_ ? ecmascript(value.as_real()) : shortest(value.as_real());
        return;
      case Value::Kind::kString:
        append_string(out_, value.as_string());
        return;
      case Value::Kind::kList:
        write_list(value.as_list(), level);
        return;
      case Value::Kind::kDict:
      case Value::Kind::kOrderedDict:
        write_dict(value.as_dict(), level);
        return;
      default:
        fail(Code::kInvalidArgument,
             "JSON holds null, booleans, numbers, strings, lists and dicts only");
    }
  }

 private:
  void write_integer(std::int64_t v) {
    constexpr std::int64_t kExact = std::int64_t{1} << 53;
    out_ += canonical_ && (v > kExact || v < -kExact) ? ecmascript(static_cast<double>(v))
                                                      : fmt::format("{}", v);
  }
  void break_line(int level) {
    if (indent_ < 0) return;
    out_ += '\n';
    out_.append(static_cast<std::size_t>(indent_) * static_cast<std::size_t>(level), ' ');
  }
  void write_list(const ValueList& items, int level) {
    out_ += '[';
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i) out_ += ',';
      break_line(level + 1);
      write(items[i], level + 1);
    }
    if (!items.empty()) break_line(level);
    out_ += ']';
  }
  void write_dict(const ValueDict& entries, int level) {
    out_ += '{';
    bool first = true;
    for (const std::size_t i : order_of(entries)) {
      if (!std::exchange(first, false)) out_ += ',';
      break_line(level + 1);
      append_string(out_, key_text(entries[i].first));
      out_ += indent_ < 0 ? ":" : ": ";
      write(entries[i].second, level + 1);
    }
    if (!entries.empty()) break_line(level);
    out_ += '}';
  }
  std::vector<std::size_t> order_of(const ValueDict& entries) const {
    std::vector<std::size_t> order(entries.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    if (!canonical_) return order;
    std::vector<std::u16string> names;
    for (const auto& entry : entries) names.push_back(utf16(key_text(entry.first)));
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return names[a] < names[b]; });
    return order;
  }

  int indent_;
  bool canonical_;
  std::string out_;
};

}  // namespace

std::string dump_json(const Value& value, int indent) {
  Writer writer(indent, false);
  writer.write(value, 0);
  return writer.take();
}

std::string canonical_json(const Value& value) {
  Writer writer(-1, true);
  writer.write(value, 0);
  return writer.take();
}

}  // namespace tessera
