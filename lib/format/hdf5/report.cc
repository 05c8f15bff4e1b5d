#include "lib/format/hdf5/report.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/tensor/shape.h>

#include <limits>
#include <utility>

namespace tessera::h5 {
namespace {

constexpr std::uint64_t kNoMoreChunks = std::numeric_limits<std::uint64_t>::max();
constexpr int kMaxListDepth = 34;  // HDF5 has at most 32 dimensions

[[noreturn]] void garbled(const char* what) {
  fail(Code::kCorrupt, fmt::format("tessera-hdf5 answered with garbled {}", what));
}

class Parser {
 public:
  explicit Parser(ByteView bytes) : left_(bytes) {}

  Report run() {
    while (!left_.empty()) record();
    return std::move(out_);
  }

 private:
  template <class T>
  T number() {
    if (left_.size() < sizeof(T)) garbled("text: it ends early");
    const T value = load_le<T>(left_.data());
    left_ = left_.subspan(sizeof(T));
    return value;
  }
  template <class E>
  E tag(E last) {
    const auto value = number<std::uint8_t>();
    if (value > static_cast<std::uint8_t>(last)) garbled("text: an unknown tag");
    return static_cast<E>(value);
  }
  std::string text() {
    const auto length = number<std::uint32_t>();
    if (length > left_.size()) garbled("text: it ends early");
    std::string out(as_text(left_.first(length)));
    left_ = left_.subspan(length);
    return out;
  }
  std::int64_t extent() {
    const auto value = number<std::uint64_t>();
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      garbled("extents");
    return static_cast<std::int64_t>(value);
  }

  void record() {
    switch (tag(Tag::kProblem)) {
      case Tag::kGroup: {
        std::string path = text();
        add(Item::Kind::kGroup, out_.groups, Group{std::move(path), number<std::uint8_t>() != 0});
        return;
      }
      case Tag::kDataset:
        return add(Item::Kind::kDataset, out_.datasets, dataset());
      case Tag::kAttribute: {
        NamedValue v;
        v.owner = text();
        v.name = text();
        v.value = value(0);
        return add(Item::Kind::kValue, out_.values, std::move(v));
      }
      case Tag::kText: {
        NamedValue v{text(), "", {}, false};
        v.value = value(0);
        return add(Item::Kind::kValue, out_.values, std::move(v));
      }
      case Tag::kLink: {
        LinkInfo link;
        link.kind = tag(LinkKind::kOther);
        link.path = text();
        link.target = text();
        out_.links.push_back(std::move(link));
        return;
      }
      case Tag::kProblem: {
        Problem problem;
        problem.owner = text();
        problem.name = text();
        problem.why = text();
        out_.problems.push_back(std::move(problem));
        return;
      }
    }
    garbled("text: an unknown tag");
  }

  template <class T>
  void add(Item::Kind kind, std::vector<T>& list, T item) {
    out_.items.push_back({kind, static_cast<std::uint32_t>(list.size())});
    list.push_back(std::move(item));
  }

