#pragma once
// The arena behind PickleGraph: 16 bytes a node, children and text in shared pools.
//
//   number   b, c        the bits of an int64, a double or a bool
//   text     a + high    length (48 bits); b, c: offset in `text`
//   sequence a           number of children; b, c: offset in `children`
//   call     a, b        callable and arguments; c: state (kHasState); items live in `extras`
//   pid      a           the id
//   global   a           index in `globals`
//
// Children of one container are contiguous. A container that grows after others were made moves to
// the pool's end with its capacity rounded up to a power of two (kGrown), so that moving stays
// linear in total.
#include <tessera/encoding/pickle_reader.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace tessera {

struct PickleNode {
  static constexpr std::uint8_t kGrown = 1;
  static constexpr std::uint8_t kHasState = 2;
  static constexpr std::uint8_t kHasExtra = 4;
  static constexpr std::uint8_t kConsumed = 8;        // an argument or state of a call
  static constexpr std::uint8_t kConsumedKnown = 16;  // ... of one whose meaning we know

  PickleKind kind = PickleKind::kNone;
  std::uint8_t flags = 0;
  std::uint16_t high = 0;
  std::uint32_t a = 0;
  std::uint32_t b = 0;
  std::uint32_t c = 0;

  std::uint64_t wide() const { return b | static_cast<std::uint64_t>(c) << 32; }
  void set_wide(std::uint64_t v) {
    b = static_cast<std::uint32_t>(v);
    c = static_cast<std::uint32_t>(v >> 32);
  }
  std::uint64_t length() const { return a | static_cast<std::uint64_t>(high) << 32; }
};
static_assert(sizeof(PickleNode) == 16);

/// A run of children in the pool.
struct PickleRun {
  std::uint64_t offset = 0;
  std::uint32_t count = 0;
  bool grown = false;
};

struct PickleExtra {
  PickleRun items;
  PickleRun dict_items;
  PickleGraph::Node keyword_arguments = 0;
  bool has_keyword_arguments = false;
};

struct PickleGlobal {
  std::string module;
  std::string name;
  bool known = false;  // classify_global
};

struct PickleGraph::Rep {
  std::vector<PickleNode> nodes;
  std::vector<Node> children;
  std::string text;
  std::vector<PickleGlobal> globals;
  std::unordered_map<Node, PickleExtra> extras;
  Node root = 0;
  std::uint64_t stream_bytes = 0;

  const PickleNode& at(Node node, PickleKind kind) const;
  std::span<const Node> run(const PickleRun& run) const {
    return {children.data() + run.offset, run.count};
  }
  const PickleExtra* extra(Node node) const;
};

}  // namespace tessera
