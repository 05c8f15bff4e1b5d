#include "lib/format/hdf5/output_plan.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/encoding/json.h>
#include <tessera/encoding/tagged_json.h>

#include <algorithm>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lib/format/dtype_refusal.h"
#include "lib/format/hdf5/dtype.h"
#include "lib/format/hdf5/encode.h"
#include "lib/format/hdf5/names.h"
#include "lib/format/hdf5/tree.h"
#include "lib/format/safetensors/names.h"
#include "lib/format/safetensors/state.h"

namespace tessera::h5 {
namespace {

// Data starts at cache lines; of large tensors at pages, for direct I/O and mmap.
constexpr std::uint64_t kAlignment = 64;
constexpr std::uint64_t kLargeAlignment = 4096;
constexpr std::uint64_t kLargeBytes = std::uint64_t{1} << 20;
// Attributes lie in one object header, which readers search from the front.
constexpr std::size_t kMaxAttributes = 512;

constexpr std::uint64_t kImagePayload = 0;
constexpr std::uint64_t kPaddingPayload = 1;

class ImageRenderer : public OutputRenderer {
 public:
  explicit ImageRenderer(Bytes image) : image_(std::move(image)) {}
  Bytes render(const OutputPlan& plan, std::size_t segment, const SegmentCrc&) const override {
    if (plan.segments[segment].payload == kImagePayload) return image_;
    return Bytes(plan.segments[segment].length);
  }

 private:
  Bytes image_;
};

/// The number of the dataset that holds tessera.state: no tensor's.
constexpr std::uint32_t kStateLeaf = ~std::uint32_t{0};

class PlanBuilder {
 public:
  PlanBuilder(const Manifest& source, const TargetRequest& request)
      : source_(source), request_(request) {}

  OutputPlan build() {
    check_request();
    state_ = st::encode_state(source_, request_, "hdf5");
    plan_.notes = std::move(state_.notes);
    plan_.left_out = std::move(state_.left_out);
    // The name is taken first: a tensor of this name gets another link.
    tree_.add_leaf({key_item(kStateDataset)}, kStateLeaf);
    place_tensors();
    place_values();
    json_ = state_json();
    add_objects();
    lay_out_data();
    plan_.format = "hdf5";
    plan_.single_file = request_.single_file;
    return std::move(plan_);
  }

 private:
  void check_request() const {
    const std::int64_t ranks =
        request_.mesh ? request_.mesh->world_size() : request_.world_size.value_or(1);
    if (ranks > 1)
      fail(Code::kUnsupported, fmt::format("hdf5 holds one rank; {} were asked for", ranks),
           "use --to torch-dcp");
  }

  void place_tensors() {
    std::unordered_map<std::string, const Path*> paths;
    for (const StateEntry& entry : source_.state.entries) {
      entries_.emplace(entry.name, &entry);
      if (entry.value.is_tensor()) paths.emplace(entry.name, &entry.path);
    }
    for (std::uint32_t i = 0; i < state_.tensors.size(); ++i) {
      const std::string& name = state_.tensors[i].name;
      const auto found = paths.find(name);
      // Tensors inside values have no path of their own, nor has a bare one.
      const Path flat{key_item(name)};
      const bool has_path = found != paths.end() && !found->second->empty();
      std::string place = tree_.add_leaf(has_path ? *found->second : flat, i);
      places_of_tensors_.push_back(place);
      std::string dotted = place;
      std::ranges::replace(dotted, '/', '.');
      if (dotted != name) names_.emplace_back(Value::string(std::move(place)), Value::string(name));
    }
  }

  /// Values that HDF5 has a type for become attributes of their dict's group.
  void place_values() {
    tree_.node(0).attributes.emplace_back(kVersionAttribute, Value::integer(1));
    for (auto& [key, text] : state_.metadata) {
      if (key == st::kState) containers_ = parse(text);
      if (key != st::kValues) continue;
      const Value json = parse(text);
      const Value* pairs = json.find("__dict__");
      if (!pairs) {
        for (const auto& [name, value] : json.as_dict())
          values_.emplace_back(name, place_value(name.as_string(), value));
        continue;
      }
      // Some name is no plain key; those that are can still be looked up.
      ValueList list;
      for (const Value& pair : pairs->as_list()) {
        const Value& name = pair.as_list()[0];
        Value value = pair.as_list()[1];
        if (name.is_string()) value = place_value(name.as_string(), value);
        list.push_back(Value::list({name, std::move(value)}));
      }
      values_.emplace_back(Value::string("__dict__"), Value::list(std::move(list)));
    }
    for (const auto& [key, text] : state_.metadata)
      if (key != st::kState && key != st::kValues)
        aliases_.emplace_back(Value::string(key), Value::string(text));
  }
  static Value parse(const std::string& text) {
    return parse_json(as_bytes(text), {.max_depth = 1024});
  }

