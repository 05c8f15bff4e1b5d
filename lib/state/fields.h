#pragma once
// Checked access to values that come from a file: what pickle, JSON or YAML decoded to. A Field is
// a value and the path that leads to it, so that every refusal says what, where, what was expected
// and what was found:
//   corrupt: shard metadata: expected a count at "param_metadata.0.padding", found -1
//   corrupt: shard metadata: "padding" is missing in "param_metadata.0"
//   unsupported: "_spec" is missing in "model.w", an object of torch.distributed.tensor.DTensor
// What does not have the expected form is kCorrupt. An attribute that an object lacks is
// kUnsupported: the object was pickled by another version of its class.
// A Field refers to the value; the value must outlive it.
#include <tessera/state/value.h>
#include <tessera/tensor/shape.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

class Field {
 public:
  struct Entry;

  /// `document` names what the paths begin in ("shard metadata"; may be empty) and must outlive
  /// all fields below; `path` leads to `value` in it.
  explicit Field(const Value& value, std::string_view document = {}, std::string path = {})
      : value_(&value), document_(document), path_(std::move(path)) {}

  const Value& value() const { return *value_; }
  const std::string& path() const { return path_; }

  // What lies below: an entry of a dict, or an attribute of an object.
  /// nullopt: there is none.
  std::optional<Field> find(std::string_view key) const;
  /// As find(), but None counts as absent.
  std::optional<Field> find_present(std::string_view key) const;
  Field at(std::string_view key) const;
  /// Items of a list or tuple.
  std::vector<Field> items() const;
  /// Entries of a dict. A key's path is that of the dict.
  std::vector<Entry> entries() const;

  // The value itself.
  const ValueDict& dict() const;
  const ValueList& list() const;  // a list or a tuple
  const std::string& text() const;
  bool flag() const;
  std::int64_t integer() const;
  std::int64_t count() const;    // not negative; a member of an IntEnum counts as its number
  std::uint32_t tensor() const;  // an index into its archive
  std::vector<std::int64_t> integers() const;  // a torch.Size, a list or a tuple
  std::vector<std::int64_t> counts() const;
  std::vector<std::string> texts() const;
  Shape shape() const;

  /// Throws kCorrupt: `expected` ("a list of pairs") is not what was found here.
  [[noreturn]] void refuse(std::string_view expected) const;
  /// Throws kCorrupt: `what` is wrong here ("offsets and sizes differ in length").
  [[noreturn]] void corrupt(std::string_view what) const;

 private:
  Field below(std::string_view item, const Value& value) const;
  std::string where() const;

  const Value* value_;
  std::string_view document_;
  std::string path_;
};

struct Field::Entry {
  Field key;
  Field value;
};

/// An entry of a dict or an attribute of an object (its state, or its slots); nullptr: none.
const Value* member(const Value& of, std::string_view key);

// What may be absent, or of another kind, without harm: nullopt, "" and no items then.
std::optional<std::int64_t> integer_in(const Value& of, std::string_view key);
std::optional<bool> flag_in(const Value& of, std::string_view key);
std::string text_in(const Value& of, std::string_view key);
const ValueList& list_in(const Value& of, std::string_view key);

/// A list or a tuple.
bool is_sequence(const Value& value);

/// A dotted name cut into keys; "" is the empty path.
Path root_path(std::string_view root);

/// What a message calls `value`: "-1", "\"text\"", "a dict of 3", "an object of torch.Generator".
std::string described(const Value& value);

}  // namespace tessera
