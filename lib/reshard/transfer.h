#pragma once
// Transfer: one run of a Plan, its state and its steps.
//
//   executor.cc         units -> gather -> write; what one process does
//   shared_transfer.cc  the same as one of several processes, each with its share of the output
#include <tessera/base/rank_group.h>
#include <tessera/reshard/executor.h>

#include <atomic>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "lib/reshard/gather.h"
#include "lib/reshard/output_files.h"
#include "lib/reshard/output_sums.h"
#include "lib/reshard/peer_sums.h"
#include "lib/reshard/peer_watch.h"
#include "lib/reshard/shares.h"
#include "lib/reshard/transfer_parts.h"
#include "lib/reshard/units.h"
#include "lib/reshard/write_run.h"

namespace tessera {

/// What the journal of an interrupted run says about one file: pieces by offset.
using FinishedPieces = std::map<std::uint64_t, JournalEntry>;

class Transfer {
 public:
  Transfer(const Manifest& source, const Directory& directory, const OutputPlan& output,
           const Plan& plan, FileSystem& fs, Stage& stage, const TransferOptions& options)
      : source_(source),
        output_(output),
        plan_(plan),
        stage_(stage),
        options_(options),
        gate_(reads_coded(source, plan) ? coded_part(options.memory_limit_bytes) : 0),
        budget_(Budget::make(options.memory_limit_bytes - gate_.total_bytes(), options.threads,
                             options.block_bytes)),
        files_(source, directory),
        outputs_(output, fs, stage),
        sums_(output),
        prover_(source),
        geometries_(source, output, plan),
        written_(output.segments.size()),
        finished_(output.files.size()) {
    for (auto& flag : written_) flag.store(false, std::memory_order_relaxed);
  }

  /// Everything, by this process alone.
  TransferResult run();
  /// This process' part, with the others of a group: see shared_transfer.cc. Collective. `plan` is
  /// the part; `whole` is what all of them do together.
  TransferResult run_shared(RankGroup& ranks, const Shares& shares, const Plan& whole,
                            PeerWatch& watch);
  /// Before that, on every rank: files that several write exist once all have called this.
  void create_shared_files(const Shares& shares, std::uint32_t rank);

 private:
  /// `proving`: the plan whose reads prove records.
  void prepare(const Plan& proving);
  void run_units();
  TransferResult result();
  void exchange_sums(RankGroup& ranks, const Shares& shares);
  PeerSums sums_for_peers(const Shares& shares, std::uint32_t rank);
  void take_peer_sums(const std::vector<PeerSums>& all, const Shares& shares, std::uint32_t rank);
  std::unique_ptr<Worker> make_worker();
  void run_unit(const Unit& unit, Worker& worker);
  void run_slabs(std::span<const Slab> slabs, const Gather& gather, Worker& worker);
  bool resume_runs(std::vector<WriteRun>& runs);
  bool read_back(const WriteRun& run, std::vector<std::pair<std::uint64_t, std::uint64_t>>& ranges);
  void account_resumed(const WriteRun& run,
                       const std::vector<std::pair<std::uint64_t, std::uint64_t>>& ranges);
  void write_run(const WriteRun& run, const std::vector<Fragment>& fragments);
  void write_range(std::uint32_t file, std::uint64_t begin, const std::byte* data,
                   std::vector<FilePart>& parts);
  void finish_file(std::uint32_t file);
  Gather make_gather();

  const Manifest& source_;
  const OutputPlan& output_;
  const Plan& plan_;
  Stage& stage_;
  const TransferOptions& options_;
  CodedGate gate_;
  Budget budget_;
  FilePool files_;
  OutputFiles outputs_;
  OutputSums sums_;
  RecordProver prover_;
  GeometryCache geometries_;
  StagedMeter meter_;
  std::vector<std::atomic<bool>>
      written_;  // literal and deferred segments that went along with tensors
  std::vector<FinishedPieces> finished_;
  WorkerTotals totals_;
  std::atomic<std::uint64_t> bytes_written_{0};
  std::atomic<std::uint64_t> resumed_bytes_{0};
};

}  // namespace tessera
