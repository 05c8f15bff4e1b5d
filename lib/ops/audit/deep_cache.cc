// The cache's documents. They are read like all files: nothing in them is trusted.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/encoding/json.h>
#include <tessera/storage/checksum.h>

#include <bit>
#include <charconv>

#include "lib/ops/audit/deep_reader.h"
#include "lib/state/fields.h"

namespace tessera {
namespace {

constexpr std::string_view kCacheSchema = "tessera.audit-cache/1";
constexpr std::size_t kDigits = 16;  // of a double's bits

Value bits_text(std::uint64_t bits) { return Value::string(fmt::format("{:016x}", bits)); }
Value bits_text(double value) { return bits_text(std::bit_cast<std::uint64_t>(value)); }

std::uint64_t bits_in(std::string_view digits, const Field& where) {
  std::uint64_t bits = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), bits, 16);
  if (digits.size() != kDigits || error != std::errc() || end != digits.data() + digits.size())
    where.corrupt("a number is not 16 hex digits");
  return bits;
}

double real_in(const Field& field) { return std::bit_cast<double>(bits_in(field.text(), field)); }

Value encode_tensor_numbers(const TensorNumbers& t, const AuditNames& names) {
  std::string sample;
  for (const double value : t.sample)
    sample += fmt::format("{:016x}", std::bit_cast<std::uint64_t>(value));
  const auto text = [](std::string_view s) { return Value::string(std::string(s)); };
  return Value::dict({{text("name"), text(names.name(t.id))},
                      {text("count"), Value::integer(t.count)},
                      {text("nan"), Value::integer(t.nan)},
                      {text("inf"), Value::integer(t.inf)},
                      {text("first_bad"), Value::integer(t.first_bad)},
                      {text("l2"), bits_text(t.l2)},
                      {text("l2_error"), bits_text(t.l2_error)},
                      {text("mean"), bits_text(t.mean)},
                      {text("abs_max"), bits_text(t.abs_max)},
                      {text("all_zero"), Value::boolean(t.all_zero)},
                      {text("digest"), bits_text(t.digest)},
                      {text("sample"), text(sample)}});
}

TensorNumbers decode_tensor_numbers(const Field& object, AuditNames& names) {
  TensorNumbers t;
  t.id = names.id(object.at("name").text());
  t.count = object.at("count").count();
  t.nan = object.at("nan").count();
  t.inf = object.at("inf").count();
  t.first_bad = object.at("first_bad").integer();
  t.l2 = real_in(object.at("l2"));
  t.l2_error = real_in(object.at("l2_error"));
  t.mean = real_in(object.at("mean"));
  t.abs_max = real_in(object.at("abs_max"));
  t.all_zero = object.at("all_zero").flag();
  t.digest = bits_in(object.at("digest").text(), object.at("digest"));
  const Field sample = object.at("sample");
  const std::string& digits = sample.text();
  for (std::size_t at = 0; at < digits.size(); at += kDigits)
    t.sample.push_back(
        std::bit_cast<double>(bits_in(std::string_view(digits).substr(at, kDigits), sample)));
  return t;
}

}  // namespace

std::string encode_deep_numbers(const std::string& key, const DeepNumbers& numbers,
                                const AuditNames& names) {
  const auto text = [](std::string_view s) { return Value::string(std::string(s)); };
  ValueList tensors, drifted;
  for (const TensorNumbers& t : numbers.tensors) tensors.push_back(encode_tensor_numbers(t, names));
  for (const std::string& name : numbers.drifted) drifted.push_back(text(name));
  const std::string body =
      dump_json(Value::dict({{text("schema"), text(kCacheSchema)},
                             {text("key"), text(key)},
                             {text("drifted"), Value::list(std::move(drifted))},
                             {text("drift"), text(numbers.drift)},
                             {text("odd_steps"), Value::integer(numbers.odd_steps)},
                             {text("odd_step"), text(numbers.odd_step)},
                             {text("tensors"), Value::list(std::move(tensors))}}));
  return body + "\n";
}

std::optional<DeepNumbers> decode_deep_numbers(ByteView text, const std::string& key,
                                               AuditNames& names) {
  try {
    const Value json = parse_json(text);
    const Field root(json, "audit cache");
    if (root.at("schema").text() != kCacheSchema || root.at("key").text() != key)
      return std::nullopt;
    DeepNumbers numbers;
    numbers.drifted = root.at("drifted").texts();
    numbers.drift = root.at("drift").text();
    numbers.odd_steps = static_cast<std::uint32_t>(root.at("odd_steps").count());
    numbers.odd_step = root.at("odd_step").text();
    for (const Field& tensor : root.at("tensors").items())
      numbers.tensors.push_back(decode_tensor_numbers(tensor, names));
    return numbers;
  } catch (const Error& error) {
    if (error.code() != Code::kCorrupt) throw;
    return std::nullopt;
  }
}

}  // namespace tessera
