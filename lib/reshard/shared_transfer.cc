// A transfer by several processes together:
//
//   the last writer of each file that several write creates it        (all wait)
//   everybody moves its share, watched by the others                   -> agree
//   every rank sends its checksums; each file's last writer finishes it -> agree rank 0 gathers
//   what was done
#include <tessera/base/error.h>
#include <tessera/base/parallel.h>

#include "lib/reshard/transfer.h"

namespace tessera {

namespace {

std::uint32_t number_of(const RankGroup& ranks) { return static_cast<std::uint32_t>(ranks.rank()); }

bool touches(const Shares::Writers& writers, std::uint32_t rank) {
  return writers.first <= rank && rank <= writers.last;
}

}  // namespace

void Transfer::create_shared_files(const Shares& shares, std::uint32_t rank) {
  for (std::uint32_t file = 0; file < shares.writers.size(); ++file) {
    const Shares::Writers& writers = shares.writers[file];
    if (!writers.shared() || !touches(writers, rank)) continue;
    if (writers.last != rank) {
      outputs_.created_elsewhere(file);
      continue;
    }
    outputs_.get(file);
    outputs_.finish(file);
  }
}

PeerSums Transfer::sums_for_peers(const Shares& shares, std::uint32_t rank) {
  PeerSums mine;
  mine.reads = prover_.give_parts();
  for (std::uint32_t file = 0; file < shares.writers.size(); ++file) {
    const Shares::Writers& writers = shares.writers[file];
    if (!writers.shared() || !touches(writers, rank) || writers.last == rank) continue;
    const OutputFile& planned = output_.files[file];
    const std::uint64_t last = planned.first_segment + planned.segment_count;
    for (std::uint64_t s = planned.first_segment; s < last; ++s) {
      if (output_.segments[s].length == 0) continue;
      if (output_.segments[s].kind != Segment::Kind::kTensor) {
        if (written_[s].load()) mine.written.push_back(s);
      } else if (sums_.has_segment(s)) {
        mine.segments.push_back({s, sums_.segment_crc(s)});
      }
    }
    for (const FilePart& part : sums_.file_parts(file))
      mine.files.push_back({file, {part.offset, part.length, part.crc}});
  }
  return mine;
}

void Transfer::take_peer_sums(const std::vector<PeerSums>& all, const Shares& shares,
                              std::uint32_t rank) {
  std::vector<RecordProver::ReadPart> reads;
  for (std::uint32_t peer = 0; peer < all.size(); ++peer) {
    for (const RecordProver::ReadPart& part : all[peer].reads)
      if (part.record % all.size() == rank) reads.push_back(part);
    if (peer == rank) continue;
    for (const PeerSums::SegmentCrc& sum : all[peer].segments) {
      TESSERA_CHECK(sum.segment < output_.segments.size());
      if (shares.writers[file_of_segment(output_, sum.segment)].last != rank) continue;
      sums_.add_segment_part(sum.segment, 0, output_.segments[sum.segment].length,
                             static_cast<std::uint32_t>(sum.crc));
    }
    for (const std::uint64_t segment : all[peer].written) {
      TESSERA_CHECK(segment < written_.size());
      written_[segment].store(true);
    }
    for (const PeerSums::FileCrc& sum : all[peer].files) {
      TESSERA_CHECK(sum.file < shares.writers.size());
      if (shares.writers[sum.file].last != rank) continue;
      sums_.add_run(static_cast<std::uint32_t>(sum.file),
                    {{sum.run.offset, sum.run.length, sum.run.crc}});
    }
  }
  prover_.take_parts(std::move(reads));
}

void Transfer::exchange_sums(RankGroup& ranks, const Shares& shares) {
  PeerSums mine;
  ranks.together([&] {
    mine = sums_for_peers(shares, number_of(ranks));
    for (std::uint32_t file = 0; file < shares.writers.size(); ++file)
      if (shares.writers[file].shared() && outputs_.is_open(file)) outputs_.finish(file);
  });
  const auto gathered = ranks.all_gather(mine.encode());
  ranks.together([&] {
    std::vector<PeerSums> all;
    for (const auto& bytes : gathered) all.push_back(PeerSums::decode(bytes));
    take_peer_sums(all, shares, number_of(ranks));
    prover_.finish(files_);
  });
}

TransferResult Transfer::run_shared(RankGroup& ranks, const Shares& shares, const Plan& whole,
                                    PeerWatch& watch) {
  const std::uint32_t rank = number_of(ranks);
  Status mine;
  try {
    prepare(whole);
    run_units();
  } catch (...) {
    mine = current_exception_status();
  }
  const bool stopped_by_peer = watch.finish(mine.ok());
  // A rank that was stopped has no failure of its own to report.
  if (stopped_by_peer && mine.code == Code::kCancelled && !watch.cancelled_by_user()) mine = {};
  ranks.agree(mine);
  if (stopped_by_peer) fail(Code::kIo, "another rank was lost");
  exchange_sums(ranks, shares);

  std::vector<std::uint32_t> files;
  for (std::uint32_t file = 0; file < shares.writers.size(); ++file)
    if (shares.writers[file].last == rank) files.push_back(file);
  TransferResult done;
  ranks.together([&] {
    parallel_for(files.size(), budget_.threads, [&](std::size_t i, int) { finish_file(files[i]); });
    done = result();
    done.crc32_per_mib.resize(output_.files.size());
    for (const std::uint32_t file : files) done.crc32_per_mib[file] = sums_.file_crcs(file);
  });
  const auto all = ranks.gather(encode_result(done, files));
  for (std::size_t peer = 1; peer < all.size(); ++peer) add_result(all[peer], done);
  return done;
}

TransferResult transfer(const Manifest& source, const Directory& directory,
                        const OutputPlan& output, const Plan& plan, FileSystem& fs, Stage& stage,
                        const TransferOptions& options, RankGroup& ranks) {
  if (ranks.size() == 1) return transfer(source, directory, output, plan, fs, stage, options);
  Progress own;
  TransferOptions mine = options;
  mine.progress = &own;
  std::optional<Shares> shares;
  std::optional<Plan> cut, part;
  std::optional<Transfer> run;
  const std::uint32_t rank = number_of(ranks);
  ranks.together([&] {
    TESSERA_CHECK(stage.finished().empty());
    shares = make_shares(source, output, ranks.size());
    cut.emplace(source, shares->output);
    part = cut->part(shares->borders[rank], shares->borders[rank + 1]);
    run.emplace(source, directory, shares->output, *part, fs, stage, mine);
    run->create_shared_files(*shares, rank);
  });
  std::uint64_t before = 0;
  if (options.progress != nullptr) {
    options.progress->total_bytes += output.total_bytes();
    before = options.progress->done_bytes;
  }
  PeerWatch watch(ranks, own, options.progress, options.cancel);
  mine.cancel = &watch.stop();
  TransferResult done = run->run_shared(ranks, *shares, *cut, watch);
  if (options.progress != nullptr) options.progress->done_bytes = before + output.total_bytes();
  return done;
}

}  // namespace tessera
