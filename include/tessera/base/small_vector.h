#pragma once
// SmallVector: a vector whose first N items lie in the object itself, for what comes by the million
// and is nearly always short (shapes, paths of one key). The part of std::vector's interface that
// such lists need. Iterators are pointers: growing or moving the vector invalidates them.
#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

namespace tessera {

template <class T, std::uint32_t N>
class SmallVector {
  static_assert(N > 0 && std::is_nothrow_move_constructible_v<T>);

 public:
  using value_type = T;
  using size_type = std::size_t;
  using difference_type = std::ptrdiff_t;
  using reference = T&;
  using const_reference = const T&;
  using iterator = T*;
  using const_iterator = const T*;

  SmallVector() noexcept {}
  explicit SmallVector(std::size_t count, const T& value = T()) {
    reserve(count);
    while (size_ < count) push_back(value);
  }
  SmallVector(std::initializer_list<T> items) { append(items.begin(), items.end()); }
  template <std::input_iterator It>
  SmallVector(It first, It last) {
    append(first, last);
  }
  SmallVector(const SmallVector& other) : SmallVector(other.begin(), other.end()) {}
  SmallVector(SmallVector&& other) noexcept { take(other); }
  SmallVector& operator=(const SmallVector& other) {
    if (this != &other) *this = SmallVector(other);
    return *this;
  }
  SmallVector& operator=(SmallVector&& other) noexcept {
    if (this == &other) return *this;
    release();
    take(other);
    return *this;
  }
  ~SmallVector() { release(); }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* data() { return is_inside() ? reinterpret_cast<T*>(room_.few) : room_.many; }
  const T* data() const { return is_inside() ? reinterpret_cast<const T*>(room_.few) : room_.many; }
  T* begin() { return data(); }
  T* end() { return data() + size_; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }
  T& operator[](std::size_t i) { return data()[i]; }
  const T& operator[](std::size_t i) const { return data()[i]; }
  T& front() { return data()[0]; }
  const T& front() const { return data()[0]; }
  T& back() { return data()[size_ - 1]; }
  const T& back() const { return data()[size_ - 1]; }

  void reserve(std::size_t count) {
    if (count > capacity_) move_to(static_cast<std::uint32_t>(count));
  }
  void push_back(T item) {
    if (size_ == capacity_) move_to(2 * capacity_);
    new (data() + size_) T(std::move(item));
    ++size_;
  }
  template <class... Args>
  T& emplace_back(Args&&... args) {
    push_back(T(std::forward<Args>(args)...));
    return back();
  }
  void pop_back() { std::destroy_at(data() + --size_); }
  void clear() { erase(begin(), end()); }
  /// [first, last) must not point into this vector.
  template <std::input_iterator It>
  void assign(It first, It last) {
    clear();
    append(first, last);
  }
  void resize(std::size_t count) {
    while (size_ > count) pop_back();
    reserve(count);
    while (size_ < count) push_back(T());
  }
  template <std::input_iterator It>
  T* insert(const T* at, It first, It last) {
    const std::ptrdiff_t index = at - begin(), old_size = size_;
    append(first, last);
    std::rotate(begin() + index, begin() + old_size, end());
    return begin() + index;
  }
  T* insert(const T* at, std::initializer_list<T> items) {
    return insert(at, items.begin(), items.end());
  }
  T* insert(const T* at, T item) {
    return insert(at, std::make_move_iterator(&item), std::make_move_iterator(&item + 1));
  }
  T* erase(const T* first, const T* last) {
    T* at = begin() + (first - begin());
    T* kept = std::move(at + (last - first), end(), at);
    while (end() != kept) pop_back();
    return at;
  }
  T* erase(const T* at) { return erase(at, at + 1); }

  bool operator==(const SmallVector& other) const {
    return std::equal(begin(), end(), other.begin(), other.end());
  }
  auto operator<=>(const SmallVector& other) const
    requires std::three_way_comparable<T>
  {
    return std::lexicographical_compare_three_way(begin(), end(), other.begin(), other.end());
  }

 private:
  bool is_inside() const { return capacity_ == N; }
  template <class It>
  void append(It first, It last) {
    if constexpr (std::forward_iterator<It>)
      reserve(size_ + static_cast<std::size_t>(std::distance(first, last)));
    for (; first != last; ++first) push_back(*first);
  }
  void move_to(std::uint32_t capacity) {
    T* const many = std::allocator<T>().allocate(capacity);
    std::uninitialized_move(begin(), end(), many);
    std::destroy(begin(), end());
    free_many();
    room_.many = many;
    capacity_ = capacity;
  }
  void take(SmallVector& other) noexcept {
    if (other.is_inside()) {
      std::uninitialized_move(other.begin(), other.end(), reinterpret_cast<T*>(room_.few));
      size_ = other.size_;
      other.clear();
      return;
    }
    room_.many = other.room_.many;
    size_ = std::exchange(other.size_, 0);
    capacity_ = std::exchange(other.capacity_, N);
  }
  void release() noexcept {
    std::destroy(begin(), end());
    free_many();
    size_ = 0;
    capacity_ = N;
  }
  void free_many() noexcept {
    if (!is_inside()) std::allocator<T>().deallocate(room_.many, capacity_);
  }

  std::uint32_t size_ = 0;
  std::uint32_t capacity_ = N;
  union Room {
    alignas(T) std::byte few[N * sizeof(T)];
    T* many;
  } room_;
};

}  // namespace tessera
