#pragma once
// Codes of audit: a run's checkpoints over time.
// Rows in the order of the enum (findings.cc checks it).
#include <tessera/state/findings.h>

#include <array>

namespace tessera {

inline constexpr std::array<FindingInfo, 24> kAuditRows = {{
    {Finding::kNewestWhole, "AU001", Severity::kInfo, "info", "metadata",
     "the newest checkpoint that is whole, by metadata and sizes", "file",
     "Every run with a whole checkpoint has one.", "Resume from it; `verify` reads every byte."},
    {Finding::kNoneWhole, "AU002", Severity::kError, "error", "metadata",
     "no checkpoint of the run is whole", "",
     "Every save was interrupted, or files were lost together.",
     "See what each lacks with `ckpt-inspect verify`; `ckpt-convert --salvage` writes what is "
     "left."},
    {Finding::kDamagedCheckpoint, "AU003", Severity::kError, "error", "metadata",
     "a checkpoint of the run is damaged or cannot be read (info: it is of a kind that is not "
     "understood here)",
     "file", "The save was interrupted, or files were lost or cut short.",
     "Resume from another one; `ckpt-inspect verify` lists what is damaged."},
    {Finding::kPointerAstray, "AU004", Severity::kError, "error", "metadata",
     "the run's pointer (`latest`) names nothing that is there, or a checkpoint that is damaged",
     "file",
     "An asynchronous save moved the pointer before its files were written, or the checkpoint was "
     "deleted.",
     "Let the pointer name the newest whole checkpoint (AU001)."},
    {Finding::kPointerBehind, "AU005", Severity::kWarning, "warning", "metadata",
     "the run's pointer names an older checkpoint than the newest whole one", "file",
     "A save was interrupted between its files and the pointer, or somebody went back on purpose.",
     "Check which of the two the job is to resume from."},
    {Finding::kPartsMissing, "AU006", Severity::kError, "error, warning", "metadata",
     "a checkpoint lacks tensors, or files beside it, that the ones around it have (warnings: "
     "values and sidecars such as a scheduler; whatever the last one lacks alone)",
     "file, tensor", "A rank or a component did not save, or a part was deleted to make room.",
     "Do not resume from it; take the part from another copy."},
    {Finding::kContentUnchanged, "AU010", Severity::kError, "error", "metadata",
     "what trains is bit for bit that of the checkpoint before, though the step advanced; known "
     "from checksums without `--deep`, where the checkpoints have some",
     "file",
     "An asynchronous save wrote tensors that it had kept from an earlier save; a learning rate "
     "of zero; a training process that saved another process' copy.",
     "Do not count on the later one: compare it with `ckpt-inspect diff`, and turn off what caches "
     "the saver's structure."},
    {Finding::kSteppedBack, "AU011", Severity::kError, "error", "metadata",
     "the step stored in a checkpoint is smaller than in one that comes before it by name", "file",
     "The training state was not restored on a resume, and counts on from an old value or from 0.",
     "Find the resume in the log; the schedule of the learning rate started again with it."},
    {Finding::kStepNotOfName, "AU012", Severity::kError, "error", "metadata",
     "the step stored in a checkpoint is not the one of its name, in another way than the run's "
     "others (a difference that all share is none)",
     "file", "The counter that is saved is not the one that counts, as after a second resume.",
     "Find out which of the two the weights are of; `ckpt-inspect show PATH NAME` prints the "
     "stored one."},
    {Finding::kOptimizerStepDiffers, "AU013", Severity::kError, "error", "metadata",
     "the optimizer's step does not go with the checkpoint's, as it does in the run's others, or "
     "parameters that always step together have different ones",
     "file, tensor", "The save is torn: training changed the state while it was written.",
     "Do not resume from it; snapshot the state before an asynchronous save."},
    {Finding::kOptimizerMissing, "AU020", Severity::kWarning, "warning", "metadata",
     "a checkpoint has no optimizer state, though ones before it have", "file",
     "Only the model was saved: the last save of a run on purpose, any other by mistake.",
     "Resume from one that has the state."},
    {Finding::kStateLost, "AU021", Severity::kError, "error", "metadata",
     "parameters that had optimizer state have none any more", "file, tensor",
     "A rank's state was lost, or the optimizer was rebuilt over other parameters on a resume.",
     "Compare with `ckpt-inspect optim A B`; resume from the one before."},
    {Finding::kOptimizerRestarted, "AU022", Severity::kError, "error", "metadata",
     "the optimizer's step went back, though the run's step advanced", "file",
     "The optimizer's state was not loaded on a resume: it began at zero again.",
     "Load the optimizer's state, too, and resume from the checkpoint before."},
    {Finding::kMomentsReset, "AU023", Severity::kError, "error", "deep",
     "moments were reset between two checkpoints: second moments are smaller than they can decay "
     "to in that many steps (beta2 to their power), or all moments are zero",
     "file, tensor", "The optimizer's state was not loaded on a resume, while its step was.",
     "Load the optimizer's state, too, and resume from the checkpoint before."},
    {Finding::kNeverMoved, "AU030", Severity::kError, "error, warning", "deep",
     "a tensor has optimizer state and never changed, though others did (warnings: vectors of 16 "
     "bits, whose updates may round away)",
     "tensor",
     "No gradient reaches it, its group's updates are too small for its type, or the saver writes "
     "another copy than the one that trains.",
     "See whether its moments are zero with `ckpt-inspect optim`: then no gradient arrives."},
    {Finding::kReinitialized, "AU031", Severity::kError, "error", "deep",
     "a tensor has nothing in common with itself one checkpoint before, though others of the model "
     "moved little",
     "file, tensor",
     "It was initialized again on a resume: its name was not found, or an initializer ran after "
     "loading.",
     "Resume from the checkpoint before, and look at the loader's missing and unexpected keys."},
    {Finding::kLooksFresh, "AU032", Severity::kWarning, "warning", "deep",
     "a matrix looks freshly initialized (the spread and form of a usual initializer), though "
     "those of its kind in other layers do not any more",
     "file, tensor", "It was never loaded or never trained.",
     "Compare it with the checkpoint that the run began from."},
    {Finding::kNonFiniteOnset, "AU040", Severity::kError, "error", "deep",
     "NaN or Inf appears: the first checkpoint, and its tensors with their first element",
     "file, tensor", "The loss diverged, or gradients overflowed.",
     "Resume from a checkpoint before this one."},
    {Finding::kSpike, "AU041", Severity::kWarning, "warning", "deep",
     "gradients (by second moments) or updates of all tensors together are ten times those of the "
     "checkpoints before; the tensor with the largest jump is named",
     "file, tensor", "A spike of the loss, bad data, or a learning rate that is too large.",
     "Look at the tensor with `ckpt-inspect trend`; consider skipping the data in between."},
    {Finding::kReplicasDrifted, "AU050", Severity::kError, "error", "deep",
     "copies of one tensor that several ranks stored differ; the first checkpoint is named",
     "file, tensor", "Replicas were not synchronized, or did not begin with the same weights.",
     "Resume from a checkpoint before this one; broadcast from one rank after loading."},
    {Finding::kTiesApart, "AU060", Severity::kError, "error", "metadata",
     "weights that were tied (one storage, or equal while they trained) differ in a later "
     "checkpoint",
     "file, tensor", "The model was built again on a resume without tying its weights.",
     "Tie them after loading, and resume from the checkpoint before."},
    {Finding::kTiedTrainedApart, "AU061", Severity::kError, "error", "metadata",
     "config.json says that the embeddings are tied, and the checkpoint has both, different or "
     "with optimizer state of their own",
     "file, tensor",
     "The model was materialized after its weights were tied, which gave each a storage of its "
     "own.",
     "Tie them again after materializing; a loader that trusts config.json drops one of the two."},
    {Finding::kRetention, "AU070", Severity::kInfo, "info", "metadata",
     "checkpoints that could go, and their bytes: all but the newest whole ones (`--keep`) and "
     "what "
     "a pointer names",
     "", "Nothing removes old checkpoints of this run.",
     "Remove them, or save with `keep_last`; audit itself removes nothing."},
    {Finding::kLeftover, "AU071", Severity::kInfo, "info", "metadata",
     "hidden folders that interrupted saves left, and their bytes", "file", "A save was killed.",
     "The next save of that name removes what no process holds."},
}};

}  // namespace tessera
