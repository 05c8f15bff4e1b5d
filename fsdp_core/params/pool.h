#pragma once
// Pool: memory of the small objects that every step makes and drops again (a forward's hooks, a
// tensor over what was gathered): kept for the next step instead of given back, so that from the
// third step on nothing is asked for. By size, 64 bytes apart; lives for ever; thread-safe, as a
// graph may die on any thread.
#include <cstddef>
#include <memory>
#include <utility>

namespace tessera::fsdp {

void* pool_allocate(std::size_t bytes);
void pool_free(void* memory, std::size_t bytes) noexcept;

/// Objects of a class derived from it lie in the pool, also where others delete them through a base
/// with a virtual destructor.
struct Pooled {
  static void* operator new(std::size_t bytes) { return pool_allocate(bytes); }
  static void operator delete(void* memory, std::size_t bytes) noexcept {
    pool_free(memory, bytes);
  }
};

template <class T>
struct PoolAllocator {
  using value_type = T;
  PoolAllocator() = default;
  template <class U>
  PoolAllocator(const PoolAllocator<U>&) {}
  T* allocate(std::size_t count) { return static_cast<T*>(pool_allocate(count * sizeof(T))); }
  void deallocate(T* memory, std::size_t count) noexcept { pool_free(memory, count * sizeof(T)); }
  friend bool operator==(const PoolAllocator&, const PoolAllocator&) { return true; }
};

/// std::make_shared in the pool.
template <class T, class... A>
std::shared_ptr<T> make_pooled(A&&... arguments) {
  return std::allocate_shared<T>(PoolAllocator<T>(), std::forward<A>(arguments)...);
}

}  // namespace tessera::fsdp
