#pragma once
// What unpickling a stream would name, make and call, for judging it (pickle_safety.h).
//
// Where pickle_reader.h refuses whatever is odd, this reader goes on: Python's unpickler takes
// streams that no pickler writes (state set on a class, opcodes of the extension registry, values
// left on the stack, several pickles in a row), and what stands before a broken place has run by
// the time the place is reached. The stack is followed with as much of each value as judging takes:
// texts and bytes by their place, globals, tuples, results of calls.
//
// Memory: 16 bytes an opcode at most, and the distinct names; strings and bytes stay in the file.
// Nothing is thrown for content; what cannot be followed makes the scan `broken`.
#include <tessera/base/bytes.h>
#include <tessera/encoding/byte_window.h>
#include <tessera/encoding/pickle_safety.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

struct PickleUse {
  std::string name;  // "pty.spawn"
  GlobalRole role = GlobalRole::kNamed;
  Safety safety = Safety::kUnknown;
  std::uint64_t offset = 0;  // of the opcode, in the window
};

/// Bytes in a pickle by their place.
struct PickledBytes {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  bool is_text = false;  // UTF-8 of characters that stand for a byte each (protocol 2)
};

struct PickleScan {
  /// Distinct in name and role, in order of appearance; at most kMostUses that are not dangerous.
  std::vector<PickleUse> uses;
  std::uint64_t pickles = 0;  // that end with STOP
  bool has_protocol = false;  // begins with PROTO, as all pickles of protocol 2 and later
  bool broken = false;        // the first pickle ends early, or does what the unpickler refuses
  std::string problem;        // why
  std::vector<PickledBytes> archives;  // that the pickle has torch.load read

  static constexpr std::size_t kMostUses = 4096;

  /// A file of unknown name is one when it begins as pickles do and has a whole one, or names
  /// something before it breaks off.
  bool is_pickle() const;
  Safety safety() const;
};

/// Every pickle from the start of `window` on. `known`: it is one by its name or place, so that the
/// names in what follows a broken place are looked for as well.
PickleScan scan_pickle(const ByteWindow& window, bool known = false);
PickleScan scan_pickle_bytes(ByteView bytes);

/// Globals by the look of their opcodes, from `from` on, wherever they stand: in raw bytes between
/// parts of a pickle (joblib) nothing else can be followed. Appends to scan.uses.
void search_names(const ByteWindow& window, std::uint64_t from, PickleScan& scan);

/// Printable, without white space, short: could Python import it?
bool is_plausible_name(std::string_view name);

}  // namespace tessera
