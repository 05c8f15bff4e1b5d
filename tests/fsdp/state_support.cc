#include "tests/fsdp/state_support.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "fsdp_core/bridge/dtype.h"
#include "tests/fsdp/torch_and_catch.h"

namespace tessera::fsdp::test {

OddImpl::OddImpl(bool with_scalar) {
  embed = register_module("embed", torch::nn::Embedding(11, 6));
  inner = register_module("inner", Block(6, 7));
  head = register_module("head", torch::nn::Linear(torch::nn::LinearOptions(6, 11).bias(false)));
  head->weight = head->register_parameter("weight2", embed->weight);
  if (with_scalar) scalar = register_parameter("scalar", torch::full({}, 1.5));
  empty = register_parameter("empty", torch::zeros({0, 3}));
  tokens = register_buffer("tokens", torch::zeros({}, torch::kLong));
  history = register_buffer("history", torch::tensor({1.0, 0.5, 0.25}));
}

torch::Tensor OddImpl::forward(torch::Tensor ids) {
  tokens += ids.numel();
  torch::Tensor x = inner->forward(embed->forward(ids));
  if (scalar.defined()) x = x * scalar;
  return torch::matmul(x, embed->weight.t()) + empty.sum();
}

Odd make_odd(bool with_scalar) {
  std::lock_guard lock(generator_mutex());
  torch::manual_seed(21);
  return Odd(with_scalar);
}

void shard_odd(Odd& model, const Options& options) {
  fully_shard(model->inner, options);
  fully_shard(model, options);
}

torch::Tensor odd_loss(Odd& model, int step, int rank, int world) {
  constexpr int kBatch = 24;
  std::vector<std::int64_t> ids(kBatch), targets(kBatch);
  for (int i = 0; i < kBatch; ++i) {
    ids[i] = (i * 5 + step * 3) % 11;
    targets[i] = (i * 7 + step) % 11;
  }
  const int rows = kBatch / world;
  const auto part = [&](const std::vector<std::int64_t>& all) {
    return torch::tensor(all).narrow(0, rank * rows, rows);
  };
  return torch::nn::functional::cross_entropy(model->forward(part(ids)), part(targets));
}

void train_odd(Odd& model, torch::optim::Optimizer& optimizer, int from, int to, int rank,
               int world) {
  for (int step = from; step < to; ++step) {
    optimizer.zero_grad();
    odd_loss(model, step, rank, world).backward();
    optimizer.step();
  }
}

std::vector<torch::Tensor> once_each(const std::vector<torch::Tensor>& parameters) {
  std::vector<torch::Tensor> out;
  for (const torch::Tensor& parameter : parameters)
    if (std::ranges::none_of(out, [&](const auto& each) { return each.is_same(parameter); }))
      out.push_back(parameter);
  return out;
}

ScratchFolder::ScratchFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "fsdp_state_XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp");
  path_ = pattern;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

const LiveTensor* find_tensor(const LiveState& state, const std::string& name) {
  const StateEntry* entry = state.dict().find(name);
  return entry && entry->value.is_tensor() ? &state.tensors().at(entry->value.tensor_index())
                                           : nullptr;
}

const Value* find_value(const LiveState& state, const std::string& name) {
  const StateEntry* entry = state.dict().find(name);
  return entry && !entry->value.is_tensor() ? &entry->value : nullptr;
}

std::vector<std::string> names_of(const LiveState& state) {
  std::vector<std::string> out;
  for (const StateEntry& entry : state.dict().entries) out.push_back(entry.name);
  return out;
}

namespace {

/// The whole as bytes, and which of them are known.
struct Canvas {
  torch::Tensor whole;
  std::vector<bool> filled;
};

void paint(Canvas& canvas, const LivePiece& piece, const LiveTensor& tensor,
           const std::string& name) {
  const std::size_t size = canvas.whole.element_size();
  const Box& box = piece.chunk.box;
  auto* to = static_cast<std::byte*>(canvas.whole.mutable_data_ptr());
  const auto* from = static_cast<const std::byte*>(piece.data);
  for (std::int64_t e = piece.chunk.flat_begin; e < piece.chunk.flat_end; ++e) {
    std::int64_t rest = e, global = 0, strided = 0;
    for (int d = 0; d < box.rank(); ++d) {
      const std::int64_t inner = box.shape.inner_numel(d);
      const std::int64_t coordinate = rest / inner;
      rest %= inner;
      global += (box.begin(d) + coordinate) * tensor.spec.shape.inner_numel(d);
      if (!piece.strides.empty())
        strided += coordinate * piece.strides[static_cast<std::size_t>(d)];
    }
    const std::int64_t local = piece.strides.empty() ? e - piece.chunk.flat_begin : strided;
    const auto at = static_cast<std::size_t>(global);
    if (canvas.filled[at] && !tensor.replicated)
      throw std::runtime_error(fmt::format("{}: element {} is held twice", name, global));
    if (canvas.filled[at] && std::memcmp(to + at * size, from + local * size, size) != 0)
      throw std::runtime_error(fmt::format("{}: element {} differs", name, global));
    std::memcpy(to + at * size, from + local * size, size);
    canvas.filled[at] = true;
  }
}

}  // namespace

