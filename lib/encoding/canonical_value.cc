#include <fmt/format.h>
#include <tessera/encoding/canonical_value.h>
#include <tessera/storage/checksum.h>

#include <algorithm>
#include <bit>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/encoding/numpy_json.h"

namespace tessera {
namespace {

using Kind = Value::Kind;
using How = OpaqueObject::How;

std::string real_text(double v) { return fmt::format("{:016x}", std::bit_cast<std::uint64_t>(v)); }

std::string size_text(const std::vector<std::int64_t>& extents) {
  std::string text = "size ";
  for (std::size_t i = 0; i < extents.size(); ++i)
    text += fmt::format("{}{}", i ? "," : "", extents[i]);
  return text;
}

/// The word before the bytes of a text or of bytes.
std::string_view word_of(Kind kind) {
  switch (kind) {
    case Kind::kString:
      return "str ";
    case Kind::kBytes:
      return "bytes ";
    case Kind::kByteArray:
      return "bytearray ";
    default:
      return "bytesio ";
  }
}

/// Releases of Python and of numpy moved these: the objects are the same.
std::string global_text(const OpaqueObject& object) {
  constexpr std::pair<std::string_view, std::string_view> kMoved[] = {
      {"numpy._core", "numpy.core"}, {"pathlib._local", "pathlib"}};
  for (const auto& [now, before] : kMoved)
    if (object.module == now || object.module.starts_with(fmt::format("{}.", now)))
      return fmt::format("{}{}.{}", before, object.module.substr(now.size()), object.name);
  return object.global();
}

const OpaqueObject* global_in(const Value& value) {
  const bool global = value.kind() == Kind::kOpaque && value.as_opaque().how == How::kGlobal;
  return global ? &value.as_opaque() : nullptr;
}

/// How an object is made, whichever protocol of pickle says it.
struct Making {
  std::string_view word;
  std::string global;
  const Value* arguments = nullptr;  // nullptr: the tuple of `given`
  std::span<const Value> given;
};

Making making_of(const OpaqueObject& object) {
  Making making{
      object.how == How::kReduce ? "call" : "new", global_text(object), &object.arguments, {}};
  if (object.how != How::kReduce || object.arguments.kind() != Kind::kTuple) return making;
  const std::span<const Value> given = object.arguments.as_list();
  const OpaqueObject* cls = given.empty() ? nullptr : global_in(given[0]);
  if (cls == nullptr || object.module != "copyreg") return making;
  const OpaqueObject* base = given.size() == 3 ? global_in(given[1]) : nullptr;
  if (object.name == "__newobj__") return {"new", global_text(*cls), nullptr, given.subspan(1)};
  const bool old = object.name == "_reconstructor" && base != nullptr &&
                   base->global() == "builtins.object" && given[2].is_none();
  if (old) return {"new", global_text(*cls), nullptr, {}};  // protocols 0 and 1
  return making;
}

}  // namespace

/// The text of one value: its parts' texts, each behind its length.
class ValueDigester::Writer {
 public:
  explicit Writer(ValueDigester& digester) : digester_(digester) {}

  Part write(const Value& value) {
    switch (value.kind()) {
      case Kind::kNone:
        return {"none"};
      case Kind::kBool:
        return {value.as_bool() ? "true" : "false"};
      case Kind::kInt:
        return {fmt::format("int {}", value.as_int())};
      case Kind::kBigInt:
        return bytes("int ", value.as_string());
      case Kind::kFloat:
        return {"float " + real_text(value.as_real())};
      case Kind::kComplex:
        return {fmt::format("complex {} {}", real_text(value.as_complex().first),
                            real_text(value.as_complex().second))};
      case Kind::kSize:
        return shortened(size_text(value.as_size()));
      case Kind::kDType:
        return {fmt::format("dtype {}", torch_name(value.as_dtype()))};
      case Kind::kTensor:
        return shortened("tensor " + digester_.tensor_(value.tensor_index()));
      case Kind::kBackReference:
        return {fmt::format("up {}", value.distance())};
      case Kind::kString:
      case Kind::kBytes:
      case Kind::kByteArray:
      case Kind::kBytesIo:
        return bytes(word_of(value.kind()), value.as_string());
      default:
        compound(value);
        text_ += ')';
        return shortened(std::move(text_));
    }
  }

 private:
  Part shortened(std::string text) const {
    if (text.size() > kMostInlineText) text = "#" + hex(sha256(as_bytes(text)));
    return {std::move(text), whole_};
  }
  static Part bytes(std::string_view word, const std::string& content) {
    if (word.size() + content.size() <= kMostInlineText) return {std::string(word) + content};
    Sha256 sha;
    sha.update(as_bytes(word));
    sha.update(as_bytes(content));
    return {"#" + hex(sha.finish())};
  }

