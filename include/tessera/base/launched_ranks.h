#pragma once
// The ranks that a launcher (mpirun, srun) started this program as. MPI itself lives in a plugin, a
// shared object that TESSERA_MPI names or that lies beside the program, loaded only when the
// environment names a launcher: a program that was started plainly neither links nor loads it.
//
//   environment names no launcher, or one task -> 1 task, no plugin
//   several tasks, plugin there                -> a RankGroup over MPI_COMM_WORLD
//   several tasks, no plugin (static: never)   -> kUnsupported: several processes that do not know
//                                                 of each other would race for one result
#include <tessera/base/rank_group.h>

#include <memory>

namespace tessera {

/// Tasks that the environment says there are: the largest of OMPI_COMM_WORLD_SIZE, PMI_SIZE and
/// SLURM_STEP_NUM_TASKS (not SLURM_NTASKS, which a batch script sees that runs this once); at least
/// 1. Under a launcher that names a rank and no size (PMIX_RANK alone): 0.
int launched_tasks();

/// This task's number according to the environment; 0 if it gives none. Needed to choose which task
/// prints before the ranks are connected.
int launched_rank();

/// nullptr where launched_tasks() is 1. Starts MPI, once per process, ended when the group is
/// destroyed. Throws kUnsupported where the plugin is missing, where Slurm started tasks
/// without MPI, or where MPI sees other tasks than the launcher says; kIo where MPI does not start.
std::unique_ptr<RankGroup> launched_ranks();

/// Ends every process of the job at once, for a failure that the ranks could not agree on. Does
/// nothing for a group that launched_ranks() did not make.
void abort_launched(const RankGroup& ranks, int exit_code);

}  // namespace tessera
