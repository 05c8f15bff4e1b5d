#pragma once
// The pickle machine: a table of opcode handlers over a stack, marks, a dense memo and the arena.
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lib/encoding/pickle_graph.h"

namespace tessera {

class PickleVm {
 public:
  using Node = PickleGraph::Node;

  PickleVm(ByteView bytes, const PickleOptions& options);
  /// Runs up to STOP. `consumed`: see read_pickle.
  PickleGraph run(std::size_t* consumed);
  /// After run() threw: how many bytes it would have needed, if it threw because the stream ended
  /// early; else 0.
  std::uint64_t needed_bytes() const { return needed_bytes_; }
  static std::uint64_t stream_bytes(const PickleGraph& graph) { return graph.rep_->stream_bytes; }

 private:
  friend struct PickleOpcodes;

  // Bytes. All of them throw kCorrupt where the stream ends early.
  [[noreturn]] void corrupt(std::string_view what) const;
  [[noreturn]] void ends_early(std::uint64_t missing_bytes, std::string_view what);
  std::string_view take(std::uint64_t length, std::string_view what);
  template <class T>
  T take_number();
  std::string_view take_line();

  // Stack.
  void push(Node node) { stack_.push_back(node); }
  Node pop();
  Node top() const;
  std::span<const Node> since_mark() const;
  void drop_to_mark();

  // Arena.
  Node add(const PickleNode& node);
  void push_number(PickleKind kind, std::uint64_t bits);
  void push_integer(std::int64_t value);
  void push_text(PickleKind kind, std::string_view text);
  void push_string(std::string_view utf8);
  void push_python2_string(std::string_view bytes);
  void push_long(std::string_view little_endian);
  void push_decimal(std::string_view decimal);
  void check_decimal(std::string_view decimal) const;
  void push_sequence(PickleKind kind, std::span<const Node> items);
  void push_global(std::string_view module, std::string_view name);
  void push_call(PickleKind kind, Node callable, Node arguments);
  PickleRun extend(PickleRun run, std::span<const Node> more);
  void append_to(Node target, std::span<const Node> items);
  void set_in(Node target, std::span<const Node> pairs);
  PickleExtra& extra(Node node);

  // Calls are read long after the stream ran, so that what they were given must not change
  // meanwhile: a container that a call has seen may not grow.
  enum class Consumer : std::uint8_t { kOpaqueCall, kKnownCall, kKnownState };
  bool is_known_callable(Node callable) const;
  void consume_arguments(Node callable, Node arguments);
  void consume(Node node, Consumer consumer);
  void check_not_consumed(Node target);
  /// torch.save's legacy container pickles the class of a module as the persistent id
  /// ("module", class, source file, source): it means the class.
  std::optional<Node> class_in_persistent_id(Node id) const;

  // Memo.
  void memo_put(std::uint64_t index);
  void memo_get(std::uint64_t index);

  // getattr is judged by its arguments. It is refused where it is never called, and where it stands
  // anywhere but as what is called; its result is refused where it is called or built on.
  struct Getattr {
    const PickleGlobal* owner;
    std::string_view attribute;
  };
  std::optional<Getattr> getattr_pair(Node arguments) const;
  void check_getattr(PickleKind call, Node arguments);
  void check_called(Node callable);
  void check_grown(Node target);
  void check_getattr_is_only_called();
  void deny_getattr(std::size_t at);
  bool is_getattr_result(Node node) const;

  void step(std::uint8_t opcode);  // pickle_opcodes.cc
  PickleKind kind(Node node) const { return rep_->nodes[node].kind; }

  ByteView bytes_;
  PickleOptions options_;
  std::shared_ptr<PickleGraph::Rep> rep_;
  std::size_t position_ = 0;
  std::size_t opcode_at_ = 0;
  std::uint64_t opcode_count_ = 0;
  std::size_t frame_end_ = 0;
  bool stopped_ = false;
  std::uint64_t needed_bytes_ = 0;
  std::vector<Node> stack_;
  std::vector<std::size_t> marks_;
  std::vector<Node> memo_;
  std::size_t memo_count_ = 0;
  std::unordered_map<std::string, Node> interned_globals_;
  std::vector<Node> small_integers_;  // 0..255, made on first use
  Node none_, true_, false_, empty_tuple_;
  Node getattr_;
  std::size_t getattr_at_ = 0;
  std::vector<Node> to_consume_;  // kept for its memory
  bool getattr_was_called_ = false;
};

}  // namespace tessera
