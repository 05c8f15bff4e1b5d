// A simulated job from a model file.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/encoding/json.h>
#include <tessera/fsdp/simulate.h>

#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <string_view>

#include "fsdp_core/runtime/strategy.h"

namespace tessera::fsdp {
namespace {

[[noreturn]] void refuse(std::string_view field, std::string_view what) {
  fail(Code::kInvalidArgument, fmt::format("\"{}\" {}", field, what));
}

double number(const std::string& field, const Value& value) {
  if (!value.is_number() || value.as_real() < 0) refuse(field, "is no number of at least 0");
  return value.as_real();
}

int whole(const std::string& field, const Value& value) {
  if (!value.is_int() || value.as_int() < 0 || value.as_int() > (1 << 24))
    refuse(field, "is no whole number from 0 to 16777216");
  return static_cast<int>(value.as_int());
}

bool yes(const std::string& field, const Value& value) {
  if (value.kind() != Value::Kind::kBool) refuse(field, "is neither true nor false");
  return value.as_bool();
}

const std::string& word(const std::string& field, const Value& value) {
  if (!value.is_string()) refuse(field, "is no string");
  return value.as_string();
}

using Setters = std::map<std::string, std::function<void(const std::string&, const Value&)>>;

/// Every field of `object` by its setter; what has none is refused.
void read_fields(const std::string& what, const Value& object, const Setters& setters) {
  if (!object.is_dict()) refuse(what, "is no object");
  for (const auto& [key, value] : object.as_dict()) {
    const std::string& name = key.as_string();
    const auto known = setters.find(name);
    const std::string field = what.empty() ? name : what + "." + name;
    if (known == setters.end()) refuse(field, "is no field of a model file");
    known->second(field, value);
  }
}

SimulatedLink read_link(const std::string& field, const Value& value) {
  SimulatedLink link;
  read_fields(field, value,
              {{"bandwidth", [&](const auto& f, const Value& v) { link.bandwidth = number(f, v); }},
               {"latency", [&](const auto& f, const Value& v) { link.latency = number(f, v); }}});
  return link;
}

/// `count`: how many of them; their names are numbered then.
SimulatedUnit read_unit(const std::string& field, const Value& value, int* count) {
  SimulatedUnit unit;
  Setters setters = {{"name", [&](const auto& f, const Value& v) { unit.name = word(f, v); }},
                     {"bytes", [&](const auto& f, const Value& v) { unit.bytes = number(f, v); }},
                     {"flops", [&](const auto& f, const Value& v) { unit.flops = number(f, v); }},
                     {"backward_flops",
                      [&](const auto& f, const Value& v) { unit.backward_flops = number(f, v); }},
                     {"activation_bytes",
                      [&](const auto& f, const Value& v) { unit.activation_bytes = number(f, v); }},
                     {"gather_seconds",
                      [&](const auto& f, const Value& v) { unit.gather_seconds = number(f, v); }},
                     {"reduce_seconds",
                      [&](const auto& f, const Value& v) { unit.reduce_seconds = number(f, v); }},
                     {"all_reduce_seconds", [&](const auto& f, const Value& v) {
                        unit.all_reduce_seconds = number(f, v);
                      }}};
  if (count) {
    setters["ranks"] = [&](const auto& f, const Value& v) { unit.ranks = whole(f, v); };
    setters["count"] = [count](const auto& f, const Value& v) { *count = whole(f, v); };
  }
  read_fields(field, value, setters);
  return unit;
}

std::vector<SimulatedUnit> read_units(const std::string& field, const Value& value) {
  constexpr std::size_t kMost = 10'000;
  if (value.kind() != Value::Kind::kList) refuse(field, "is no list");
  std::vector<SimulatedUnit> units;
  for (std::size_t i = 0; i < value.as_list().size(); ++i) {
    int count = 1;
    const std::string at = fmt::format("{}[{}]", field, i);
    SimulatedUnit unit = read_unit(at, value.as_list()[i], &count);
    if (unit.name.empty()) unit.name = at;
    if (units.size() + static_cast<std::size_t>(count) > kMost)
      refuse(field, fmt::format("are more than {}", kMost));
    for (int k = 0; k < count; ++k) {
      units.push_back(unit);
      if (count > 1) units.back().name += fmt::format(".{}", k);
    }
  }
  return units;
}

ShardingStrategy read_strategy(const std::string& field, const Value& value) {
  for (std::size_t i = 0; i < kStrategyCount; ++i)
    if (strategy_name(static_cast<ShardingStrategy>(i)) == word(field, value))
      return static_cast<ShardingStrategy>(i);
  refuse(field, fmt::format("is \"{}\", which is no sharding strategy (FULL_SHARD, ..)",
                            value.as_string()));
}

BackwardPrefetch read_prefetch(const std::string& field, const Value& value) {
  const std::string& name = word(field, value);
  if (name == "pre") return BackwardPrefetch::kPre;
  if (name == "post") return BackwardPrefetch::kPost;
  if (name == "none") return BackwardPrefetch::kNone;
  refuse(field, "is none of \"pre\", \"post\", \"none\"");
}

SimulatedJob job_of(const Value& value) {
  SimulatedJob job;
  Options& options = job.options;
  options.forward_prefetch = true;
  const auto flag = [](auto& into) {
    return [&into](const std::string& f, const Value& v) { into = yes(f, v); };
  };
  const auto integer = [](int& into) {
    return [&into](const std::string& f, const Value& v) { into = whole(f, v); };
  };
  const auto real = [](double& into) {
    return [&into](const std::string& f, const Value& v) { into = number(f, v); };
  };
  read_fields(
      "", value,
      {{"ranks", integer(job.ranks)},
       {"ranks_per_node", integer(job.ranks_per_node)},
       {"replicas", integer(job.replicas)},
       {"intra", [&](const auto& f, const Value& v) { job.intra = read_link(f, v); }},
       {"inter", [&](const auto& f, const Value& v) { job.inter = read_link(f, v); }},
       {"inter_rate_beside_intra", real(job.inter_rate_beside_intra)},
       {"flops_per_second", real(job.flops_per_second)},
       {"parameter_bytes", integer(job.parameter_bytes)},
       {"reduce_bytes", integer(job.reduce_bytes)},
       {"state_bytes", real(job.state_bytes)},
       {"serial_all_reduce", flag(job.serial_all_reduce)},
       {"strategy", [&](const auto& f, const Value& v) { options.strategy = read_strategy(f, v); }},
       {"backward_prefetch",
        [&](const auto& f, const Value& v) { options.backward_prefetch = read_prefetch(f, v); }},
       {"forward_prefetch", flag(options.forward_prefetch)},
       {"max_prefetch_count", integer(options.max_prefetch_count)},
       {"reduce_scatter_max_input_buffers", integer(options.reduce_scatter_max_input_buffers)},
       {"limit_all_gathers", flag(options.limit_all_gathers)},
       {"unshard_stream_per_group", flag(options.unshard_stream_per_group)},
       {"separate_reduce_scatter_group", flag(options.separate_reduce_scatter_group)},
       {"units", [&](const auto& f, const Value& v) { job.units = read_units(f, v); }},
       {"root", [&](const auto& f, const Value& v) { job.root = read_unit(f, v, nullptr); }}});
  return job;
}

}  // namespace

SimulatedJob read_job(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) fail(Code::kNotFound, fmt::format("{} cannot be read", file.string()));
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  try {
    return job_of(parse_json(std::as_bytes(std::span(bytes))));
  } catch (Error& error) {
    Status status = error.status();
    status.message = fmt::format("{}: {}", file.string(), status.message);
    throw Error(std::move(status));
  }
}

}  // namespace tessera::fsdp
