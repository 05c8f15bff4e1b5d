// Whether a state still is what a save was planned for: found out by comparing it with its own
// description of then, byte by byte.
#include <tessera/base/error.h>

#include <catch2/catch.hpp>
#include <functional>
#include <random>

#include "lib/live/live_entry.h"
#include "lib/live/live_merge.h"
#include "lib/live/snapshot.h"

namespace live_structure_test {

using namespace tessera;

namespace {

float memory[64];

LivePiece rows(std::int64_t begin, std::int64_t count) {
  return {Chunk::whole_of({{begin, 0}, {count, 4}}), memory + begin * 4, {}};
}

LiveState job() {
  LiveState state;
  state.add_piece("w", {DType::kFloat32, {8, 4}}, rows(0, 2));
  state.add_piece("w", {DType::kFloat32, {8, 4}}, rows(4, 2));
  state.add_piece("flat", {DType::kFloat32, {3, 4}}, {{{{0, 0}, {3, 4}}, 2, 7}, memory, {}});
  state.add_piece("none", {DType::kFloat32, {8, 4}}, {Chunk::whole_of({{8, 0}, {0, 4}}), {}, {}});
  state.add({key_item("optim"), int_key_item(1)}, {DType::kFloat32, {4, 2}, {1, 4}, memory});
  state.add_value("step", Value::integer(100));
  state.add_value("rng", Value::bytes("abc"), ValueScope::kPerRank);
  return state;
}

/// The bytes of the state's structure, made for it where it has none.
Bytes bytes_of(const LiveState& state) {
  LiveStructure anew;
  return structure_of(state, anew)->bytes;
}

Bytes message_of(const LiveState& state) {
  std::exception_ptr thrown;
  return describe(state, bytes_of(state), agreements_of(state, thrown));
}

bool still_has_structure(const LiveState& state, const Bytes& bytes) {
  LiveStructure anew;
  const LiveStructure* own = structure_of(state, anew);
  return own != nullptr && own->bytes == bytes;
}

struct Change {
  const char* what;
  std::function<void(LiveContents&)> make;
};

}  // namespace

TEST_CASE("a state has the structure of its description until anything but content changes") {
  const Bytes structure = bytes_of(job());
  REQUIRE(still_has_structure(job(), structure));
  const Change changes[] = {
      {"a name", [](LiveContents& state) { state.dict.entries[0].name = "v"; }},
      {"a longer name", [](LiveContents& state) { state.dict.entries[0].name = "w2"; }},
      {"a key", [](LiveContents& state) { state.dict.entries[0].path[0].key = "v"; }},
      {"an integer that becomes a key",
       [](LiveContents& state) { state.dict.entries[3].path[1] = key_item("1"); }},
      {"a key that becomes an integer",
       [](LiveContents& state) { state.dict.entries[0].path[0] = int_key_item(0); }},
      {"an integer of a list",
       [](LiveContents& state) { state.dict.entries[3].path[1] = index_item(1); }},
      {"another integer", [](LiveContents& state) { state.dict.entries[3].path[1].index = 2; }},
      {"a type", [](LiveContents& state) { state.tensors[0].spec.dtype = DType::kInt32; }},
      {"a shape", [](LiveContents& state) { state.tensors[0].spec.shape[0] = 9; }},
      {"replicas",
       [](LiveContents& state) { state.tensors[0].replicated = !state.tensors[0].replicated; }},
      {"a parameter", [](LiveContents& state) { state.tensors[0].is_parameter = true; }},
      {"an origin",
       [](LiveContents& state) { state.tensors[0].pieces[1].chunk.box.origin[0] = 5; }},
      {"an origin of more dims",
       [](LiveContents& state) { state.tensors[0].pieces[1].chunk.box.origin.push_back(0); }},
      {"a box", [](LiveContents& state) { state.tensors[0].pieces[1] = rows(4, 3); }},
      {"a range's beginning",
       [](LiveContents& state) { --state.tensors[1].pieces[0].chunk.flat_begin; }},
      {"a range's end", [](LiveContents& state) { ++state.tensors[1].pieces[0].chunk.flat_end; }},
      {"strides",
       [](LiveContents& state) {
         state.tensors[3].pieces[0].strides = {2, 4};
       }},
      {"no strides", [](LiveContents& state) { state.tensors[3].pieces[0].strides.clear(); }},
      {"a piece less", [](LiveContents& state) { state.tensors[0].pieces.pop_back(); }},
      {"a piece more", [](LiveContents& state) { state.tensors[0].pieces.push_back(rows(6, 1)); }},
      {"their order",
       [](LiveContents& state) {
         std::swap(state.tensors[0].pieces[0], state.tensors[0].pieces[1]);
       }},
      {"memory that is gone",
       [](LiveContents& state) { state.tensors[0].pieces[1].data = nullptr; }},
      {"a tensor that is gone", [](LiveContents& state) { state.tensors.pop_back(); }},
      {"another tensor",
       [](LiveContents& state) { state.dict.entries[0].value = Value::tensor(1); }},
      {"a tensor that becomes a value",
       [](LiveContents& state) { state.dict.entries[0].value = Value::integer(1); }},
      {"a value that becomes a tensor",
       [](LiveContents& state) { state.dict.entries[4].value = Value::tensor(0); }},
      {"a rank's own value that all share", [](LiveContents& state) { state.per_rank.clear(); }},
      {"a shared value that is a rank's own",
       [](LiveContents& state) { state.per_rank.insert("step"); }},
      {"an entry less", [](LiveContents& state) { state.dict.entries.pop_back(); }},
      {"an entry more",
       [](LiveContents& state) {
         state.dict.entries.push_back({"more", {key_item("more")}, Value()});
       }},
      {"their order",
       [](LiveContents& state) { std::swap(state.dict.entries[4], state.dict.entries[5]); }},
      {"nothing left", [](LiveContents& state) { state.dict.entries.clear(); }},
  };
  for (const Change& change : changes) {
    INFO(change.what);
    LiveState state = job();
    state.edit(change.make);
    CHECK_FALSE(still_has_structure(state, structure));
  }
  const Change content[] = {
      {"memory elsewhere", [](LiveContents& state) { state.tensors[0].pieces[1].data = memory; }},
      {"a value", [](LiveContents& state) { state.dict.entries[4].value = Value::integer(7); }},
      {"its type", [](LiveContents& state) { state.dict.entries[4].value = Value::string("7"); }},
  };
  for (const Change& change : content) {
    INFO(change.what);
    LiveState state = job();
    state.edit(change.make);
    CHECK(still_has_structure(state, structure));
  }
}

TEST_CASE("a state that grows by any calls has the structure of its contents, or none") {
  std::mt19937 random(11);
  int known = 0;
  for (int round = 0; round < 400; ++round) {
    LiveState state;
    std::vector<std::string> sharded;
    for (std::uint32_t step = 0, steps = random() % 12; step < steps; ++step) {
      const std::string name = "layers." + std::to_string(step);
      const TensorSpec spec = {DType::kFloat32, {8, 4}};
      switch (random() % 8) {
        case 0:
          state.add(name, {DType::kFloat32, {2, 3}, {}, memory});
          break;
        case 1:
          sharded.push_back(name);
          state.add_piece(name, spec, rows(0, 1));
          break;
        case 2:
          if (!sharded.empty())
            state.add_piece(sharded[random() % sharded.size()], spec, rows(1, random() % 3));
          break;
        case 3:
          if (!sharded.empty()) state.add_piece(sharded.back(), spec, {rows(3, 1).chunk, {}, {}});
          break;
        case 4:
          state.add_value(name, Value::integer(1), static_cast<ValueScope>(random() % 2));
          break;
        case 5:  // a second name of a tensor, or of one that is not there
          state.append_value({key_item(name)}, Value::tensor(random() % 3));
          break;
        case 6:
          state.edit([&](LiveContents& contents) {
            if (!contents.tensors.empty()) contents.tensors[0].replicated = random() % 2 == 0;
          });
          break;
        default:
          if (random() % 4 == 0) {
            const std::string gone = "layers." + std::to_string(random() % 12);
            state.remove_if([&](const StateEntry& entry) { return entry.name == gone; });
            std::erase(sharded, gone);
          }
      }
      if (state.structure() == nullptr) continue;
      ++known;
      LiveState anew = state;
      anew.edit([](LiveContents&) {});
      REQUIRE(anew.structure() != nullptr);
      REQUIRE(anew.structure()->bytes == state.structure()->bytes);
      REQUIRE(anew.structure()->memory == state.structure()->memory);
    }
  }
  CHECK(known > 1000);
}

TEST_CASE(
    "pieces that come out of order, and tensors that are not there, are looked at in a save") {
  LiveState state;
  const TensorSpec spec = {DType::kFloat32, {4, 4}};
  for (const char* name : {"a", "b"}) state.add_piece(name, spec, rows(0, 2));
  for (const char* name : {"a", "b"}) state.add_piece(name, spec, rows(2, 2));
  CHECK(state.structure() == nullptr);
  LiveState in_order;
  for (const char* name : {"a", "b"})
    for (const std::int64_t row : {0, 2}) in_order.add_piece(name, spec, rows(row, 2));
  REQUIRE(in_order.structure() != nullptr);
  CHECK(still_has_structure(state, in_order.structure()->bytes));
  CHECK(bytes_of(state) == in_order.structure()->bytes);
  in_order.append_value({key_item("c")}, Value::tensor(2));
  CHECK(in_order.structure() == nullptr);
  CHECK_FALSE(still_has_structure(in_order, bytes_of(state)));
}

TEST_CASE("what is removed takes its tensor along, unless another name means it") {
  LiveState state = job();
  state.append_value({key_item("tied")}, Value::tensor(1));
  const LiveTensor second = state.tensors()[1], last = state.tensors()[3];
  state.remove_if(
      [](const StateEntry& entry) { return entry.name == "flat" || entry.name == "w"; });
  REQUIRE(state.tensors().size() == 3);
  const auto tensor_of = [&](std::string_view name) {
    return state.tensors().at(state.dict().find(name)->value.tensor_index());
  };
  CHECK(tensor_of("tied").pieces[0].chunk == second.pieces[0].chunk);
  CHECK(tensor_of("optim.1").pieces[0].strides == last.pieces[0].strides);
  CHECK(state.dict().find("w") == nullptr);
}

TEST_CASE("a rank's description is read back as it was told") {
  const LiveState state = job();
  const Bytes message = message_of(state);
  std::size_t next = 0;
  read_description(LiveDescription(message), [&](LiveEntry&& told) {
    const StateEntry& entry = state.dict().entries.at(next++);
    INFO(entry.name.view());
    CHECK(told.name == entry.name);
    CHECK(told.path == entry.path);
    CHECK((told.kind == LiveEntry::Kind::kTensor) == entry.value.is_tensor());
    if (!entry.value.is_tensor()) return;
    const LiveTensor& tensor = state.tensors()[entry.value.tensor_index()];
    CHECK(told.spec == tensor.spec);
    CHECK(told.replicated == tensor.replicated);
    CHECK(told.is_parameter == tensor.is_parameter);
    REQUIRE(told.chunks.size() == tensor.pieces.size());
    for (std::size_t p = 0; p < told.chunks.size(); ++p)
      CHECK(told.chunks[p] == tensor.pieces[p].chunk);
  });
  CHECK(next == state.dict().entries.size());
}

TEST_CASE("sources are bound to the memory of whichever state has the structure") {
  const auto at = [](std::size_t first) {  // names in another order than tensors
    LiveState state;
    state.add_piece("gone", {DType::kInt16, {2}}, {Chunk::whole_of({{0}, {2}}), memory, {}});
    state.add({key_item("columns")}, {DType::kFloat32, {4, 2}, {1, 4}, memory + first});
    state.add_piece("rows", {DType::kFloat32, {4, 4}}, {rows(2, 2).chunk, memory + first + 8, {}});
    state.add_piece("rows", {DType::kFloat32, {4, 4}}, {rows(0, 2).chunk, memory + first + 20, {}});
    state.add_value("step", Value::integer(3));
    state.add("bytes", {DType::kUInt8, {3}, {}, memory + first + 30});
    state.remove_if([](const StateEntry& entry) { return entry.name == "gone"; });
    return state;
  };
  const LiveState first = at(0);
  const Bytes message = message_of(first);
  MergedState merged = merge_states(std::vector{LiveDescription(message)}, 0, first);
  REQUIRE(merged.own.size() == 4);
  for (const std::size_t offset : {0, 7, 33}) {
    const LiveState state = at(offset);
    REQUIRE(state.structure()->bytes == first.structure()->bytes);
    bind_sources(merged, state, state.structure()->memory);
    for (const OwnPiece& own : merged.own) {
      const StateEntry& entry = state.dict().entries[own.entry];
      const LivePiece& piece = state.tensors()[entry.value.tensor_index()].pieces[own.piece];
      const Source& source = merged.manifest.chunks.source(own.chunk);
      INFO(entry.name.view());
      CHECK(merged.manifest.chunks.chunk(own.chunk, piece.chunk.box.rank()) == piece.chunk);
      CHECK(source.offset == reinterpret_cast<std::uint64_t>(piece.data));
      const bool strided = entry.name == "columns";  // to its last element
      CHECK(source.length == (strided ? 32 : entry.name == "bytes" ? 3 : 32));
      CHECK((source.side != 0) == strided);
      if (strided) CHECK(merged.manifest.strides.at(source.side - 1) == piece.strides);
    }
  }
  Snapshot snapshot;  // which copies the strided one as a dense one
  snapshot.plan(first, merged);
  snapshot.release();
  bind_sources(merged, first, first.structure()->memory);
  for (const OwnPiece& own : merged.own) {
    const bool strided = first.dict().entries[own.entry].name == "columns";
    CHECK((merged.manifest.chunks.source(own.chunk).side != 0) == strided);
  }
  CHECK(merged.manifest.strides.size() == 1);
}

TEST_CASE("a rank that tells a name twice is refused") {
  const LiveState state = job();
  LiveState twice = job();
  twice.append_entry(twice.dict().entries[4]);
  const Bytes mine = message_of(state), theirs = message_of(twice);
  const LiveDescription all[] = {LiveDescription(mine), LiveDescription(theirs)};
  CHECK_THROWS_WITH(merge_states(all, 0, state), Catch::Matchers::Contains("twice"));
}

TEST_CASE("a state that is one value is told and read") {
  const LiveState state = LiveState::of(Value::integer(3), {});
  const Bytes message = message_of(state);
  const LiveDescription all[] = {LiveDescription(message)};
  const MergedState merged = merge_states(all, 0, state);
  REQUIRE(merged.manifest.state.entries.size() == 1);
  CHECK(merged.manifest.state.entries[0].value == Value::integer(3));
}

TEST_CASE("a damaged description of another rank is refused or another state's") {
  const LiveState state = job();
  const Bytes whole = message_of(state);
  const auto merge = [&](ByteView message) {
    const LiveDescription all[] = {LiveDescription(whole), LiveDescription(message)};
    merge_states(all, 0, state);
  };
  std::size_t refused = 0;
  for (std::size_t size = 0; size < whole.size(); ++size)
    CHECK_THROWS_AS(merge(ByteView(whole).first(size)), Error);
  for (std::size_t at = 0; at < whole.size(); ++at)
    for (const int bits : {0x01, 0x80, 0xff}) {
      Bytes damaged = whole;
      damaged[at] ^= static_cast<std::byte>(bits);
      try {
        merge(damaged);
      } catch (const Error&) {
        ++refused;
      }
    }
  CAPTURE(refused, whole.size());
  CHECK(refused > whole.size());
}

}  // namespace live_structure_test
