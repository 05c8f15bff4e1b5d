#pragma once
// Finding the tensors inside arguments and results of a forward.
//
//   Tensor; optional, vector, array, deque, pair, tuple, variant, map, unordered_map,
//   torch::OrderedDict (their values), SmallVector, unique_ptr, shared_ptr, intrusive_ptr of these,
//   nested at will; nn::utils::rnn::PackedSequence (its data). In arguments also plain pointers to
//   them.
//
// A type of your own is looked into when a function beside it says how; what it visits may be any
// of these:
//
//   template <class F> void visit_tensors(MyOutput& value, F&& visit) {
//     visit(value.logits);
//     visit(value.states);
//   }
//
// Arguments of other types are left alone: tensors in them are neither cast nor watched. Results of
// other types are refused, since a unit whose output gradients cannot be seen would compute wrong
// numbers in backward. Pointers found stay valid as long as nobody changes the holders. Undefined
// and const tensors are not listed.
#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include <array>
#include <chrono>
#include <complex>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace torch {
template <typename Key, typename Value>
class OrderedDict;
namespace nn::utils::rnn {
class PackedSequence;
}
}  // namespace torch

namespace tessera::fsdp {

using TensorPointers = c10::SmallVector<at::Tensor*, 8>;

namespace detail {

/// Throws kUnsupported naming the type.
[[noreturn]] void refuse_output_type(const std::type_info& type);

template <class... T>
struct Types {};

/// What a holder holds, and how to reach each element. Specialised for every holder that is known.
template <class T>
struct Contents {
  static constexpr bool known = false;
  using types = Types<>;
};

template <class... T>
struct Holding {
  static constexpr bool known = true;
  using types = Types<T...>;
};

template <class Range>
struct RangeContents : Holding<typename Range::value_type> {
  template <class F>
  static void each(Range& range, F&& visit) {
    for (auto& element : range) visit(element);
  }
};
template <class T, class A>
struct Contents<std::vector<T, A>> : RangeContents<std::vector<T, A>> {};
template <class A>
struct Contents<std::vector<bool, A>> : Holding<> {
  template <class F>
  static void each(std::vector<bool, A>&, F&&) {}
};
template <class T, class A>
struct Contents<std::deque<T, A>> : RangeContents<std::deque<T, A>> {};
template <class T, std::size_t N>
struct Contents<std::array<T, N>> : RangeContents<std::array<T, N>> {};
template <class T, unsigned N>
struct Contents<c10::SmallVector<T, N>> : RangeContents<c10::SmallVector<T, N>> {};

template <class Map>
struct MapContents : Holding<typename Map::mapped_type> {
  template <class F>
  static void each(Map& map, F&& visit) {
    for (auto& [key, value] : map) visit(value);
  }
};
template <class K, class V, class C, class A>
struct Contents<std::map<K, V, C, A>> : MapContents<std::map<K, V, C, A>> {};
template <class K, class V, class H, class E, class A>
struct Contents<std::unordered_map<K, V, H, E, A>>
    : MapContents<std::unordered_map<K, V, H, E, A>> {};
template <class K, class V>
struct Contents<torch::OrderedDict<K, V>> : Holding<V> {
  template <class Dict, class F>
  static void each(Dict& dict, F&& visit) {
    for (auto& item : dict) visit(item.value());
  }
};

template <class... T>
struct Contents<std::tuple<T...>> : Holding<std::remove_reference_t<T>...> {
  template <class F>
  static void each(std::tuple<T...>& tuple, F&& visit) {
    std::apply([&](auto&... element) { (visit(element), ...); }, tuple);
  }
};
template <class A, class B>
struct Contents<std::pair<A, B>> : Holding<A, B> {
  template <class F>
  static void each(std::pair<A, B>& pair, F&& visit) {
    visit(pair.first);
    visit(pair.second);
  }
};
template <class... T>
struct Contents<std::variant<T...>> : Holding<T...> {
  template <class F>
  static void each(std::variant<T...>& variant, F&& visit) {
    if (!variant.valueless_by_exception()) std::visit([&](auto& value) { visit(value); }, variant);
  }
};

/// optional, and pointers to what is complete here.
template <class P, class T>
struct PointeeContents : Holding<T> {
  template <class F>
  static void each(P& pointer, F&& visit) {
    if (pointer) visit(*pointer);
  }
};
template <class T>
concept Complete = std::is_object_v<T> && requires { sizeof(T); };
template <class T>
struct Contents<std::optional<T>> : PointeeContents<std::optional<T>, T> {};
template <Complete T, class D>
struct Contents<std::unique_ptr<T, D>> : PointeeContents<std::unique_ptr<T, D>, T> {};
template <Complete T>
struct Contents<std::shared_ptr<T>> : PointeeContents<std::shared_ptr<T>, T> {
  static constexpr bool shared = true;
};
template <Complete T, class N>
struct Contents<c10::intrusive_ptr<T, N>> : PointeeContents<c10::intrusive_ptr<T, N>, T> {
  static constexpr bool shared = true;
};

template <>
struct Contents<torch::nn::utils::rnn::PackedSequence> : Holding<at::Tensor> {
  template <class Packed, class F>
  static void each(Packed& packed, F&& visit) {
    visit(const_cast<at::Tensor&>(packed.data()));  // a member of `packed`, which is not const
  }
};

struct AnyVisit {
  template <class T>
  void operator()(T&&) const {}
};
template <class T>
concept HasVisitTensors =
    requires(T& value, const AnyVisit& visit) { visit_tensors(value, visit); };

template <class T>
inline constexpr bool is_tensor = std::is_same_v<T, at::Tensor>;

/// Results without tensors.
template <class T>
inline constexpr bool is_plain_value =
    std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_null_pointer_v<T>;
template <class C, class T, class A>
inline constexpr bool is_plain_value<std::basic_string<C, T, A>> = true;
template <class C, class T>
inline constexpr bool is_plain_value<std::basic_string_view<C, T>> = true;
template <>
inline constexpr bool is_plain_value<const char*> = true;
template <>
inline constexpr bool is_plain_value<std::monostate> = true;
template <class T>
inline constexpr bool is_plain_value<std::complex<T>> = true;
template <class R, class P>
inline constexpr bool is_plain_value<std::chrono::duration<R, P>> = true;
template <>
inline constexpr bool is_plain_value<c10::Scalar> = true;
template <>
inline constexpr bool is_plain_value<c10::Half> = true;
template <>
inline constexpr bool is_plain_value<c10::BFloat16> = true;
template <>
inline constexpr bool is_plain_value<c10::Device> = true;

/// The first type inside T that results may not have; null: none.
template <class T>
const std::type_info* unknown_output();

template <class... T>
const std::type_info* first_unknown(Types<T...>) {
  const std::type_info* unknown = nullptr;
  (void)((unknown = unknown_output<T>()) || ...);
  return unknown;
}

template <class T>
const std::type_info* unknown_output() {
  if constexpr (is_plain_value<std::remove_const_t<T>> || is_tensor<T> || std::is_void_v<T>) {
    return nullptr;
  } else if constexpr (HasVisitTensors<T>) {
    return nullptr;  // its members are looked at when they are visited
  } else if constexpr (Contents<T>::known) {
    return first_unknown(typename Contents<T>::types{});
  } else {
    return &typeid(T);
  }
}

template <class... T>
constexpr bool any_holds_tensors(Types<T...>);

/// Whether looking into a T can find tensors that may be replaced.
template <class T>
constexpr bool holds_tensors() {
  if constexpr (is_tensor<T> || HasVisitTensors<T>) {
    return true;
  } else if constexpr (std::is_pointer_v<T>) {
    if constexpr (Complete<std::remove_pointer_t<T>>)
      return holds_tensors<std::remove_pointer_t<T>>();
    else
      return false;
  } else {
    return any_holds_tensors(typename Contents<T>::types{});
  }
}
template <class... T>
constexpr bool any_holds_tensors(Types<T...>) {
  return (holds_tensors<T>() || ...);
}

/// is_copy_constructible, asking the elements of a vector too.
template <class T>
constexpr bool copyable();
template <class... T>
constexpr bool all_copyable(Types<T...>) {
  return (copyable<T>() && ...);
}
template <class T>
constexpr bool copyable() {
  if constexpr (!std::is_copy_constructible_v<T>)
    return false;
  else if constexpr (requires { Contents<T>::shared; })
    return true;
  else
    return all_copyable(typename Contents<T>::types{});
}

struct CollectInputs {
  TensorPointers& out;
  template <class V>
  void operator()(V&& value) const {
    using T = std::remove_reference_t<V>;
    if constexpr (std::is_const_v<T>) {
      return;
    } else if constexpr (is_tensor<T>) {
      if (value.defined()) out.push_back(&value);
    } else if constexpr (HasVisitTensors<T>) {
      visit_tensors(value, *this);
    } else if constexpr (std::is_pointer_v<T>) {
      if constexpr (holds_tensors<T>())
        if (value != nullptr) (*this)(*value);
    } else if constexpr (holds_tensors<T>()) {
      Contents<T>::each(value, *this);
    }
  }
};

struct CollectOutputs {
  TensorPointers& out;
  template <class V>
  void operator()(V&& value) const {
    using T = std::remove_reference_t<V>;
    if (const std::type_info* unknown = unknown_output<T>()) refuse_output_type(*unknown);
    if constexpr (is_tensor<T>) {
      if (value.defined()) out.push_back(&value);
    } else if constexpr (HasVisitTensors<T>) {
      visit_tensors(value, *this);
    } else if constexpr (!is_plain_value<std::remove_const_t<T>> && Contents<T>::known) {
      Contents<T>::each(value, *this);
    }
  }
};

}  // namespace detail

/// The tensors of an argument. Types that are not known are left alone.
template <class T>
void collect_tensors(T& value, TensorPointers& out) {
  detail::CollectInputs{out}(value);
}

/// The tensors of a result. Throws kUnsupported naming the first type that is not known, found or
/// not.
template <class T>
void collect_output_tensors(T& value, TensorPointers& out) {
  detail::CollectOutputs{out}(value);
}

}  // namespace tessera::fsdp
