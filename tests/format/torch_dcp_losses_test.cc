// What a state loses in torch-dcp is said, and what is written is what PyTorch can read.
#include <tessera/format/torch_dcp.h>

#include <catch2/catch.hpp>

#include "tests/support/written_checkpoint.h"

namespace torch_dcp_losses_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

Value text(const char* s) { return Value::string(s); }

/// A checkpoint of values alone.
Manifest manifest_of(const Value& root) {
  Manifest manifest;
  ValueBudget budget(1 << 16);
  manifest.state = flatten(root, budget);
  return manifest;
}

std::vector<std::string> notes_of(const Value& root) {
  const Manifest manifest = manifest_of(root);
  std::vector<std::string> messages;
  for (const Note& note : torch_dcp_driver().output_plan(manifest, {}).notes)
    messages.push_back(note.message);
  return messages;
}

bool says(const std::vector<std::string>& notes, const std::string& part) {
  return std::ranges::any_of(
      notes, [&](const std::string& note) { return note.find(part) != std::string::npos; });
}

}  // namespace

TEST_CASE("keys that become text are told") {
  const Value one = Value::integer(1);
  CHECK(notes_of(Value::dict({{text("a"), one}})).empty());
  const auto single =
      notes_of(Value::dict({{text("table"), Value::dict({{Value::integer(7), one}})}}));
  REQUIRE(single.size() == 1);
  CHECK(says(single, "\"table.7\" is no string and becomes text"));
  const auto many = notes_of(Value::dict(
      {{text("table"),
        Value::dict({{Value::integer(7), Value::dict({{text("x"), one}, {text("y"), one}})},
                     {Value::boolean(true), one},
                     {Value::real(1.5), one},
                     {Value::list({one, text("a")}, Value::Kind::kTuple), one}})}}));
  REQUIRE(many.size() == 1);
  CHECK(says(many, "4 dict keys that are no strings"));
}

TEST_CASE("ids of an optimizer are no loss: they are integers again on the way back") {
  const Value step = Value::dict({{text("step"), Value::integer(3)}});
  const Value group = Value::dict(
      {{text("lr"), Value::real(0.1)}, {text("params"), Value::list({Value::integer(0)})}});
  const Value optim = Value::dict({{text("state"), Value::dict({{Value::integer(0), step}})},
                                   {text("param_groups"), Value::list({group})}});
  CHECK(notes_of(Value::dict({{text("optimizer"), optim}})).empty());
}

TEST_CASE("containers that become plain or go are told, apart from keys") {
  const auto notes = notes_of(
      Value::dict({{text("empty"), Value::dict({})},
                   {text("ordered"), Value::ordered_dict({}, Value())},
                   {text("table"), Value::dict({{Value::boolean(true), Value::integer(1)}})}}));
  REQUIRE(notes.size() == 2);
  CHECK(says(
      notes,
      "2 containers (an empty dict, or an OrderedDict, defaultdict or Counter) such as \"empty\""));
  CHECK(says(notes, "\"table.True\" is no string"));
}

TEST_CASE("a list at the top becomes a dict, as PyTorch rebuilds it") {
  const Value root =
      Value::list({Value::integer(5), Value::dict({{text("a"), Value::integer(6)}})});
  CHECK(says(notes_of(root), "the state is a list"));
  const Manifest source = manifest_of(root);
  MemoryFileSystem nothing;
  nothing.make_directories("/from");
  const auto from = nothing.open_directory("/from");
  const WrittenCheckpoint written(torch_dcp_driver(), source, *from);
  const Manifest back = read_all(torch_dcp_driver(), written.place());
  REQUIRE(back.state.entries.size() == 2);
  // An index in a path makes PyTorch look for a list, where its reader starts with a dict.
  CHECK(back.state.entries[0].path == Path{{PathItem::Kind::kKey, 0, "0"}});
  CHECK(back.state.entries[1].path ==
        Path{{PathItem::Kind::kKey, 0, "1"}, {PathItem::Kind::kKey, 0, "a"}});
}

}  // namespace torch_dcp_losses_test
