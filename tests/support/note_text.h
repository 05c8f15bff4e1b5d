#pragma once
// Codes of notes as the commands print them, so that tests hold the text, not the enumerator.
#include <tessera/ops/verify.h>
#include <tessera/state/manifest.h>
#include <tessera/state/optim_state.h>

#include <string>

namespace tessera::testing {

template <class N>
std::string note_code(const N& note) {
  return std::string(code_text(note.code));
}

template <class N>
std::string note_severity(const N& note) {
  return std::string(severity_name(note.severity));
}

}  // namespace tessera::testing
