#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/tensor/box.h>

#include <algorithm>

namespace tessera {

Box Box::whole(const Shape& shape) {
  return {std::vector<std::int64_t>(static_cast<std::size_t>(shape.rank()), 0), shape};
}

bool Box::contains(const Box& inner) const {
  if (inner.rank() != rank()) return false;
  for (int d = 0; d < rank(); ++d)
    if (inner.begin(d) < begin(d) || inner.end(d) > end(d)) return false;
  return true;
}

Box Box::relative_to(const std::vector<std::int64_t>& new_origin) const {
  TESSERA_CHECK(new_origin.size() == origin.size());
  Box moved = *this;
  for (std::size_t d = 0; d < origin.size(); ++d) moved.origin[d] -= new_origin[d];
  return moved;
}

Box Box::translated(const std::vector<std::int64_t>& by) const {
  TESSERA_CHECK(by.size() == origin.size());
  Box moved = *this;
  for (std::size_t d = 0; d < origin.size(); ++d) moved.origin[d] += by[d];
  return moved;
}

std::string Box::to_string() const {
  // Of what is refused too: a box whose numbers do not belong together has no bounds to write.
  bool has_bounds = origin.size() == shape.extents().size();
  for (int d = 0; d < rank() && has_bounds; ++d)
    has_bounds = checked_add(begin(d), shape[d]).has_value();
  if (!has_bounds) return fmt::format("{} from [{}]", shape.to_string(), fmt::join(origin, ","));
  std::string text = "[";
  for (int d = 0; d < rank(); ++d)
    text += fmt::format("{}{}:{}", d == 0 ? "" : ",", begin(d), end(d));
  return text + "]";
}

std::optional<Box> intersect(const Box& a, const Box& b) {
  TESSERA_CHECK(a.rank() == b.rank());
  Box common = a;
  for (int d = 0; d < a.rank(); ++d) {
    const std::int64_t begin = std::max(a.begin(d), b.begin(d));
    const std::int64_t end = std::min(a.end(d), b.end(d));
    if (begin >= end) return std::nullopt;
    common.origin[static_cast<std::size_t>(d)] = begin;
    common.shape[d] = end - begin;
  }
  return common;
}

}  // namespace tessera