  /// What stands for the value in tessera.state: itself, or where its attribute is.
  Value place_value(const std::string& name, const Value& json) {
    const auto found = entries_.find(name);
    if (found == entries_.end() || found->second->path.empty()) return json;
    const StateEntry& entry = *found->second;
    if (!fits_attribute(entry.value)) return json;
    const std::string attribute = entry.path.back().text();
    if (attribute.empty() || attribute.size() > 255 || attribute.find('\0') != attribute.npos)
      return json;
    std::string place;
    const std::span<const PathItem> parents(entry.path.data(), entry.path.size() - 1);
    const auto group = tree_.group(parents, place);
    if (!group) return json;
    auto& attributes = tree_.node(*group).attributes;
    const bool taken =
        std::ranges::any_of(attributes, [&](const auto& a) { return a.first == attribute; });
    if (taken || attributes.size() >= kMaxAttributes) return json;
    attributes.emplace_back(attribute, entry.value);
    ValueList where{Value::string(std::move(place)), Value::string(attribute)};
    if (entry.value.kind() == Value::Kind::kTuple) where.push_back(Value::string("tuple"));
    return Value::dict({{Value::string("__attribute__"), Value::list(std::move(where))}});
  }

  /// Tensors without any structure need no "state", unless their order is not that of the links.
  void keep_order() {
    if (!containers_.is_none() || std::ranges::is_sorted(places_of_tensors_)) return;
    ValueList entries;
    ValueBudget budget(2 * state_.tensors.size() + 1);
    for (const st::NamedTensor& tensor : state_.tensors) {
      const Value name = to_tagged_json(Value::string(tensor.name), {}, budget);
      entries.push_back(Value::list({name, Value::list({name})}));
    }
    containers_ = Value::dict({{Value::string("entries"), Value::list(std::move(entries))},
                               {Value::string("containers"), Value::list({})}});
  }

  std::string state_json() {
    keep_order();
    ValueDict json;
    if (!values_.empty()) json.emplace_back(Value::string("values"), Value::dict(values_));
    if (!containers_.is_none()) json.emplace_back(Value::string("state"), containers_);
    if (!names_.empty()) json.emplace_back(Value::string("names"), Value::dict(names_));
    if (!aliases_.empty()) json.emplace_back(Value::string("aliases"), Value::dict(aliases_));
    return json.empty() ? "" : dump_json(Value::dict(std::move(json)));
  }

  std::vector<Message> attributes_of(const TreeNode& node) {
    std::vector<Message> out;
    for (const auto& [name, value] : node.attributes)
      out.push_back(attribute_message(image_, name, value));
    return out;
  }

  /// Children before parents, whose links name their addresses.
  void add_objects() {
    image_.allocate(kSuperblockBytes);
    const auto& nodes = tree_.nodes();
    std::vector<std::uint64_t> address(nodes.size(), 0);
    address_at_.resize(state_.tensors.size(), 0);
    for (std::size_t n = nodes.size(); n-- > 0;) {
      if (nodes[n].leaf)
        address[n] = add_dataset(*nodes[n].leaf);
      else
        address[n] = add_group(nodes[n], address);
    }
    root_ = address[0];
  }

