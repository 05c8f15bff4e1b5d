// The opcodes of every protocol, as Python's unpickler takes them.
#include "lib/encoding/safety/pickle_scan_machine.h"

namespace tessera::scan {

/// False: no unpickler knows the opcode.
bool PickleScanMachine::step(std::uint8_t opcode) {
  // clang-format off
  switch (opcode) {
    // Stream.
    case 0x80: in_.byte(); return true;
    case 0x95: in_.number(8); return true;
    case '.': pop(); stopped_ = true; return true;
    case '(': marks_.push_back(stack_.size()); return true;
    case '0':
      if (!marks_.empty() && stack_.size() == marks_.back()) marks_.pop_back();
      else pop();
      return true;
    case '1': drop_to_marked_items(); return true;
    case '2': push(top()); return true;
    // Scalars.
    case 'N': case 0x88: case 0x89: push(Kind::kOther); return true;
    case 'F': in_.line(0); push(Kind::kOther); return true;
    case 'G': in_.skip(8); push(Kind::kOther); return true;
    case 'I': case 'L': in_.line(0); push(Kind::kInteger); return true;
    case 'J': in_.skip(4); push(Kind::kInteger); return true;
    case 'K': in_.skip(1); push(Kind::kInteger); return true;
    case 'M': in_.skip(2); push(Kind::kInteger); return true;
    case 0x8a: in_.skip(in_.number(1)); push(Kind::kInteger); return true;
    case 0x8b: in_.skip(in_.number(4)); push(Kind::kInteger); return true;
    // Text and bytes.
    case 'S': push_line_text(Item::Spelling::kQuoted); return true;
    case 'V': push_line_text(Item::Spelling::kEscaped); return true;
    case 'U': case 0x8c: push_text(in_.number(1)); return true;
    case 'T': case 'X': push_text(in_.number(4)); return true;
    case 0x8d: push_text(in_.number(8)); return true;
    case 'C': push_bytes(in_.number(1)); return true;
    case 'B': push_bytes(in_.number(4)); return true;
    case 0x8e: case 0x96: push_bytes(in_.number(8)); return true;
    case 0x97: push(Kind::kOther); return true;
    case 0x98: top(); return true;
    // Containers.
    case ')': push_tuple({}); return true;
    case ']': case '}': case 0x8f: push(Kind::kOther); return true;
    case 't': push_tuple(pop_to_mark()); return true;
    case 'l': case 'd': case 0x91: drop_to_marked_items(); push(Kind::kOther); return true;
    case 0x85: tuple_of<1>(); return true;
    case 0x86: tuple_of<2>(); return true;
    case 0x87: tuple_of<3>(); return true;
    case 'a': pop(); change(top()); return true;
    case 's': pop(); pop(); change(top()); return true;
    case 'e': case 'u': case 0x90: add_all(); return true;
    // Objects.
    case 'c': {
      const std::string module = in_.line(kMostNameBytes);
      push_global(module, in_.line(kMostNameBytes));
      return true;
    }
    case 0x93: stack_global(); return true;
    case 'R': call_with(GlobalRole::kCalled); return true;
    case 0x81: call_with(GlobalRole::kMade); return true;
    case 0x92: pop(); call_with(GlobalRole::kMade); return true;
    case 'i': instance(); return true;
    case 'o': object(); return true;
    case 'b': pop(); change(top()); return true;
    case 'P': in_.line(0); push(Kind::kPersistent); return true;
    case 'Q': persistent(pop()); return true;
    case 0x82: extension(1); return true;
    case 0x83: extension(2); return true;
    case 0x84: extension(4); return true;
    // Memo.
    case 'p': put(line_number()); return true;
    case 'q': put(in_.number(1)); return true;
    case 'r': put(in_.number(4)); return true;
    case 0x94: put(memo_count_); return true;
    case 'g': get(line_number()); return true;
    case 'h': get(in_.number(1)); return true;
    case 'j': get(in_.number(4)); return true;
    default: broken("an unknown opcode"); return false;
  }
  // clang-format on
}

}  // namespace tessera::scan
