#pragma once
// RankGroup: the operations that a distributed save or load needs: rank and size, exchange of a few
// bytes, a barrier, and agreement on a failure. No tensor data goes through it.
//
// Calls are collective: every rank makes the same calls in the same order. One thread per rank at a
// time. A rank that cannot answer is an error (kTimeout or kIo) on every other rank, never a hang.
#include <tessera/base/error.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace tessera {

class RankGroup {
 public:
  virtual ~RankGroup() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// The bytes of every rank, by rank; lengths may differ.
  virtual std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> bytes) = 0;
  /// The same at rank 0 only; on other ranks the result is empty. For data that only one rank needs
  /// and that would be too much for all of them. The default calls all_gather.
  virtual std::vector<std::vector<std::byte>> gather(std::span<const std::byte> bytes);
  virtual void barrier();

  /// Another group of the same ranks, whose calls may go on at the same time as this one's, from
  /// another thread: for work in the background. Collective. It may outlive this group. The default
  /// throws kUnsupported on every rank.
  virtual std::unique_ptr<RankGroup> duplicate();

  /// False for a duplicate whose connections were closed from outside: no call will succeed.
  virtual bool usable() const { return true; }

  /// Agreement before a collective that follows work that can fail: returns when every rank passed
  /// an ok status, else throws on every rank the status of the first failing rank, naming it.
  void agree(const Status& mine);
  /// Whether agree() has thrown: every rank knows of the failure, and none waits for another.
  bool failed_together() const { return failed_together_; }

  /// Runs `f` on this rank, then agrees: if it threw on any rank, all throw.
  void together(const std::function<void()>& f);

  /// State that distributed calls keep for this group from one call to the next: plans, buffers,
  /// work in the background. Destroyed with the group.
  std::shared_ptr<void>& kept() { return kept_; }

 private:
  std::shared_ptr<void> kept_;
  bool failed_together_ = false;
};

/// The group of one process.
std::unique_ptr<RankGroup> single_rank();

/// `size` groups over threads of this process: element r belongs to rank r's thread. A rank that
/// is destroyed while others wait fails their calls (kIo). For tests and small in-process jobs.
std::vector<std::unique_ptr<RankGroup>> thread_ranks(int size);

}  // namespace tessera
