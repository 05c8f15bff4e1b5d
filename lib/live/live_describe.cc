#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/json.h>
#include <tessera/encoding/pickle_reader.h>
#include <tessera/encoding/pickle_writer.h>
#include <tessera/encoding/tagged_json.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "lib/encoding/utf8.h"
#include "lib/live/callbacks.h"
#include "lib/live/live_entry.h"
#include "lib/state/live/wire.h"

namespace tessera {

namespace {

constexpr std::uint64_t kWireVersion = 5;
constexpr std::size_t kShortText = 60;
constexpr std::size_t kLengthBytes = 10;  // the longest number

[[noreturn]] void refuse_name(const StateEntry& entry, const std::string& why) {
  Status status;
  status.code = Code::kInvalidArgument;
  status.message = fmt::format("no load could read its name: {}", why);
  status.context.tensor = printable(entry.name);
  throw Error(std::move(status));
}

/// `levels`: of the path under which it is stored.
void check_name(const StateEntry& entry, std::size_t levels) {
  for (const PathItem& item : entry.path) {
    if (!is_python_utf8(item.key)) refuse_name(entry, "a string that is not UTF-8");
    if (item.index < 0) refuse_name(entry, "a negative number");
  }
  if (!is_python_utf8(entry.name)) refuse_name(entry, "a string that is not UTF-8");
  if (levels > static_cast<std::size_t>(kMaxValueDepth))
    refuse_name(entry, fmt::format("expected at most {} levels, found {}", kMaxValueDepth, levels));
}

}  // namespace

void check_names(const LiveState& state) {
  std::vector<std::string_view> names;
  names.reserve(state.dict().entries.size());
  for (const StateEntry& entry : state.dict().entries) {
    const std::size_t below_it = state.per_rank().contains(entry.name) ? 1 : 0;
    check_name(entry, entry.path.size() + below_it);
    names.push_back(entry.name);
  }
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice != names.end())
    fail(Code::kInvalidArgument,
         fmt::format("two entries of the live state are named \"{}\"", printable(*twice)));
}

namespace {

Bytes pickled(const Value& value) {
  PickleEmitter emitter;
  write_value(emitter, value, [](PickleEmitter&, std::uint32_t) {
    fail(Code::kUnsupported, "a live value has a tensor inside", "give the tensor its own entry");
  });
  return emitter.finish();
}

/// What the reader would refuse must not replace what can be read: the reader itself is asked, as
/// its limits are what counts. Numbers, as most values are, have none.
void check_readable(const Value& value, ByteView pickle) {
  if (value.node_id() == nullptr) return;
  try {
    const PickleGraph graph = read_pickle(pickle);
    decode_pickle(graph, graph.root(), {});
  } catch (const Error& error) {
    fail(Code::kInvalidArgument,
         fmt::format("no load could read its value: {}", error.status().message));
  }
}

/// Gives every NaN the same bits, so that equal values have equal pickles. (Not those inside of
/// objects of unknown classes.)
class OneNan {
 public:
  /// The value itself where it holds none.
  static Value without(const Value& value) { return has_nan(value) ? OneNan().of(value) : value; }

 private:
  static bool has_nan(const Value& value) {
    switch (value.kind()) {
      case Value::Kind::kFloat:
        return std::isnan(value.as_real());
      case Value::Kind::kComplex:
        return std::isnan(value.as_complex().first) || std::isnan(value.as_complex().second);
      case Value::Kind::kDict:
      case Value::Kind::kOrderedDict:
      case Value::Kind::kDefaultDict:
      case Value::Kind::kCounter:
        return has_nan(value.as_dict()) || has_nan(value.attributes());
      case Value::Kind::kList:
      case Value::Kind::kTuple:
      case Value::Kind::kSet:
      case Value::Kind::kFrozenSet:
        return std::ranges::any_of(value.as_list(), [](const Value& v) { return has_nan(v); });
      default:
        return false;
    }
  }
  static bool has_nan(const ValueDict& entries) {
    return std::ranges::any_of(
        entries, [](const auto& entry) { return has_nan(entry.first) || has_nan(entry.second); });
  }
  Value of(const Value& value) {
    if (value.kind() == Value::Kind::kFloat) return Value::real(of(value.as_real()));
    if (value.node_id() == nullptr) return value;
    if (const auto known = known_.find(value.node_id()); known != known_.end())
      return known->second;
    return known_[value.node_id()] = inside(value);
  }

