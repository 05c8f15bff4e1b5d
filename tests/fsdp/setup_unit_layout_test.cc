// Where each element of a unit's parameters lies, counted out one by one.
#include "fsdp_core/layout/unit_layout.h"
#include "tests/fsdp/models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace setup_unit_layout_test {

using namespace tessera::fsdp;

namespace {

struct Draw {
  std::uint64_t seed;
  std::int64_t operator()(std::int64_t below) {
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<std::int64_t>((seed >> 33) % static_cast<std::uint64_t>(below));
  }
};

std::vector<UnitLayout::Parameter> some_parameters(Draw& draw) {
  std::vector<UnitLayout::Parameter> out;
  const std::int64_t count = 1 + draw(4);
  for (std::int64_t p = 0; p < count; ++p) {
    std::vector<std::int64_t> shape;
    for (std::int64_t d = 0; d <= draw(3); ++d) shape.push_back(draw(6));
    out.push_back({"p" + std::to_string(p), shape});
  }
  return out;
}

std::int64_t numel_of(const UnitLayout::Parameter& p) {
  return torch::empty(p.shape, torch::kMeta).numel();
}

}  // namespace

TEST_CASE("every element of a flat unit has the place that counting gives it") {
  Draw draw{GENERATE(range<std::uint64_t>(1, 13))};
  const auto parameters = some_parameters(draw);
  CAPTURE(draw.seed, parameters.size());
  std::int64_t total = 0;
  for (const auto& p : parameters) total += numel_of(p);
  for (int shards = 1; shards <= 9; ++shards) {
    const std::int64_t per_rank = (total + shards - 1) / shards;
    std::int64_t padded = 0;
    for (int rank = 0; rank < shards; ++rank) {
      const auto layout = make_layout(MemoryLayout::kFlat, parameters, shards, rank);
      REQUIRE(layout->shard_numel() == per_rank);
      padded += layout->num_padded();
      std::int64_t at = 0;  // among all elements
      for (std::size_t p = 0; p < parameters.size(); ++p) {
        const auto& place = layout->shard(p);
        CHECK(layout->full(p).offset == at);
        std::int64_t held = 0;
        for (std::int64_t i = 0; i < numel_of(parameters[p]); ++i, ++at) {
          if (at / std::max<std::int64_t>(per_rank, 1) != rank) continue;
          CHECK(place.offset + held == at % per_rank);
          CHECK(place.begin + held == i);
          ++held;
        }
        CHECK(place.numel == held);
        CHECK(place.shape == std::vector<std::int64_t>{held});
      }
    }
    CHECK(padded == per_rank * shards - total);
  }
}

/// Each rank's part of each parameter is chunk's, of the gathered shards each comes out whole, and goes
/// back where it was.
void check_there_and_back(const std::vector<UnitLayout::Parameter>& parameters, int shards) {
  std::vector<torch::Tensor> values, gathered;
  for (const auto& p : parameters)
    values.push_back(torch::arange(numel_of(p), torch::kFloat).view(p.shape) + 1);
  for (int rank = 0; rank < shards; ++rank) {
    const auto layout = make_layout(MemoryLayout::kPerParameter, parameters, shards, rank);
    torch::Tensor shard = torch::zeros({layout->shard_numel()});
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      const auto& place = layout->shard(p);
      const auto chunks = values[p].chunk(shards, parameters[p].dim);
      const torch::Tensor mine = rank < static_cast<int>(chunks.size())
                                     ? chunks[static_cast<std::size_t>(rank)]
                                     : values[p].narrow(parameters[p].dim, 0, 0);
      CHECK(mine.sizes() == torch::IntArrayRef(place.shape));
      CHECK(torch::equal(layout->part_of(values[p], p), mine));
      CHECK(layout->is_rows(p) == (parameters[p].dim == 0));
      shard.narrow(0, place.offset, place.numel).copy_(mine.reshape({-1}));
    }
    gathered.push_back(shard);
  }
  const auto layout = make_layout(MemoryLayout::kPerParameter, parameters, shards, 0);
  std::vector<torch::Tensor> buffers;
  for (const std::int64_t numel : layout->buffer_numels())
    buffers.push_back(torch::full({numel}, -1.f));
  const torch::Tensor all = torch::cat(gathered);
  layout->copy_out(all, buffers);
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    CHECK(layout->full(p).offset == 0);
    CHECK(torch::equal(buffers[layout->full(p).buffer].narrow(0, 0, values[p].numel()),
                       values[p].reshape({-1})));
  }
  torch::Tensor back = torch::full_like(all, -1);
  layout->copy_in(buffers, back);
  CHECK(torch::equal(back, all));
}

