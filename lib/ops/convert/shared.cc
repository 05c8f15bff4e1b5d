// A conversion by several processes: every rank opens the source and makes the same plan, rank 0
// opens the stage, each writes its share there, rank 0 proves and publishes.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/parallel.h>
#include <tessera/storage/stage_member.h>
#include <unistd.h>

#include <algorithm>

#include "lib/ops/convert/conversion.h"
#include "lib/ops/convert/request.h"

namespace tessera {

namespace {

std::string host_name() {
  std::string name(256, '\0');
  if (::gethostname(name.data(), name.size() - 1) != 0) return {};
  name.resize(name.find('\0'));
  return name;
}

}  // namespace

void Conversion::together(const std::function<void()>& step) {
  if (options_.ranks == nullptr) return step();
  options_.ranks->together(step);
}

/// What the user left open is divided among the processes of one host.
void Conversion::share_host() {
  if (options_.ranks == nullptr) return;
  const std::string own = host_name();
  std::uint64_t beside = 0;
  for (const auto& name : options_.ranks->all_gather(as_bytes(own)))
    if (as_text(name) == own) ++beside;
  if (options_.memory_limit_bytes == 0)
    transfer_.memory_limit_bytes = std::min(transfer_.memory_limit_bytes,
                                            std::uint64_t{available_memory_bytes()} / 2 / beside);
  if (options_.threads <= 0)
    transfer_.threads = std::max(1, transfer_.threads / static_cast<int>(beside));
  read_.memory_limit_bytes = transfer_.memory_limit_bytes;
  read_.threads = transfer_.threads;
}

void Conversion::check_same_plan() {
  if (options_.ranks == nullptr) return;
  const std::string seen = plan_hash_ + times_hash(source_.manifest);
  const auto plans = options_.ranks->all_gather(as_bytes(seen));
  options_.ranks->together([&] {
    if (options_.resume)
      fail(Code::kUnsupported, "--resume is for one process",
           "continue without mpirun or srun, or start again without --resume");
    for (std::size_t r = 1; r < plans.size(); ++r) {
      if (plans[r] == plans[0]) continue;
      fail(Code::kCorrupt,
           fmt::format("ranks 0 and {} see different sources at {}", r, source_.display),
           "SRC must be the same files on every host, and must not change meanwhile");
    }
  });
}

void Conversion::write_shared() {
  RankGroup& ranks = *options_.ranks;
  const bool leads = ranks.rank() == 0;
  std::unique_ptr<Stage> stage;  // rank 0's: removed unless published
  ranks.together([&] {
    if (!leads) return;
    stage = open_stage();
    check_room();
  });
  const auto sent = ranks.all_gather(leads ? as_bytes(stage->directory()) : ByteView());
  std::unique_ptr<Stage> member;
  ranks.together([&] { member = join_stage(fs_, std::string(as_text(sent[0])), destination_); });
  moved_ = transfer(source_.manifest, *source_.directory, output_, *plan_, fs_, *member, transfer_,
                    ranks);
  // A rank may have read a source that changed after rank 0 looked.
  ranks.together([&] { check_source_unchanged(); });
  ranks.together([&] {
    if (leads) publish_shared(*stage);
  });
  const std::byte published{report_.published};
  report_.published = ranks.all_gather({&published, 1})[0][0] != std::byte{0};
}

/// Every planned file is there and has its size: somebody else may have written it.
void Conversion::publish_shared(Stage& stage) {
  const auto directory = fs_.open_directory(stage.directory());
  for (const OutputFile& file : output_.files) {
    const auto info = directory->stat(path_of(file));
    if (info && info->size_bytes == file.size_bytes) continue;
    in_file(path_of(file), [&] {
      fail(Code::kIo,
           fmt::format("{} bytes were to be written, {} are there", file.size_bytes,
                       info ? info->size_bytes : 0),
           "DST must be on a file system that all processes share");
    });
  }
  try {
    finish_in(stage);
  } catch (const VerifyFailed&) {
    stage.discard();
  }
}

}  // namespace tessera
