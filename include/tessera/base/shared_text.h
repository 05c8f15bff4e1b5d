#pragma once
// SharedText: a text that copies share, in eight bytes. For names, of which a checkpoint may have a
// million, each in several tables.
//
// Immutable but for assignment. Copies may be used by several threads. A view of it lives as long
// as any copy does, wherever that lies.
#include <atomic>
#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace tessera {

class SharedText {
 public:
  static constexpr std::size_t npos = std::string_view::npos;

  SharedText() = default;
  SharedText(std::string_view text);  // NOLINT: a text is one that can be shared
  SharedText(const std::string& text) : SharedText(std::string_view(text)) {}  // NOLINT
  SharedText(const char* text) : SharedText(std::string_view(text)) {}         // NOLINT
  SharedText(const SharedText& other) noexcept : node_(other.node_) {
    if (node_ != nullptr) node_->references.fetch_add(1, std::memory_order_relaxed);
  }
  SharedText(SharedText&& other) noexcept : node_(std::exchange(other.node_, nullptr)) {}
  SharedText& operator=(SharedText other) noexcept {
    std::swap(node_, other.node_);
    return *this;
  }
  ~SharedText() {
    if (node_ != nullptr && node_->references.fetch_sub(1, std::memory_order_acq_rel) == 1)
      destroy(node_);
  }

  std::string_view view() const {
    return node_ == nullptr ? std::string_view() : std::string_view(text_of(node_), node_->size);
  }
  operator std::string_view() const { return view(); }          // NOLINT
  operator std::string() const { return std::string(view()); }  // NOLINT

  bool empty() const { return node_ == nullptr; }
  std::size_t size() const { return view().size(); }
  const char* begin() const { return view().data(); }
  const char* end() const { return begin() + size(); }
  std::size_t find(auto what, std::size_t from = 0) const { return view().find(what, from); }
  std::size_t rfind(auto what) const { return view().rfind(what); }
  std::string substr(std::size_t from, std::size_t count = npos) const {
    return std::string(view().substr(from, count));
  }
  bool starts_with(auto what) const { return view().starts_with(what); }
  bool ends_with(auto what) const { return view().ends_with(what); }

  friend bool operator==(const SharedText& a, const SharedText& b) {
    return a.node_ == b.node_ || a.view() == b.view();
  }
  friend auto operator<=>(const SharedText& a, const SharedText& b) {
    return a.view() <=> b.view();
  }
  template <std::convertible_to<std::string_view> Text>
    requires(!std::same_as<Text, SharedText>)
  friend bool operator==(const SharedText& a, const Text& b) {
    return a.view() == std::string_view(b);
  }
  template <std::convertible_to<std::string_view> Text>
    requires(!std::same_as<Text, SharedText>)
  friend auto operator<=>(const SharedText& a, const Text& b) {
    return a.view() <=> std::string_view(b);
  }
  template <std::convertible_to<std::string_view> Text>
  friend std::string operator+(const SharedText& a, const Text& b) {
    return std::string(a).append(std::string_view(b));
  }
  template <std::convertible_to<std::string_view> Text>
    requires(!std::same_as<Text, SharedText>)
  friend std::string operator+(const Text& a, const SharedText& b) {
    return std::string(std::string_view(a)).append(b.view());
  }

 private:
  struct Node {  // the text follows it
    std::atomic<std::uint32_t> references;
    std::uint32_t size;
  };
  static const char* text_of(const Node* node) { return reinterpret_cast<const char*>(node + 1); }
  static void destroy(Node* node) noexcept;

  Node* node_ = nullptr;  // nullptr: empty
};

}  // namespace tessera

template <>
struct std::hash<tessera::SharedText> {
  std::size_t operator()(const tessera::SharedText& text) const noexcept {
    return std::hash<std::string_view>()(text.view());
  }
};
