#pragma once
// What a step of a model would cost on machines that are not at hand: the runtime itself runs on a model
// of {units, bytes, flops}, on streams and groups that take notes instead of time, and a virtual clock
// plays the notes. The command fsdp-simulate is made of it. No LibTorch in this header.
//
//   all-gather, reduce-scatter   (n-1) x latency + (n-1)/n x bytes / bandwidth   (a ring of n ranks)
//   all-reduce                   twice that
//   compute                      flops / flops_per_second
//
// A group within one node goes over `intra`, others over `inter`; collectives that use one link at the
// same time share its bandwidth. One rank is simulated: all do the same at the same time. The host is
// taken to be infinitely ahead, and kernels that copy or divide to cost nothing. Equal jobs give equal
// results, bit for bit.
#include <tessera/fsdp/options.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tessera::fsdp {

struct SimulatedUnit {
  std::string name;
  double bytes = 0;                      // of its parameters, as they are gathered
  double flops = 0;                      // of a forward, on one rank
  std::optional<double> backward_flops;  // unset: twice the forward's
  double activation_bytes = 0;           // kept from its forward to its backward
  int ranks = 0;                         // shards over so many neighbours; 0: as the job does
  /// Measured, in place of the model: seconds of its collectives while nothing else uses the link.
  std::optional<double> gather_seconds, reduce_seconds, all_reduce_seconds;
};

struct SimulatedLink {
  double bandwidth = 0;  // bytes a second, of each rank
  double latency = 0;    // seconds a hop
};

struct SimulatedJob {
  int ranks = 8, ranks_per_node = 8;
  int replicas = 1;  // of hybrid strategies
  SimulatedLink intra{200e9, 5e-6}, inter{25e9, 15e-6};
  /// An inter-node collective goes at this part of its speed while an intra-node one runs.
  double inter_rate_beside_intra = 1;
  double flops_per_second = 300e12;
  int parameter_bytes = 2, reduce_bytes = 4;  // of an element: 2 or 4
  double state_bytes = 16;                    // of an element: master copy, gradient, optimizer
  /// The all-reduce of hybrid strategies on the stream of the reduce-scatter, as it once was.
  bool serial_all_reduce = false;
  /// strategy, prefetching, limits, streams and communicators; the rest is not looked at.
  Options options;
  std::vector<SimulatedUnit> units;  // in the order of their forwards
  SimulatedUnit root;                // the outermost; computes after all of them
};

struct SimulatedSpan {
  std::string stream, name;
  double begin = 0, end = 0;  // seconds from the step's begin
  bool collective = false;
};

struct SimulatedStep {
  double seconds = 0;
  double compute_seconds = 0;
  double collective_seconds = 0;  // from each begin to its end, added up
  double exposed_seconds = 0;     // of the step, in which nothing is computed
  /// No schedule of these collectives in this order, with as many units gathered ahead, is faster.
  double bound_seconds = 0;
  double peak_bytes = 0;   // gathered parameters, unsharded gradients, activations
  double state_bytes = 0;  // what lies there all the time
  std::vector<SimulatedSpan> spans;

  double quality() const { return bound_seconds / seconds; }
  std::string to_string() const;  // several lines for people
};

/// A model file, JSON (docs/simulate.md). Throws kNotFound, kCorrupt or kInvalidArgument, naming the
/// field.
SimulatedJob read_job(const std::filesystem::path& file);

/// The third step, when the order of units is known. Throws kInvalidArgument for numbers that make no
/// sense, and what fully_shard throws.
SimulatedStep simulate(const SimulatedJob& job);

/// For chrome://tracing and Perfetto.
std::string chrome_trace(const SimulatedStep& step);
/// One row for each stream, time from left to right.
std::string to_svg(const SimulatedStep& step);

}  // namespace tessera::fsdp