  std::uint64_t add_dataset(std::uint32_t leaf) {
    if (leaf == kStateLeaf) return json_.empty() ? 0 : add_state();
    const StoredTensor& tensor = source_.tensors[state_.tensors[leaf].tensor];
    const TensorSpec& spec = tensor.spec;
    if (is_quantized(spec.dtype) || is_sub_byte(spec.dtype)) refuse_dtype(tensor, "hdf5");
    return in_tensor(state_.tensors[leaf].name, [&] {
      std::vector<Message> attributes;
      if (needs_name(spec.dtype))
        attributes.push_back(attribute_message(image_, kDtypeAttribute,
                                               Value::string(std::string(torch_name(spec.dtype)))));
      std::size_t offset = 0;
      const Bytes header = dataset_header(spec, attributes, offset);
      const std::uint64_t at = image_.add(header);
      address_at_[leaf] = at + offset;
      return at;
    });
  }

  /// The JSON itself lies with the metadata.
  std::uint64_t add_state() {
    std::size_t offset = 0;
    const TensorSpec spec{DType::kUInt8, Shape{static_cast<std::int64_t>(json_.size())}};
    const Bytes header = dataset_header(spec, {}, offset);
    const std::uint64_t at = image_.add(header);
    image_.put_u64(at + offset, image_.add(as_bytes(json_)));
    return at;
  }

  std::uint64_t add_group(const TreeNode& node, const std::vector<std::uint64_t>& address) {
    std::vector<std::pair<std::string, std::uint64_t>> links;
    for (const auto& [link, child] : node.children)
      if (address[child] != 0) links.emplace_back(link, address[child]);
    places_ = add_links(image_, links);
    const std::vector<Message> attributes = attributes_of(node);
    return image_.add(group_header(places_.btree, places_.heap, attributes));
  }

  void lay_out_data() {
    std::vector<std::uint64_t> offset(state_.tensors.size(), kUndefinedAddress);
    std::uint64_t end = image_.size();
    for (std::size_t i = 0; i < state_.tensors.size(); ++i) {
      const auto bytes =
          static_cast<std::uint64_t>(source_.tensors[state_.tensors[i].tensor].spec.size_bytes());
      if (bytes == 0) continue;
      const std::uint64_t alignment = bytes >= kLargeBytes ? kLargeAlignment : kAlignment;
      offset[i] = (end + alignment - 1) / alignment * alignment;
      image_.put_u64(address_at_[i], offset[i]);
      end = offset[i] + bytes;
    }
    image_.put(0, superblock(end, root_, places_));
    const std::string path = request_.single_file ? "" : std::string(kDefaultFile);
    plan_.files.push_back({path, 0, 0, 0});
    add_segment({Segment::Kind::kLiteral, 0, 0, image_.size(), kImagePayload});
    for (std::size_t i = 0; i < state_.tensors.size(); ++i)
      if (offset[i] != kUndefinedAddress) add_tensor(state_.tensors[i].tensor, offset[i]);
    plan_.renderer = std::make_shared<ImageRenderer>(image_.take());
  }
  void add_tensor(std::uint32_t tensor, std::uint64_t offset) {
    const std::uint64_t padding = offset - plan_.files[0].size_bytes;
    if (padding > 0) add_segment({Segment::Kind::kLiteral, 0, 0, padding, kPaddingPayload});
    const TensorSpec& spec = source_.tensors[tensor].spec;
    add_segment({Segment::Kind::kTensor, tensor, 0, static_cast<std::uint64_t>(spec.size_bytes()),
                 plan_.chunks.size()});
    plan_.chunks.push_back(Chunk::whole_of(Box::whole(spec.shape)));
  }
  void add_segment(Segment segment) {
    OutputFile& file = plan_.files[0];
    segment.offset = file.size_bytes;
    file.size_bytes += segment.length;
    ++file.segment_count;
    plan_.segments.push_back(segment);
  }

  const Manifest& source_;
  const TargetRequest& request_;
  OutputPlan plan_;
  st::EncodedState state_;
  std::unordered_map<std::string, const StateEntry*> entries_;
  NameTree tree_;
  Image image_;
  std::vector<std::string> places_of_tensors_;
  ValueDict values_, names_, aliases_;
  Value containers_;  // safetensors' tessera.state: order, paths, kinds of containers
  std::string json_;
  std::vector<std::uint64_t> address_at_;  // per tensor: where its data address stands
  GroupPlaces places_;                     // of the group added last: in the end the root
  std::uint64_t root_ = 0;
};

}  // namespace

OutputPlan plan_output(const Manifest& source, const TargetRequest& request) {
  return PlanBuilder(source, request).build();
}

}  // namespace tessera::h5
