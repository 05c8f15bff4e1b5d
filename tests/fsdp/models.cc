#include "tests/fsdp/models.h"

#include <fmt/format.h>

#include <stdexcept>

namespace tessera::fsdp::test {

std::mutex& generator_mutex() {
  static std::mutex mutex;
  return mutex;
}

Net make_net(int depth, std::int64_t width, std::int64_t hidden, std::int64_t out) {
  std::lock_guard lock(generator_mutex());
  torch::manual_seed(7);
  return Net(depth, width, hidden, out);
}

void shard(Net& net, const Options& options) {
  for (Block& block : net->blocks) fully_shard(block, options);
  fully_shard(net, options);
}

Data make_data(std::int64_t rows, std::int64_t width, std::int64_t out) {
  std::lock_guard lock(generator_mutex());
  torch::manual_seed(3);
  return {torch::randn({rows, width}), torch::randn({rows, out})};
}

Data part_of(const Data& data, int rank, int world) {
  const std::int64_t rows = data.x.size(0) / world;
  return {data.x.narrow(0, rank * rows, rows), data.y.narrow(0, rank * rows, rows)};
}

void rank_check(bool holds, const char* expression, const char* file, int line,
                const std::string& context) {
  if (holds) return;
  throw std::runtime_error(
      fmt::format("{}:{}: {} does not hold {}", file, line, expression, context));
}

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return fmt::format("{} ({})", error.what(), error.status().hint);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

double mean_loss(const torch::Tensor& loss, Communicator* comm) {
  torch::Tensor value = loss.detach().to(torch::kDouble).reshape({1});
  if (comm != nullptr && comm->size() > 1) comm->all_reduce(value, Reduce::kAverage, {});
  return value.item<double>();
}

}  // namespace tessera::fsdp::test
