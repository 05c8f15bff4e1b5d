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
#include "lib/live/live_entry.h"
#include "lib/live/live_wire.h"

namespace tessera {

namespace {

constexpr std::uint64_t kWireVersion = 4;
constexpr std::size_t kShortText = 60;
constexpr std::size_t kLengthBytes = 10;  // the longest number
constexpr std::size_t kEntryBytes = 80;  // of a usual description: only saves growing

// An entry's kind, and whether its name is its path's, are one number.
constexpr std::uint64_t kKindMask = 3, kNamedAsPath = 4;

// A tensor's type, its flags and the number of its pieces are one number.
constexpr std::uint64_t kDTypeMask = 0xff, kReplicated = 0x100, kIsParameter = 0x200,
                        kOfFirstRank = 0x400;
constexpr int kPiecesShift = 16;

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
  names.reserve(state.dict.entries.size());
  for (const StateEntry& entry : state.dict.entries) {
    const std::size_t below_it = state.per_rank.contains(entry.name) ? 1 : 0;
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
    fail(Code::kUnsupported, "a live value has a tensor inside",
         "give the tensor an entry of its own");
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
        return has_nan(value.as_dict());
      case Value::Kind::kOrderedDict:
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
        return Value::dict(of(value.as_dict()));
      case Value::Kind::kOrderedDict:
        return Value::ordered_dict(of(value.as_dict()), of(value.attributes()));
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

LiveEntry::Kind kind_of(const LiveState& state, const StateEntry& entry) {
  if (entry.value.is_tensor()) return LiveEntry::Kind::kTensor;
  return state.per_rank.contains(entry.name) ? LiveEntry::Kind::kPerRank : LiveEntry::Kind::kShared;
}

template <class Out>
void describe_tensor(const LiveTensor& tensor, Out& out) {
  const std::uint64_t flags = (tensor.replicated ? kReplicated : 0) |
                              (tensor.is_parameter ? kIsParameter : 0) |
                              (tensor.copied_at_once ? kOfFirstRank : 0);
  out.number(static_cast<std::uint64_t>(tensor.spec.dtype) | flags |
             std::uint64_t{tensor.pieces.size()} << kPiecesShift)
      .integers(tensor.spec.shape.extents());
  for (const LivePiece& piece : tensor.pieces) out.chunk(piece.chunk).integers(piece.strides);
}

template <class Out>
void describe_head(const LiveState& state, Out& out) {
  out.number(kWireVersion).number(state.dict.entries.size());
}

/// entry.name == dotted(entry.path), for paths of keys alone, as most are.
bool is_named_as_path(const StateEntry& entry) {
  std::string_view rest = entry.name;
  for (const PathItem& item : entry.path) {
    if (item.kind != PathItem::Kind::kKey || !rest.starts_with(item.key)) return false;
    rest.remove_prefix(item.key.size());
    if (&item == &entry.path.back()) return rest.empty();
    if (!rest.starts_with('.')) return false;
    rest.remove_prefix(1);
  }
  return false;
}

template <class Out>
void describe_entry(const LiveState& state, const StateEntry& entry, Out& out) {
  const LiveEntry::Kind kind = kind_of(state, entry);
  const bool as_path = is_named_as_path(entry);
  out.number(static_cast<std::uint64_t>(kind) | (as_path ? kNamedAsPath : 0)).path(entry.path);
  if (!as_path) out.text(entry.name);
  if (kind == LiveEntry::Kind::kTensor)
    describe_tensor(state.tensors[entry.value.tensor_index()], out);
}

/// What describing relies on, and what a save must not find missing.
bool has_memory(const LiveState& state, const StateEntry& entry) {
  if (!entry.value.is_tensor()) return true;
  const std::uint32_t index = entry.value.tensor_index();
  return index < state.tensors.size() &&
         std::ranges::all_of(state.tensors[index].pieces, [](const LivePiece& piece) {
           return piece.data != nullptr || piece.chunk.numel() == 0;
         });
}

Bytes agreements_of(const LiveState& state) {
  WireWriter out;
  const auto all = state.agreed ? state.agreed() : std::vector<Agreement>();
  out.number(all.size());
  for (const Agreement& each : all) out.text(each.name).text(each.value).text(each.hint);
  return out.finish();
}

}  // namespace

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
  structure = in.bytes();
  values = in.bytes();
  agreed = in.bytes();
}

Bytes describe(const LiveState& state) {
  WireWriter structure;
  WireWriter values;
  structure.reserve(state.dict.entries.size() * kEntryBytes);
  describe_head(state, structure);
  for (const StateEntry& entry : state.dict.entries) {
    in_tensor(entry.name, [&] {
      describe_entry(state, entry, structure);
      if (entry.value.is_tensor()) return;
      if (kind_of(state, entry) == LiveEntry::Kind::kPerRank) {
        values.bytes(pickled(entry.value));
        return;
      }
      const Sha256Digest digest = sha256(pickled(OneNan::without(entry.value)));
      values.bytes(std::as_bytes(std::span(digest))).text(short_text(entry.value));
    });
  }
  const Bytes parts[] = {structure.finish(), values.finish(), agreements_of(state)};
  WireWriter message;
  message.reserve(parts[0].size() + parts[1].size() + parts[2].size() + 3 * kLengthBytes);
  for (const Bytes& part : parts) message.bytes(part);
  return message.finish();
}

bool still_has_structure(const LiveState& state, ByteView structure) {
  WireComparison comparison(structure);
  describe_head(state, comparison);
  for (const StateEntry& entry : state.dict.entries) {
    if (!comparison.same_so_far() || !has_memory(state, entry)) return false;
    describe_entry(state, entry, comparison);
  }
  return comparison.same();
}

Sha256Digest digest_of_shared(const LiveState& state, const StateDict& values) {
  Sha256 shared;
  for (const StateEntry& entry : values.entries) {
    in_tensor(entry.name, [&] {
      const bool is_shared = !state.per_rank.contains(entry.name);
      const Bytes pickle = pickled(is_shared ? OneNan::without(entry.value) : entry.value);
      check_readable(entry.value, pickle);
      if (!is_shared) return;
      const std::uint64_t size = pickle.size();
      shared.update(std::as_bytes(std::span(&size, 1)));
      shared.update(pickle);
    });
  }
  shared.update(agreements_of(state));
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
  if (structure.number() != kWireVersion)
    fail(Code::kUnsupported, "ranks of different versions save together");
  for (std::size_t left = structure.count(2); left > 0; --left) {
    LiveEntry entry;
    const std::uint64_t named = structure.number();
    entry.kind = static_cast<LiveEntry::Kind>(named & kKindMask);
    entry.path = structure.path();
    entry.name = (named & kNamedAsPath) != 0 ? dotted(entry.path) : structure.text();
    switch (entry.kind) {
      case LiveEntry::Kind::kTensor: {
        const std::uint64_t head = structure.number();
        if ((head & kDTypeMask) >= all_dtypes().size())
          fail(Code::kCorrupt, "a message of another rank has an unknown element type");
        entry.spec.dtype = static_cast<DType>(head & kDTypeMask);
        entry.replicated = (head & kReplicated) != 0;
        entry.is_parameter = (head & kIsParameter) != 0;
        entry.of_first_rank = (head & kOfFirstRank) != 0;
        entry.spec.shape = Shape::checked(structure.integers());
        for (std::uint64_t pieces = head >> kPiecesShift; pieces > 0; --pieces) {
          entry.chunks.push_back(structure.chunk());
          structure.integers();  // its strides are its rank's own affair
        }
        break;
      }
      case LiveEntry::Kind::kShared: {
        const ByteView digest = values.bytes();
        entry.digest.assign(digest.begin(), digest.end());
        entry.text = values.text();
        break;
      }
      case LiveEntry::Kind::kPerRank: {
        const ByteView pickle = values.bytes();
        entry.pickle.assign(pickle.begin(), pickle.end());
        break;
      }
      default:
        fail(Code::kCorrupt, "a message of another rank has an unknown kind of entry");
    }
    f(std::move(entry));
  }
}

}  // namespace tessera
