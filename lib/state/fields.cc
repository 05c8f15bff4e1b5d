#include "lib/state/fields.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include "lib/state/tensor_wrapper.h"

namespace tessera {
namespace {

constexpr std::size_t kMostText = 40;

std::string quoted(std::string_view text) {
  if (text.size() <= kMostText) return fmt::format("\"{}\"", printable(text));
  return fmt::format("\"{}...\"", printable(text.substr(0, kMostText)));
}

/// Python pickles a member of an IntEnum (DeepSpeed's ZeroStageEnum) as a call of its class with
/// the number.
const Value& without_enum(const Value& value) {
  if (value.kind() != Value::Kind::kOpaque) return value;
  const Value& arguments = value.as_opaque().arguments;
  const bool call = arguments.kind() == Value::Kind::kTuple && arguments.as_list().size() == 1;
  return call ? arguments.as_list()[0] : value;
}

bool is_count(const Value& value) { return value.is_int() && value.as_int() >= 0; }

std::string sized(std::string_view name, std::size_t items) {
  return fmt::format("a {} of {}", name, items);
}

}  // namespace

std::string described(const Value& value) {
  using Kind = Value::Kind;
  switch (value.kind()) {
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return value.as_bool() ? "True" : "False";
    case Kind::kInt:
      return fmt::format("{}", value.as_int());
    case Kind::kBigInt:
      return "an integer of more than 64 bits";
    case Kind::kFloat:
      return fmt::format("{}", value.as_real());
    case Kind::kComplex:
      return "a complex number";
    case Kind::kString:
      return quoted(value.as_string());
    case Kind::kBytes:
    case Kind::kByteArray:
    case Kind::kBytesIo:
      return "bytes";
    case Kind::kList:
      return sized("list", value.as_list().size());
    case Kind::kTuple:
      return sized("tuple", value.as_list().size());
    case Kind::kSet:
    case Kind::kFrozenSet:
      return sized("set", value.as_list().size());
    case Kind::kSize:
      return fmt::format("torch.Size([{}])", fmt::join(value.as_size(), ", "));
    case Kind::kDict:
    case Kind::kOrderedDict:
    case Kind::kDefaultDict:
    case Kind::kCounter:
      return sized("dict", value.as_dict().size());
    case Kind::kDType:
      return "a dtype";
    case Kind::kTensor:
      return "a tensor";
    case Kind::kOpaque:
      return fmt::format("an object of {}", printable(object_class(value)));
    case Kind::kBackReference:
      return "a cycle";
  }
  TESSERA_CHECK(false);
}

bool is_sequence(const Value& value) {
  return value.kind() == Value::Kind::kList || value.kind() == Value::Kind::kTuple;
}

const Value* member(const Value& of, std::string_view key) {
  if (of.kind() != Value::Kind::kOpaque) return of.find(key);
  if (!of.as_opaque().has_state) return nullptr;
  const Value& state = of.as_opaque().state;
  if (!is_sequence(state)) return state.find(key);
  if (state.as_list().size() != 2) return nullptr;  // else (dict or None, slots)
  for (const Value& half : state.as_list())
    if (const Value* found = half.find(key)) return found;
  return nullptr;
}

std::optional<std::int64_t> integer_in(const Value& of, std::string_view key) {
  const Value* found = member(of, key);
  return found && found->is_int() ? std::optional(found->as_int()) : std::nullopt;
}

std::optional<bool> flag_in(const Value& of, std::string_view key) {
  const Value* found = member(of, key);
  const bool is_flag = found && found->kind() == Value::Kind::kBool;
  return is_flag ? std::optional(found->as_bool()) : std::nullopt;
}

std::string text_in(const Value& of, std::string_view key) {
  const Value* found = member(of, key);
  return found && found->is_string() ? found->as_string() : std::string();
}

const ValueList& list_in(const Value& of, std::string_view key) {
  static const ValueList kNone;
  const Value* found = member(of, key);
  return found && is_sequence(*found) ? found->as_list() : kNone;
}

Path root_path(std::string_view root) {
  Path path;
  if (root.empty()) return path;
  for (const std::string_view key : split(root, '.')) path.push_back(key_item(key));
  return path;
}

std::string Field::where() const {
  return path_.empty() ? std::string() : fmt::format("\"{}\"", printable(path_));
}

void Field::corrupt(std::string_view what) const {
  std::string message(document_);
  if (!message.empty()) message += ": ";
  if (!path_.empty()) message += where() + ": ";
  fail(Code::kCorrupt, message + std::string(what));
}

void Field::refuse(std::string_view expected) const {
  std::string message(document_);
  if (!message.empty()) message += ": ";
  message += fmt::format("expected {}", expected);
  if (!path_.empty()) message += " at " + where();
  fail(Code::kCorrupt, fmt::format("{}, found {}", message, described(*value_)));
}

Field Field::below(std::string_view item, const Value& value) const {
  std::string path = path_;
  if (!path.empty()) path += '.';
  path += item;
  return Field(value, document_, std::move(path));
}

std::optional<Field> Field::find(std::string_view key) const {
  const Value* found = member(*value_, key);
  return found ? std::optional(below(key, *found)) : std::nullopt;
}

std::optional<Field> Field::find_present(std::string_view key) const {
  const Value* found = member(*value_, key);
  return found && !found->is_none() ? std::optional(below(key, *found)) : std::nullopt;
}

Field Field::at(std::string_view key) const {
  if (const Value* found = member(*value_, key)) return below(key, *found);
  const bool object = value_->kind() == Value::Kind::kOpaque;
  if (!object) dict();
  std::string message(document_);
  if (!message.empty()) message += ": ";
  message += fmt::format("\"{}\" is missing", printable(key));
  if (!path_.empty()) message += " in " + where();
  if (!object) fail(Code::kCorrupt, message);
  fail(Code::kUnsupported,
       fmt::format("{}{}{}", message, path_.empty() ? " in " : ", ", described(*value_)));
}

std::vector<Field> Field::items() const {
  std::vector<Field> out;
  for (const Value& item : list()) out.push_back(below(fmt::format("{}", out.size()), item));
  return out;
}

std::vector<Field::Entry> Field::entries() const {
  std::vector<Entry> out;
  for (const auto& [key, value] : dict()) {
    const std::string item = key.is_string() ? key.as_string() : described(key);
    out.push_back({Field(key, document_, path_), below(item, value)});
  }
  return out;
}

const ValueDict& Field::dict() const {
  if (!value_->is_dict()) refuse("a dict");
  return value_->as_dict();
}

const ValueList& Field::list() const {
  if (!is_sequence(*value_)) refuse("a list");
  return value_->as_list();
}

const std::string& Field::text() const {
  if (!value_->is_string()) refuse("a string");
  return value_->as_string();
}

bool Field::flag() const {
  if (value_->kind() != Value::Kind::kBool) refuse("True or False");
  return value_->as_bool();
}

std::int64_t Field::integer() const {
  if (!value_->is_int()) refuse("an integer");
  return value_->as_int();
}

std::int64_t Field::count() const {
  const Value& number = without_enum(*value_);
  if (!is_count(number)) refuse("a count");
  return number.as_int();
}

std::uint32_t Field::tensor() const {
  if (!value_->is_tensor()) refuse("a tensor");
  return value_->tensor_index();
}

// Without a Field per item: shapes and lists of names are what large checkpoints are full of.
std::vector<std::int64_t> Field::integers() const {
  if (value_->kind() == Value::Kind::kSize) return value_->as_size();
  std::vector<std::int64_t> out;
  for (const Value& item : list()) {
    if (!item.is_int()) below(fmt::format("{}", out.size()), item).refuse("an integer");
    out.push_back(item.as_int());
  }
  return out;
}

std::vector<std::int64_t> Field::counts() const {
  if (value_->kind() == Value::Kind::kSize) {
    for (const std::int64_t extent : value_->as_size())
      if (extent < 0) refuse("counts");
    return value_->as_size();
  }
  std::vector<std::int64_t> out;
  for (const Value& item : list()) {
    const Value& number = without_enum(item);
    if (!is_count(number)) below(fmt::format("{}", out.size()), item).refuse("a count");
    out.push_back(number.as_int());
  }
  return out;
}

std::vector<std::string> Field::texts() const {
  std::vector<std::string> out;
  for (const Value& item : list()) {
    if (!item.is_string()) below(fmt::format("{}", out.size()), item).refuse("a string");
    out.push_back(item.as_string());
  }
  return out;
}

Shape Field::shape() const {
  const std::vector<std::int64_t> extents = counts();
  try {
    return Shape::checked(extents);
  } catch (const Error& error) {  // too many dims or elements
    corrupt(error.status().message);
  }
}

}  // namespace tessera