  Value value(int depth) {
    switch (tag(ValueTag::kList)) {
      case ValueTag::kNone:
        return {};
      case ValueTag::kBool:
        return Value::boolean(number<std::uint8_t>() != 0);
      case ValueTag::kInt:
        return Value::integer(number<std::int64_t>());
      case ValueTag::kUInt: {
        const auto v = number<std::uint64_t>();
        if (v > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
          return Value::big_integer(fmt::format("{}", v));
        return Value::integer(static_cast<std::int64_t>(v));
      }
      case ValueTag::kReal:
        return Value::real(number<double>());
      case ValueTag::kComplex: {
        const auto re = number<double>();
        return Value::complex(re, number<double>());
      }
      case ValueTag::kText:
        return Value::string(text());
      case ValueTag::kList:
        return list(depth);
    }
    garbled("values");
  }
  Value list(int depth) {
    if (depth >= kMaxListDepth) garbled("values: nested too deeply");
    const auto count = number<std::uint32_t>();
    if (count > left_.size()) garbled("values: a list longer than the text");
    ValueList out;
    for (std::uint32_t i = 0; i < count; ++i) out.push_back(value(depth + 1));
    return Value::list(std::move(out));
  }

  TypeInfo type() {
    TypeInfo t;
    t.type_class = tag(TypeClass::kOther);
    t.size = number<std::uint32_t>();
    t.big_endian = number<std::uint8_t>() == 1;
    if (t.size == 0) garbled("types");
    if (t.type_class == TypeClass::kFloat || t.type_class == TypeClass::kComplex) {
      for (std::uint32_t* field :
           {&t.sign, &t.exponent, &t.exponent_bits, &t.mantissa, &t.mantissa_bits, &t.bias})
        *field = number<std::uint32_t>();
      t.fills_its_bytes = number<std::uint8_t>() != 0;
    }
    if (t.type_class == TypeClass::kOther) t.description = text();
    return t;
  }

  Dataset dataset() {
    Dataset d;
    d.path = text();
    d.type = type();
    const auto rank = number<std::uint8_t>();
    if (rank > kMaxRank) garbled("extents");
    for (int i = 0; i < rank; ++i) d.extents.push_back(extent());
    d.layout = tag(LayoutKind::kExternal);
    switch (d.layout) {
      case LayoutKind::kContiguous:
        d.fill = fill(d.type);
        d.offset = number<std::uint64_t>();
        d.length = number<std::uint64_t>();
        return d;
      case LayoutKind::kChunked:
        d.fill = fill(d.type);
        chunked(d);
        return d;
      case LayoutKind::kCompact:
        d.bytes = text();
        return d;
      case LayoutKind::kVirtual:
        d.fill = fill(d.type);
        for (auto left = number<std::uint32_t>(); left > 0; --left) d.mappings.push_back(mapping());
        return d;
      case LayoutKind::kExternal:
        d.external_file = text();
        return d;
    }
    garbled("layouts");
  }
  std::string fill(const TypeInfo& type) {
    std::string value = text();
    if (!value.empty() && value.size() != type.size) garbled("fill values");
    return value;
  }
  void chunked(Dataset& d) {
    for (std::size_t i = 0; i < d.extents.size(); ++i) {
      d.chunk.push_back(extent());
      if (d.chunk.back() == 0) garbled("chunks");
    }
    for (auto filters = number<std::uint8_t>(); filters > 0; --filters) {
      Filter filter;
      filter.id = number<std::uint32_t>();
      filter.name = text();
      for (auto n = number<std::uint8_t>(); n > 0; --n)
        filter.parameters.push_back(number<std::uint32_t>());
      d.filters.push_back(std::move(filter));
    }
    d.edges_unfiltered = number<std::uint8_t>() != 0;
    for (auto n = number<std::uint64_t>(); n != kNoMoreChunks; n = number<std::uint64_t>()) {
      StoredChunk chunk;
      chunk.number = n;
      chunk.offset = number<std::uint64_t>();
      chunk.length = number<std::uint64_t>();
      chunk.skipped_filters = number<std::uint32_t>();
      if (!d.chunks.empty() && d.chunks.back().number >= n) garbled("chunks");
      d.chunks.push_back(chunk);
    }
  }
  Mapping mapping() {
    Mapping m;
    m.file = text();
    m.dataset = text();
    m.target = selection();
    m.source = selection();
    return m;
  }
  Selection selection() {
    Selection s;
    s.kind = tag(SelectionKind::kOther);
    const auto rank = number<std::uint8_t>();
    if (rank > kMaxRank) garbled("selections");
    for (int i = 0; i < rank; ++i) {
      Hyperslab h;
      for (std::uint64_t* field : {&h.start, &h.stride, &h.count, &h.block})
        *field = number<std::uint64_t>();
      s.dims.push_back(h);
    }
    return s;
  }

  ByteView left_;
  Report out_;
};

}  // namespace

const Dataset* Report::find_dataset(const std::string& path) const {
  const std::string* wanted = &path;
  for (const LinkInfo& link : links)
    if (link.kind == LinkKind::kAlias && link.path == path) wanted = &link.target;
  for (const Dataset& dataset : datasets)
    if (dataset.path == *wanted) return &dataset;
  return nullptr;
}

Report parse_report(ByteView bytes) { return Parser(bytes).run(); }

}  // namespace tessera::h5
