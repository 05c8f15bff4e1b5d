#include <tessera/base/error.h>
#include <tessera/base/shared_text.h>

#include <cstring>
#include <limits>
#include <new>

namespace tessera {

SharedText::SharedText(std::string_view text) {
  if (text.empty()) return;
  TESSERA_CHECK(text.size() <= std::numeric_limits<std::uint32_t>::max());
  void* memory = ::operator new(sizeof(Node) + text.size());
  node_ = new (memory) Node{1, static_cast<std::uint32_t>(text.size())};
  std::memcpy(static_cast<char*>(memory) + sizeof(Node), text.data(), text.size());
}

void SharedText::destroy(Node* node) noexcept {
  node->~Node();
  ::operator delete(node);
}

}  // namespace tessera
