#pragma once
// Pickle writer, protocol 2: the opcode set torch.load(weights_only=True) accepts. Deterministic.
// Two levels: PickleEmitter writes opcodes (memo handled by the caller's keys), write_pickle a
// whole Value.
#include <tessera/base/bytes.h>
#include <tessera/state/value.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace tessera {

class PickleEmitter {
 public:
  PickleEmitter();  // PROTO 2
  void none();
  void boolean(bool v);
  void integer(std::int64_t v);
  void big_integer(std::string_view decimal);
  void real(double v);
  /// Strings are memoised: the second use of the same text is a BINGET.
  void string(std::string_view v);
  /// _codecs.encode(latin1 text, "latin1"), as protocol 2 spells bytes.
  void bytes(std::string_view v);
  void global(std::string_view module, std::string_view name);  // memoised
  void empty_dict();
  void empty_list();
  void empty_tuple();
  void empty_set_call();  // __builtin__ set follows as REDUCE
  void mark();
  void tuple();         // from mark
  void tuple_n(int n);  // 1, 2, 3
  void set_items();     // from mark
  void append_items();  // from mark
  void reduce();
  void new_object();
  void new_object_ex();  // class, arguments, keyword dict (an opcode of protocol 4)
  void build();
  void persistent_id();  // BINPERSID
  /// Memoises the top of the stack under the next index and returns it; get() pushes it again.
  std::uint32_t put();
  void get(std::uint32_t index);
  Bytes finish();  // STOP

 private:
  Bytes out_;
  struct Memo;
  std::shared_ptr<Memo> memo_;
};

/// Writes one Value. `tensor(emitter, index)` must push the tensor. Shared nodes of containers are
/// memoised. Opaque objects are written back as they were read.
void write_value(PickleEmitter& emitter, const Value& value,
                 const std::function<void(PickleEmitter&, std::uint32_t index)>& tensor);

}  // namespace tessera
