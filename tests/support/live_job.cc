#include "tests/support/live_job.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <exception>
#include <thread>

namespace tessera::test {

std::vector<std::string> on_ranks(std::vector<std::unique_ptr<RankGroup>>& groups,
                                  const std::function<void(RankGroup&)>& body) {
  std::vector<std::string> thrown(groups.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < groups.size(); ++rank)
    threads.emplace_back([&, rank] {
      try {
        body(*groups[rank]);
      } catch (const std::exception& error) {
        thrown[rank] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

std::vector<std::string> on_ranks(int size, const std::function<void(RankGroup&)>& body) {
  auto groups = thread_ranks(size);
  std::vector<std::string> thrown(groups.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < groups.size(); ++rank)
    threads.emplace_back([&, rank, group = std::move(groups[rank])]() mutable {
      try {
        body(*group);
      } catch (const std::exception& error) {
        thrown[rank] = error.what();
      }
      group.reset();
    });
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

void require_quiet(const std::vector<std::string>& thrown) {
  for (const std::string& message : thrown) REQUIRE(message == "");
}

std::vector<JobTensor> random_tensors(std::uint64_t seed) {
  constexpr DType kTypes[] = {DType::kUInt8, DType::kBFloat16, DType::kFloat32, DType::kInt64};
  std::mt19937_64 random(seed);
  std::vector<JobTensor> tensors;
  const auto count = static_cast<std::uint32_t>(1 + random() % 7);
  for (std::uint32_t t = 0; t < count; ++t) {
    std::vector<std::int64_t> extents(random() % 4);
    for (std::int64_t& extent : extents)
      extent = static_cast<std::int64_t>(random() % 9 + (random() % 9 == 0 ? 0 : 1));
    tensors.push_back({"layer." + std::to_string(t) + ".weight", t,
                       TensorSpec{kTypes[random() % 4], Shape(std::move(extents))}});
  }
  return tensors;
}

LiveJob::LiveJob(std::vector<JobTensor> tensors, int world, std::uint64_t seed)
    : tensors_(std::move(tensors)), replicated_(tensors_.size()), pieces_(world) {
  std::mt19937_64 random(seed);
  for (std::uint32_t t = 0; t < tensors_.size(); ++t) {
    const Chunk whole = Chunk::whole_of(Box::whole(tensors_[t].spec.shape));
    const auto kind = tensors_[t].spec.shape.numel() == 0 ? 1 : random() % 4;
    replicated_[t] = kind == 0 || kind == 3;
    if (kind == 0) {  // everywhere
      for (int rank = 0; rank < world; ++rank) add(rank, t, whole, random);
      continue;
    }
    if (kind == 1) {
      add(static_cast<int>(random() % world), t, whole, random);
      continue;
    }
    for (const Chunk& chunk : random_tiling(random, tensors_[t].spec.shape)) {
      const int first = static_cast<int>(random() % world);
      add(first, t, chunk, random);
      if (kind == 3 && world > 1) add((first + 1) % world, t, chunk, random);
    }
  }
}

void LiveJob::add(int rank, std::uint32_t tensor, const Chunk& chunk, std::mt19937_64& random) {
  const TensorSpec& spec = tensors_[tensor].spec;
  const auto width = static_cast<std::size_t>(element_bytes(spec.dtype));
  Piece piece;
  piece.tensor = tensor;
  piece.chunk = chunk;
  piece.element = elements_of(spec.shape, chunk);
  std::int64_t span = chunk.numel();
  const int dims = chunk.box.rank();
  if (chunk.is_whole_box() && chunk.numel() > 0 && random() % 3 == 0) {  // the first dim innermost
    piece.strides.resize(static_cast<std::size_t>(dims));
    span = 1;
    for (int d = 0; d < dims; ++d) {
      piece.strides[static_cast<std::size_t>(d)] = span;
      span *= chunk.box.shape[d];
    }
  }
  for (std::int64_t e = 0; e < chunk.numel(); ++e) {
    std::int64_t offset = piece.strides.empty() ? e : 0;
    std::int64_t rest = e;
    for (int d = dims; !piece.strides.empty() && d-- > 0;) {
      offset += rest % chunk.box.shape[d] * piece.strides[static_cast<std::size_t>(d)];
      rest /= chunk.box.shape[d];
    }
    piece.at.push_back(static_cast<std::size_t>(offset) * width);
  }
  piece.memory.resize(static_cast<std::size_t>(span) * width);
  pieces_[static_cast<std::size_t>(rank)].push_back(std::move(piece));
}

void LiveJob::fill(bool content) {
  for (auto& pieces : pieces_) {
    for (Piece& piece : pieces) {
      const int width = element_bytes(tensors_[piece.tensor].spec.dtype);
      for (std::size_t e = 0; e < piece.at.size(); ++e)
        for (int b = 0; b < width; ++b)
          piece.memory[piece.at[e] + static_cast<std::size_t>(b)] =
              content ? content_byte(tensors_[piece.tensor].number, piece.element[e], b)
                      : std::byte{0};
    }
  }
}

std::int64_t LiveJob::wrong_elements() const {
  std::int64_t wrong = 0;
  for (const auto& pieces : pieces_) {
    for (const Piece& piece : pieces) {
      const int width = element_bytes(tensors_[piece.tensor].spec.dtype);
      for (std::size_t e = 0; e < piece.at.size(); ++e) {
        bool same = true;
        for (int b = 0; b < width; ++b)
          same = same && piece.memory[piece.at[e] + static_cast<std::size_t>(b)] ==
                             content_byte(tensors_[piece.tensor].number, piece.element[e], b);
        wrong += !same;
      }
    }
  }
  return wrong;
}

LiveState LiveJob::state(int rank) const {
  std::vector<LiveTensor> tensors;
  std::vector<Path> paths;
  std::vector<std::int64_t> index(tensors_.size(), -1);
  for (const Piece& piece : pieces_[static_cast<std::size_t>(rank)]) {
    const JobTensor& tensor = tensors_[piece.tensor];
    if (index[piece.tensor] < 0) {
      LiveTensor made;
      made.spec = tensor.spec;
      made.replicated = replicated_[piece.tensor];
      index[piece.tensor] = static_cast<std::int64_t>(tensors.size());
      tensors.push_back(std::move(made));
      paths.push_back({key_item("model"), key_item(tensor.name)});
    }
    tensors[static_cast<std::size_t>(index[piece.tensor])].pieces.push_back(
        {piece.chunk, const_cast<std::byte*>(piece.memory.data()), piece.strides});
  }
  LiveState state;
  for (std::size_t t = 0; t < tensors.size(); ++t)
    state.add_tensor(paths[t], std::move(tensors[t]));
  return state;
}

}  // namespace tessera::test