TEST_CASE("rows of each parameter are cut as chunk does and copies go there and back") {
  Draw draw{GENERATE(range<std::uint64_t>(20, 32))};
  const auto parameters = some_parameters(draw);
  CAPTURE(draw.seed, parameters.size());
  for (int shards = 1; shards <= 9; ++shards) check_there_and_back(parameters, shards);
}

TEST_CASE("parameters cut on any dim have the part that chunk gives and go there and back") {
  Draw draw{GENERATE(range<std::uint64_t>(40, 60))};
  const int shards = 1 + static_cast<int>(draw(5));
  std::vector<UnitLayout::Parameter> parameters;
  for (std::int64_t p = 0; p <= draw(4); ++p) {
    UnitLayout::Parameter one{"p" + std::to_string(p), {}};
    for (std::int64_t d = 0; d <= draw(3); ++d) one.shape.push_back(draw(5));
    one.dim = static_cast<int>(draw(static_cast<std::int64_t>(one.shape.size())));
    if (one.dim > 0) one.shape[static_cast<std::size_t>(one.dim)] *= shards;
    parameters.push_back(one);
  }
  CAPTURE(draw.seed, shards, parameters.size());
  check_there_and_back(parameters, shards);
}

TEST_CASE("worked examples of flat units, with and without alignment") {
  using Numels = std::vector<std::int64_t>;
  // Per rank and parameter: (offset in the shard, elements, first element); absent: none.
  struct Held {
    std::int64_t offset, numel, begin;
  };
  const auto check = [](const Numels& numels, int shards, std::int64_t align, std::int64_t shard,
                        const std::vector<std::vector<Held>>& ranks) {
    std::vector<UnitLayout::Parameter> parameters;
    for (const std::int64_t n : numels)
      parameters.push_back({"p" + std::to_string(parameters.size()), {n}});
    for (int rank = 0; rank < shards; ++rank) {
      CAPTURE(shards, rank);
      const auto layout = make_layout(MemoryLayout::kFlat, parameters, shards, rank, align);
      CHECK(layout->shard_numel() == shard);
      for (std::size_t p = 0; p < numels.size(); ++p) {
        const Held& want = ranks[static_cast<std::size_t>(rank)][p];
        CHECK(layout->shard(p).numel == want.numel);
        if (want.numel == 0) continue;
        CHECK(layout->shard(p).offset == want.offset);
        CHECK(layout->shard(p).begin == want.begin);
      }
    }
  };
  const Held none{0, 0, 0};
  check({5, 3, 8}, 2, 4, 10, {{{0, 5, 0}, {8, 2, 0}, none}, {none, {0, 1, 2}, {2, 8, 0}}});
  check({5, 3, 8}, 3, 4, 7,
        {{{0, 5, 0}, none, none}, {none, {1, 3, 0}, {5, 2, 0}}, {none, none, {0, 6, 2}}});
  check({5, 3, 8}, 3, 1, 6,
        {{{0, 5, 0}, {5, 1, 0}, none}, {none, {0, 2, 1}, {2, 4, 0}}, {none, none, {0, 4, 4}}});
  check({5, 3, 8}, 5, 1, 4,
        {{{0, 4, 0}, none, none},
         {{0, 1, 4}, {1, 3, 0}, none},
         {none, none, {0, 4, 0}},
         {none, none, {0, 4, 4}},
         {none, none, none}});
  check({5, 3, 8}, 2, 8, 12, {{{0, 5, 0}, {8, 3, 0}, none}, {none, none, {4, 8, 0}}});
  check({1}, 2, 1, 1, {{{0, 1, 0}}, {none}});
}

}  // namespace setup_unit_layout_test
