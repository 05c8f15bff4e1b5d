#pragma once
// Pickle reader for untrusted bytes. Executes nothing: the stream becomes a graph of nodes in an
// arena.
//
// - An explicit table of opcodes (protocols 0 to 5, without buffers and extension registry calls);
//   anything else is kCorrupt.
// - A global is a pair of strings. pickle_globals.h says what each one is: known, opaque or denied.
//   Denied: kCorrupt naming the global and its byte offset, unless PickleOptions::collect_denied.
// - REDUCE, NEWOBJ, BUILD, APPENDS and SETITEMS on anything but plain containers only record what
//   the stream says.
// - Iterative; no recursion. Memory is bounded by a small multiple of the bytes present (a declared
//   length is checked against what is left before anything is allocated; the memo is dense, its
//   indices bounded by the opcodes read).
#include <tessera/base/bytes.h>
#include <tessera/state/manifest.h>
#include <tessera/state/value.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

enum class PickleKind : std::uint8_t {
  kNone,
  kBool,
  kInt,
  kBigInt,
  kFloat,
  kString,
  kBytes,
  kByteArray,
  kList,
  kTuple,
  kDict,
  kSet,
  kFrozenSet,
  kGlobal,  // module, name
  kReduce,  // callable(arguments), maybe with state, items, dict items
  kNewObj,  // class.__new__(class, *arguments [, **keyword arguments]), maybe with state, items,
            // dict items
  kPersistentId,  // arguments() is the id
};

class PickleGraph {
 public:
  using Node = std::uint32_t;

  Node root() const;
  std::size_t node_count() const;
  PickleKind kind(Node node) const;
  bool boolean(Node node) const;
  std::int64_t integer(Node node) const;   // kInt
  double real(Node node) const;            // kFloat
  std::string_view text(Node node) const;  // kString, kBytes, kByteArray, kBigInt (decimal)
  std::span<const Node> items(
      Node node) const;  // kList, kTuple, kSet, kFrozenSet; APPENDS on an object
  /// Keys and values alternating: kDict; SETITEMS on an object. Duplicate keys: the last wins on
  /// lookup, as in Python.
  std::span<const Node> dict_items(Node node) const;
  std::pair<std::string_view, std::string_view> global(Node node) const;  // kGlobal: module, name
  Node callable(Node node) const;   // kReduce, kNewObj (the class)
  Node arguments(Node node) const;  // kReduce, kNewObj: a kTuple; kPersistentId: the id
  std::optional<Node> keyword_arguments(Node node) const;  // kNewObj
  std::optional<Node> state(Node node) const;  // BUILD's argument, on any node (OrderedDict too)

  // Conveniences for decoding.
  bool is_global(Node node, std::string_view module, std::string_view name) const;
  /// kReduce or kNewObj of exactly this global.
  bool is_call(Node node, std::string_view module, std::string_view name) const;
  /// Value of a string key in a kDict (or an object's dict items), or nullopt.
  std::optional<Node> find(Node dict, std::string_view key) const;

 private:
  friend class PickleVm;
  struct Rep;
  std::shared_ptr<Rep> rep_;
};

struct PickleOptions {
  bool collect_denied = false;                // summary --globals: list them instead of refusing
  std::vector<GlobalUse>* globals = nullptr;  // every distinct global is appended here
};

/// Reads one pickle from the front of `bytes`. `consumed`: bytes up to and including STOP (legacy
/// files hold five in a row); when null, trailing bytes are kCorrupt.
PickleGraph read_pickle(ByteView bytes, const PickleOptions& options = {},
                        std::size_t* consumed = nullptr);

/// Graph -> Value. `hook` sees every node first and may answer for it (a tensor, a persistent id);
/// shared nodes stay shared. Cycles, and depth past kMaxValueDepth, are kCorrupt; inside an object
/// of an unknown class a cycle becomes a back reference instead, and a branch that is too deep a
/// stub. torch.Size, torch dtypes, set(), complex(), _codecs.encode bytes, bytearray,
/// OrderedDict, Counter, defaultdict decode; every other call is Value::opaque. kResourceExhausted
/// where the values would take more than max(16 MiB + 40 bytes per byte of pickle, limit_bytes).
using PickleHook = std::function<std::optional<Value>(const PickleGraph&, PickleGraph::Node)>;
Value decode_pickle(const PickleGraph& graph, PickleGraph::Node node, const PickleHook& hook,
                    std::uint64_t limit_bytes = 0);

}  // namespace tessera