torch::Tensor assembled(const std::vector<LiveState>& ranks, const std::string& name) {
  Canvas canvas;
  for (const LiveState& state : ranks) {
    const LiveTensor* tensor = find_tensor(state, name);
    if (tensor == nullptr) throw std::runtime_error(name + " is not there");
    if (!canvas.whole.defined()) {
      const auto extents = tensor->spec.shape.extents();
      canvas.whole = torch::empty(std::vector<std::int64_t>(extents.begin(), extents.end()),
                                  scalar_type_of(tensor->spec.dtype));
      canvas.filled.assign(static_cast<std::size_t>(canvas.whole.numel()), false);
    }
    for (const LivePiece& piece : tensor->pieces) paint(canvas, piece, *tensor, name);
  }
  for (std::size_t e = 0; e < canvas.filled.size(); ++e)
    if (!canvas.filled[e]) throw std::runtime_error(fmt::format("{}: hole at {}", name, e));
  return canvas.whole;
}

Checkpoint Checkpoint::of(const std::vector<LiveState>& ranks) {
  Checkpoint out;
  for (const StateEntry& entry : ranks.front().dict().entries) {
    if (entry.value.is_tensor())
      out.put(entry.path, assembled(ranks, entry.name));
    else
      out.put(entry.path, {}, entry.value);
  }
  return out;
}

void Checkpoint::put(const Path& path, torch::Tensor tensor, Value value) {
  const std::string name = dotted(path);
  remove(name);
  if (tensor.defined()) {
    StoredTensor stored;
    stored.name = name;
    stored.spec = {dtype_of(tensor.scalar_type()), Shape(tensor.sizes().vec())};
    value = Value::tensor(static_cast<std::uint32_t>(manifest.tensors.size()));
    manifest.tensors.push_back(stored);
    tensors[name] = tensor.detach().clone();
  }
  manifest.state.entries.push_back({name, path, value});
}

void Checkpoint::remove(const std::string& name) {
  std::erase_if(manifest.state.entries, [&](const StateEntry& e) { return e.name == name; });
  tensors.erase(name);
}

namespace {

/// The inverse of paint.
void fill(const torch::Tensor& whole, const LivePiece& piece) {
  const std::size_t size = whole.element_size();
  const Box& box = piece.chunk.box;
  const Shape shape(whole.sizes().vec());
  const auto* from = static_cast<const std::byte*>(whole.const_data_ptr());
  auto* to = static_cast<std::byte*>(piece.data);
  for (std::int64_t e = piece.chunk.flat_begin; e < piece.chunk.flat_end; ++e) {
    std::int64_t rest = e, global = 0, strided = 0;
    for (int d = 0; d < box.rank(); ++d) {
      const std::int64_t inner = box.shape.inner_numel(d);
      const std::int64_t coordinate = rest / inner;
      rest %= inner;
      global += (box.begin(d) + coordinate) * shape.inner_numel(d);
      if (!piece.strides.empty())
        strided += coordinate * piece.strides[static_cast<std::size_t>(d)];
    }
    const std::int64_t local = piece.strides.empty() ? e - piece.chunk.flat_begin : strided;
    std::memcpy(to + local * size, from + global * size, size);
  }
}

}  // namespace

std::vector<std::string> Checkpoint::load_into(LiveState state) const {
  if (state.materialise) state.materialise(state, manifest);
  std::vector<std::string> missing, loaded;
  std::vector<StateEntry> values;
  for (const StateEntry& entry : state.dict().entries)
    if (const StateEntry* stored = manifest.state.find(entry.name); stored && state.check_value)
      if (!stored->value.is_tensor() && !entry.value.is_tensor()) state.check_value(*stored);
  for (const StateEntry& entry : state.dict().entries) {
    const StateEntry* stored = manifest.state.find(entry.name);
    if (stored == nullptr || stored->value.is_tensor() != entry.value.is_tensor()) {
      missing.push_back(entry.name);
    } else if (entry.value.is_tensor()) {
      const LiveTensor& tensor = state.tensors().at(entry.value.tensor_index());
      const torch::Tensor whole = tensors.at(entry.name).to(scalar_type_of(tensor.spec.dtype));
      if (Shape(whole.sizes().vec()) != tensor.spec.shape)
        throw std::runtime_error(entry.name + " has another shape");
      for (const LivePiece& piece : tensor.pieces) fill(whole.contiguous(), piece);
      loaded.push_back(entry.name);
    } else {
      values.push_back(*stored);
    }
  }
  if (state.check_loaded) state.check_loaded(loaded);
  for (const StateEntry& value : values)
    if (state.on_value) state.on_value(value);
  if (state.after_load) state.after_load(loaded);
  return missing;
}

bool same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const torch::Tensor left = a.detach().contiguous(), right = b.detach().contiguous();
  return left.nbytes() == 0 ||
         std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0;
}

void check_equal(const Checkpoint& found, const Checkpoint& expected) {
  CHECK(found.tensors.size() == expected.tensors.size());
  CHECK(found.manifest.state.entries.size() == expected.manifest.state.entries.size());
  for (const StateEntry& entry : expected.manifest.state.entries) {
    CAPTURE(entry.name);
    const StateEntry* other = found.manifest.state.find(entry.name);
    REQUIRE(other != nullptr);
    REQUIRE(other->value.is_tensor() == entry.value.is_tensor());
    if (entry.value.is_tensor())
      CHECK(same_bits(found.tensors.at(entry.name), expected.tensors.at(entry.name)));
    else
      CHECK(other->value == entry.value);
  }
}

}  // namespace tessera::fsdp::test
