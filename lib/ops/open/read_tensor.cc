#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/parallel.h>
#include <tessera/base/text.h>
#include <tessera/ops/open.h>
#include <tessera/reshard/tensor_reader.h>
#include <tessera/state/aliases.h>
#include <tessera/state/listed_tensors.h>
#include <tessera/tensor/cast.h>

#include <algorithm>
#include <type_traits>

namespace tessera {
namespace {

template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, float>) return DType::kFloat32;
  if constexpr (std::is_same_v<T, double>) return DType::kFloat64;
  if constexpr (std::is_same_v<T, std::int64_t>) return DType::kInt64;
  if constexpr (std::is_same_v<T, std::int32_t>) return DType::kInt32;
  return DType::kUInt8;
}

std::uint32_t index_of(const Manifest& manifest, std::string_view name) {
  const std::string asked(name), stored = alias_target(manifest, asked).value_or(asked);
  for (const std::uint32_t index : listed_tensors(manifest))
    if (manifest.tensors[index].name == stored) return index;
  std::vector<std::string_view> names;
  for (const std::uint32_t index : listed_tensors(manifest))
    names.push_back(manifest.tensors[index].name.view());
  const std::string near = nearest(asked, names);
  fail(Code::kInvalidArgument, fmt::format("no tensor here is called \"{}\"", printable(asked)),
       near.empty() ? "" : fmt::format("did you mean \"{}\"?", printable(near)));
}

void require_numbers(DType from, DType to) {
  if (is_castable(from) && (is_floating(to) || !is_floating(from))) return;
  fail(Code::kUnsupported,
       fmt::format("elements of type {} are not read as {}", torch_name(from), torch_name(to)),
       is_castable(from) ? "read<float> or read<double> takes them" : "");
}

}  // namespace

const StoredTensor& OpenedCheckpoint::tensor(std::string_view name) const {
  return manifest.tensors[index_of(manifest, name)];
}

template <class T>
std::vector<T> OpenedCheckpoint::read(std::string_view name) {
  const std::uint32_t index = index_of(manifest, name);
  return in_tensor(std::string(name), [&] {
    const TensorSpec& spec = manifest.tensors[index].spec;
    require_numbers(spec.dtype, dtype_of<T>());
    ReadOptions options;
    options.pickle_limit_bytes = pickle_limit_bytes;
    options.threads = available_cpus();
    locate(std::span(&index, 1), options);
    Bytes stored(static_cast<std::size_t>(spec.size_bytes()));
    const std::int64_t numel = spec.shape.numel();
    TensorReader(manifest, *directory, {}).read(index, 0, numel, stored);
    check_archives();
    std::vector<T> elements(static_cast<std::size_t>(numel));
    const CastCounts counts = cast_elements(spec.dtype, stored, dtype_of<T>(),
                                            std::as_writable_bytes(std::span<T>(elements)));
    if (counts.overflow_to_inf > 0)
      fail(Code::kOutOfRange,
           fmt::format("{} of its values of type {} do not fit {}", counts.overflow_to_inf,
                       torch_name(spec.dtype), torch_name(dtype_of<T>())));
    return elements;
  });
}

template std::vector<float> OpenedCheckpoint::read(std::string_view);
template std::vector<double> OpenedCheckpoint::read(std::string_view);
template std::vector<std::int64_t> OpenedCheckpoint::read(std::string_view);
template std::vector<std::int32_t> OpenedCheckpoint::read(std::string_view);
template std::vector<std::uint8_t> OpenedCheckpoint::read(std::string_view);

}  // namespace tessera
