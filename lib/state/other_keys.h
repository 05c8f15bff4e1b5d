#pragma once
// Keys of dicts that are neither text nor integers: paths have them as text, and a ContainerNote
// keeps what they are.
#include <tessera/state/value.h>

#include <string_view>
#include <unordered_map>

namespace tessera {

/// Whether a note is of such keys, not of a dict's kind or of an empty dict.
inline bool is_of_other_keys(const ContainerNote& note) {
  return note.kind == Value::Kind::kDict && note.attributes.is_dict();
}

/// A note's keys by their text, which lie in the note.
using OtherKeysByText = std::unordered_map<std::string_view, const Value*>;

/// `attributes` of such a note; empty for None.
inline OtherKeysByText other_keys_by_text(const Value& attributes) {
  OtherKeysByText keys;
  if (!attributes.is_dict()) return keys;
  for (const auto& [text, key] : attributes.as_dict()) keys.emplace(text.as_string(), &key);
  return keys;
}

/// The attributes of the note of the top's such keys; None without one.
inline Value other_top_keys(const StateDict& state) {
  for (const ContainerNote& note : state.containers)
    if (note.path.empty() && is_of_other_keys(note)) return note.attributes;
  return {};
}

}  // namespace tessera