  static double of(double real) {
    return std::isnan(real) ? std::numeric_limits<double>::quiet_NaN() : real;
  }
  ValueDict of(const ValueDict& entries) {
    ValueDict out;
    out.reserve(entries.size());
    for (const auto& [key, value] : entries) out.emplace_back(of(key), of(value));
    return out;
  }
  Value inside(const Value& value) {
    switch (value.kind()) {
      case Value::Kind::kComplex:
        return Value::complex(of(value.as_complex().first), of(value.as_complex().second));
      case Value::Kind::kDict:
      case Value::Kind::kOrderedDict:
      case Value::Kind::kDefaultDict:
      case Value::Kind::kCounter:
        return Value::dict_of(value.kind(), of(value.as_dict()), of(value.attributes()));
      case Value::Kind::kList:
      case Value::Kind::kTuple:
      case Value::Kind::kSet:
      case Value::Kind::kFrozenSet: {
        ValueList out;
        out.reserve(value.as_list().size());
        for (const Value& item : value.as_list()) out.push_back(of(item));
        return Value::list(std::move(out), value.kind());
      }
      default:
        return value;
    }
  }

  std::unordered_map<const void*, Value> known_;
};

}  // namespace

Bytes agreements_of(const LiveState& state, std::exception_ptr& thrown) {
  WireWriter out;
  const auto all = state.agreed ? in_callback("LiveState::agreed", thrown, state.agreed)
                                : std::vector<Agreement>();
  out.number(all.size());
  for (const Agreement& each : all) out.text(each.name).text(each.value).text(each.hint);
  return out.finish();
}

std::string short_text(const Value& value) {
  std::string text;
  try {
    ValueBudget budget(1000);
    text = dump_json(to_tagged_json(
        value, [](std::uint32_t) { return std::string("tensor"); }, budget));
  } catch (const Error&) {
    text = "an object";
  }
  text = printable(text);
  if (text.size() > kShortText) text = text.substr(0, kShortText - 3) + "...";
  return text;
}

LiveDescription::LiveDescription(ByteView message) {
  WireReader in(message);
  if (in.number() != kWireVersion)
    fail(Code::kUnsupported, "ranks of different versions save together");
  structure = in.bytes();
  values = in.bytes();
  agreed = in.bytes();
}

Bytes describe(const LiveState& state, ByteView structure, ByteView agreed) {
  WireWriter values;
  for (const StateEntry& entry : state.dict().entries) {
    if (entry.value.is_tensor()) continue;
    in_tensor(entry.name, [&] {
      if (state.per_rank().contains(entry.name)) {
        values.bytes(pickled(entry.value));
        return;
      }
      const Sha256Digest digest = sha256(pickled(OneNan::without(entry.value)));
      values.bytes(std::as_bytes(std::span(digest))).text(short_text(entry.value));
    });
  }
  const Bytes encoded = values.finish();
  WireWriter message;
  message.reserve(structure.size() + encoded.size() + agreed.size() + 4 * kLengthBytes);
  message.number(kWireVersion).bytes(structure).bytes(encoded).bytes(agreed);
  return message.finish();
}

Sha256Digest digest_of_shared(const LiveState& state, const StateDict& values, ByteView agreed) {
  Sha256 shared;
  for (const StateEntry& entry : values.entries) {
    in_tensor(entry.name, [&] {
      const bool is_shared = !state.per_rank().contains(entry.name);
      const Bytes pickle = pickled(is_shared ? OneNan::without(entry.value) : entry.value);
      check_readable(entry.value, pickle);
      if (!is_shared) return;
      const std::uint64_t size = pickle.size();
      shared.update(std::as_bytes(std::span(&size, 1)));
      shared.update(pickle);
    });
  }
  shared.update(agreed);
  return shared.finish();
}

std::vector<Agreement> read_agreements(const LiveDescription& description) {
  WireReader in(description.agreed);
  std::vector<Agreement> all(in.count(3));
  for (Agreement& each : all) {
    each.name = in.text();
    each.value = in.text();
    each.hint = in.text();
  }
  return all;
}

void read_description(const LiveDescription& description,
                      const std::function<void(LiveEntry&& entry)>& f) {
  WireReader structure(description.structure);
  WireReader values(description.values);
  while (!structure.at_end()) {
    LiveEntry entry{read_structure_entry(structure), {}, {}, {}};
    if (entry.kind == LiveEntry::Kind::kShared) {
      const ByteView digest = values.bytes();
      entry.digest.assign(digest.begin(), digest.end());
      entry.text = values.text();
    } else if (entry.kind == LiveEntry::Kind::kPerRank) {
      const ByteView pickle = values.bytes();
      entry.pickle.assign(pickle.begin(), pickle.end());
    }
    f(std::move(entry));
  }
}

}  // namespace tessera