  void compound(const Value& value) {
    switch (value.kind()) {
      case Kind::kList:
        return in_order("list(", value.as_list());
      case Kind::kTuple:
        return in_order("tuple(", value.as_list());
      case Kind::kSet:
        return sorted("set(", value.as_list());
      case Kind::kFrozenSet:
        return sorted("frozenset(", value.as_list());
      case Kind::kDict:
        text_ = "dict(";
        return pairs(value.as_dict(), true);
      case Kind::kCounter:
        text_ = "counter(";
        return pairs(value.as_dict(), true);
      case Kind::kOrderedDict:
        text_ = "ordereddict(";
        add(value.attributes());
        return pairs(value.as_dict(), false);
      case Kind::kDefaultDict:
        text_ = "defaultdict(";
        add(value.attributes());
        return pairs(value.as_dict(), true);
      default:
        return object(value.as_opaque());
    }
  }

  void object(const OpaqueObject& object) {
    switch (object.how) {
      case How::kGlobal:
        text_ = "global(";
        return add_text(global_text(object));
      case How::kExtension:
        whole_ = false;
        text_ = "cut(";
        return add_text(global_text(object));
      case How::kPersistentId:
        return storage(object.arguments);
      default:
        break;
    }
    if (const auto array = plain_array(object)) return array_text(*array);
    const Making making = making_of(object);
    text_ = fmt::format("{}(", making.word);
    add_text(making.global);
    making.arguments ? add(*making.arguments) : add_text(tuple_text(making.given));
    const bool keywords =
        object.how == How::kNewObjEx &&
        !(object.keyword_arguments.is_dict() && object.keyword_arguments.as_dict().empty());
    keywords ? add(object.keyword_arguments) : add_text("-");
    object.has_state ? add(object.state) : add_text("-");
    add_text(fmt::format("items {}", object.items.size()));
    for (const Value& item : object.items) add(item);
    pairs(object.dict_items, false);
  }

  /// An untyped one loads as one of bytes.
  void storage(const Value& arguments) {
    static const Value kBytes = Value::dtype(DType::kUInt8);
    text_ = "storage(";
    if (arguments.kind() != Kind::kTuple || arguments.as_list().size() != 2) return add(arguments);
    add(arguments.as_list()[0]);
    add(arguments.as_list()[1].is_none() ? kBytes : arguments.as_list()[1]);
  }

  /// An array is its type, shape, order and bytes, whichever call makes it.
  void array_text(const NumpyArray& array) {
    text_ = "ndarray(";
    add(*array.dtype);
    add(*array.shape);
    add_text(array.fortran ? "F" : "C");
    add_text(bytes("bytes ", array.data->as_string()).text);
  }

  void in_order(const char* begin, std::span<const Value> items) {
    text_ = begin;
    for (const Value& item : items) add(item);
  }
  /// Text of a tuple that is not a node of the graph.
  std::string tuple_text(std::span<const Value> items) {
    Writer tuple(digester_);
    tuple.in_order("tuple(", items);
    tuple.text_ += ')';
    whole_ = whole_ && tuple.whole_;
    return tuple.shortened(std::move(tuple.text_)).text;
  }
  void sorted(const char* begin, const ValueList& items) {
    std::vector<std::string> texts;
    for (const Value& item : items) texts.push_back(text_of(item));
    std::ranges::sort(texts);
    text_ = begin;
    for (const std::string& text : texts) add_text(text);
  }
  void pairs(const ValueDict& entries, bool sort) {
    std::vector<std::pair<std::string, std::string>> texts;
    for (const auto& [key, value] : entries) {
      std::string name = text_of(key);
      texts.emplace_back(std::move(name), text_of(value));
    }
    if (sort) std::ranges::sort(texts);
    for (const auto& [key, value] : texts) {
      add_text(key);
      add_text(value);
    }
  }

  std::string text_of(const Value& value) {
    const Part& part = digester_.part(value);
    whole_ = whole_ && part.whole;
    return part.text;
  }
  void add(const Value& value) { add_text(text_of(value)); }
  void add_text(std::string_view text) {
    text_ += fmt::format("{}:", text.size());
    text_ += text;
  }

  ValueDigester& digester_;
  std::string text_;
  bool whole_ = true;
};

const ValueDigester::Part& ValueDigester::part(const Value& value) {
  const void* id = value.node_id();
  if (id != nullptr)
    if (const auto known = known_.find(id); known != known_.end()) return known->second;
  Part made = Writer(*this).write(value);
  const bool is_long = made.text.starts_with('#') || !made.whole;
  if (id != nullptr && is_long) return known_.emplace(id, std::move(made)).first->second;
  last_ = std::move(made);
  return last_;
}

std::string ValueDigester::digest_of(const Part& part) {
  if (part.text.starts_with('#')) return part.text.substr(1);
  return hex(sha256(as_bytes(part.text)));
}

}  // namespace tessera
