#pragma once
// Pickle writer, protocol 2: the opcode set torch.load(weights_only=True) accepts. Deterministic.
// Two levels: PickleEmitter writes opcodes (memo handled by the caller's keys), write_pickle a
// whole Value.
#include <tessera/base/bytes.h>
#include <tessera/state/value.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace tessera {

class PickleEmitter {
 public:
  enum class Output : std::uint8_t {
    kBytes,
    kLength,  // nothing is kept but how many bytes there would be
  };
  explicit PickleEmitter(Output output = Output::kBytes);  // PROTO 2
  /// Room for as many bytes in all, where that is known.
  void reserve(std::uint64_t bytes) { out_.reserve(static_cast<std::size_t>(bytes)); }
  void none() { opcode('N'); }
  void boolean(bool v) { opcode(v ? 0x88 : 0x89); }
  void integer(std::int64_t v) {
    if (output_ == Output::kBytes || v < INT32_MIN || v > INT32_MAX) return write_integer(v);
    length_ += v < 0 || v > 0xffff ? 5 : v > 0xff ? 3 : 2;
  }
  void big_integer(std::string_view decimal);
  void real(double v);
  /// Strings are memoised: the second use of the same text is a BINGET. Returns the memo's index,
  /// for get().
  std::uint32_t string(std::string_view v);
  /// _codecs.encode(latin1 text, "latin1"), as protocol 2 spells bytes.
  void bytes(std::string_view v);
  std::uint32_t global(std::string_view module, std::string_view name);  // memoised
  void empty_dict() { opcode('}'); }
  void empty_list() { opcode(']'); }
  void empty_tuple() { opcode(')'); }
  void empty_set_call();  // __builtin__ set follows as REDUCE
  void mark() { opcode('('); }
  void tuple() { opcode('t'); }         // from mark
  void tuple_n(int n);                  // 1, 2, 3
  void set_items() { opcode('u'); }     // from mark
  void append_items() { opcode('e'); }  // from mark
  void reduce() { opcode('R'); }
  void new_object() { opcode(0x81); }
  void new_object_ex() { opcode(0x92); }  // class, arguments, keyword dict (of protocol 4)
  void build() { opcode('b'); }
  void persistent_id() { opcode('Q'); }  // BINPERSID
  /// Memoises the top of the stack under the next index and returns it; get() pushes it again.
  std::uint32_t put();
  void get(std::uint32_t index) {
    if (output_ == Output::kBytes || index >= next_) return write_get(index);
    length_ += index <= 0xff ? 2 : 5;
  }
  Bytes finish();  // STOP
  std::uint64_t length() const { return length_; }

 private:
  /// Millions of these are only counted: for that they are short.
  void opcode(int value) {
    if (output_ == Output::kLength) {
      ++length_;
    } else {
      append_byte(value);
    }
  }
  void write_integer(std::int64_t v);
  void write_get(std::uint32_t index);
  void append(const void* data, std::size_t length);
  void append_byte(int value);
  void append_text(std::string_view text) { append(text.data(), text.size()); }
  template <class T>
  void append_number(int opcode, T value);

  Output output_;
  Bytes out_;  // longer than what is written: grows in large steps
  std::uint64_t length_ = 0;
  std::uint32_t next_ = 0;  // index in the unpickler's memo
  struct Memo;
  std::shared_ptr<Memo> memo_;
};

/// Writes one Value. `tensor(emitter, index)` must push the tensor; `storage(emitter, index,
/// dtype)`, where bare storages can be written, the storage of one (nullopt: untyped). Shared nodes
/// of containers are memoised. Opaque objects are written back as they were read, cycles included.
void write_value(PickleEmitter& emitter, const Value& value,
                 const std::function<void(PickleEmitter&, std::uint32_t index)>& tensor,
                 const std::function<void(PickleEmitter&, std::uint32_t index,
                                          std::optional<DType> dtype)>& storage = {});

}  // namespace tessera
