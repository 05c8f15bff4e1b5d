#pragma once
// Codes of verify up to CK059: files, indexes, checksums, and what lies next to a checkpoint.
// Rows in the order of the enum (findings.cc checks it).
#include <tessera/state/findings.h>

#include <array>

namespace tessera {

inline constexpr std::array<FindingInfo, 39> kFileRows = {{
    {Finding::kUnopenable, "CK001", Severity::kError, "error", "quick",
     "one of several PATHs cannot be opened: it is absent, its metadata are missing or cannot be "
     "parsed, or no supported format matches; for a single PATH the command itself fails",
     "file, tensor", "A path was mistyped, a save never finished, or it is no checkpoint.",
     "Run `ckpt-inspect summary PATH` on that one path: it says why."},
    {Finding::kMissingFile, "CK010", Severity::kError, "error, warning", "quick",
     "a file that the metadata, an index or our own manifest names is missing, or is not a regular "
     "file (warnings: Megatron, no rank has a `distrib_optim.pt`, though the optimizer's groups "
     "are "
     "there without state; rank files of PyTorch's safetensors writer, a rank between others has "
     "none, or the first rank's is the only one)",
     "file",
     "A copy that was cut short, a rank whose save failed, or a symbolic link that was not "
     "followed.",
     "Copy the missing file again (`cp -rL` follows links), or write what is whole with "
     "`ckpt-convert --salvage`."},
    {Finding::kShortFile, "CK011", Severity::kError, "error", "quick",
     "a file is empty, or ends before something that should lie in it", "file, tensor",
     "The disk was full, the job was killed while it saved, or a download stopped early.",
     "Restore the file from another copy, or write what is whole with `ckpt-convert --salvage`."},
    {Finding::kHole, "CK012", Severity::kError, "error", "quick",
     "a hole: elements of a tensor that no chunk holds", "tensor",
     "A rank's shard is missing, or shards of two saves were mixed.",
     "Bring back the missing rank's file, or write what is whole with `ckpt-convert --salvage`."},
    {Finding::kOverlap, "CK013", Severity::kError, "error", "quick",
     "two chunks of a tensor overlap without being equal", "tensor",
     "Files of two saves, or of two world sizes, lie in one folder.",
     "Take the files of the other save away and verify again."},
    {Finding::kOutOfBounds, "CK014", Severity::kError, "error", "quick",
     "a chunk leaves its tensor", "tensor",
     "The metadata are damaged, or were written by a faulty writer.",
     "Restore the metadata from another copy, or save again."},
    {Finding::kUnplaced, "CK015", Severity::kError, "error", "quick",
     "metadata names a chunk or value, but not where it lies", "tensor",
     "The save was interrupted before its metadata were complete, or the metadata were edited.",
     "Save again, or write what is whole with `ckpt-convert --salvage`."},
    {Finding::kUnusedEntry, "CK016", Severity::kWarning, "warning", "quick",
     "metadata places something that nothing needs", "file, tensor",
     "A writer recorded an item twice, or an entry was deleted without its data.",
     "Nothing to do; a conversion leaves it out."},
    {Finding::kDifferentValues, "CK017", Severity::kWarning, "warning", "quick",
     "ranks stored different values under one name; the lowest rank's is used", "tensor",
     "A value that each rank computes for itself (a timer, a random state) was saved under one "
     "name.",
     "Nothing to do if the value belongs to a rank; otherwise find out why the ranks differ before "
     "you resume."},
    {Finding::kStaleFile, "CK018", Severity::kWarning, "warning, info", "quick",
     "a file or folder that is not part of the checkpoint: left from another save", "file",
     "A save into a folder that already held one, or a file that somebody added.",
     "Take it away if nobody needs it; a conversion leaves it behind."},
    {Finding::kBadItem, "CK019", Severity::kError, "error", "full",
     "a stored item is damaged, or is not what the metadata says; or values expand past what any "
     "command can list, hash or convert",
     "file, tensor",
     "The item was overwritten, or its file belongs to another save; or values that contain each "
     "other many times were made to exhaust their reader.",
     "Restore the file from another copy, or write what is whole with `ckpt-convert --salvage`."},
    {Finding::kUnknownAttribute, "CK020", Severity::kInfo, "info", "quick",
     "an attribute of the metadata that this version does not know", "",
     "A newer PyTorch wrote the checkpoint.",
     "Nothing to do if the rest verifies; a newer Tessera may read the attribute."},
    {Finding::kReplicas, "CK021", Severity::kInfo, "info", "quick",
     "several ranks stored one chunk; the lowest rank's is used", "",
     "Replicated parameters were saved by every rank.",
     "Nothing to do; a conversion writes one copy."},
    {Finding::kRawValue, "CK022", Severity::kInfo, "info", "quick",
     "a value is not a torch archive and is kept as raw bytes", "tensor",
     "A program stored bytes of its own instead of a pickled value.",
     "Nothing to do; a conversion keeps the bytes as they are."},
    {Finding::kTrailingBytes, "CK023", Severity::kError, "error, warning elsewhere", "quick",
     "bytes follow the last thing stored in a file", "file",
     "Two writes into one file, or a shorter save over a longer one.",
     "Compare the file with another copy; what the metadata name can be read all the same."},
    {Finding::kLost, "CK024", Severity::kError, "error", "quick",
     "lost: what a missing, empty or short file held, with the number of elements; state that one "
     "rank's file lacks and others have, or that no rank's file holds (Megatron: experts or "
     "buffers of `distrib_optim.pt`)",
     "file, tensor", "The finding of the file itself, listed with it, says what happened.",
     "Restore the file from another copy, or write what is whole with `ckpt-convert --salvage`."},
    {Finding::kLostAlias, "CK025", Severity::kError, "error", "quick",
     "a tied weight is recorded as one tensor with another, which is not there", "tensor",
     "The tensor that both names share was lost or left out.",
     "Restore its file, or convert again from a source that has it."},
    {Finding::kNoChecksums, "CK027", Severity::kWarning, "warning", "quick",
     "an archive of torch.save has no checksums: every CRC-32 is 0", "file",
     "`torch.serialization.set_crc32_options(False)`, or a writer that does not compute them.",
     "Convert it once: the result has checksums, so that later damage can be seen."},
    {Finding::kNotInShard, "CK030", Severity::kError, "error", "quick",
     "the index places a tensor in a shard that does not hold it", "file, tensor",
     "The index is of another save than the shard, or a shard was replaced.",
     "Restore index and shards from one save."},
    {Finding::kUnlistedTensor, "CK031", Severity::kWarning, "warning", "quick",
     "a shard holds a tensor that the index does not list", "file, tensor",
     "A shard was added or rewritten without its index.",
     "Write a new index: convert with `--to safetensors`."},
    {Finding::kTotalSize, "CK032", Severity::kInfo, "info", "quick",
     "the index's total_size is not the size of the shards' tensors", "file",
     "Some writers count shared tensors twice, or do not update the number.", "Nothing to do."},
    {Finding::kStaleCopy, "CK033", Severity::kWarning, "warning", "quick",
     "a second copy of a tensor, in another shard than the index names; ignored", "file, tensor",
     "Shards of an earlier save lie beside the current ones.", "Take the older shards away."},
    {Finding::kLeftOut, "CK034", Severity::kWarning, "warning", "(conversion)",
     "something was left out of the result, as asked", "",
     "The target format, or a flag such as `--opaque drop`, has no place for it.",
     "Choose another target format or another flag if you need it."},
    {Finding::kUnsafeObjects, "CK035", Severity::kWarning, "warning", "(conversion)",
     "the result holds objects that `torch.load(weights_only=True)` may refuse and other loaders "
     "construct without asking; for every target that holds them",
     "", "The source holds pickled objects that are no tensors or plain values.",
     "Leave them out with `--opaque drop`, or load the result only where you trust its source."},
    {Finding::kNoIndex, "CK036", Severity::kError, "error, warning elsewhere", "quick",
     "shards are numbered as one set, but no index lists them", "files",
     "The index file was not copied.", "Copy `*.index.json` too, or name the one shard you want."},
    {Finding::kBadPointer, "CK040", Severity::kError, "error", "quick",
     "a pointer (`latest`, ...) names something that is not there", "file",
     "The save that it names was deleted, moved or never finished.",
     "Name the checkpoint's folder itself, or correct the pointer file."},
    {Finding::kBadChecksum, "CK041", Severity::kError, "error", "full",
     "stored bytes do not have the CRC-32 that their record states", "file, tensor",
     "Bytes changed on disk or on the way: a bad disk, memory or network.",
     "Restore the file from another copy, or write what is whole with `ckpt-convert --salvage`."},
    {Finding::kUnreadableFile, "CK042", Severity::kError, "error", "quick",
     "an archive or item cannot be opened; one file of a set (a rank's, a shard) counts as lost, "
     "as if it were missing",
     "file, tensor", "The file was cut short or overwritten, or may not be read.",
     "Check the file's permissions; otherwise restore it, or write what is whole with "
     "`ckpt-convert --salvage`."},
    {Finding::kSealDifference, "CK043", Severity::kError, "error", "quick",
     "bytes differ from those that were written, by our own manifest: in metadata (quick), "
     "anywhere (full); the message lists the tensors that lie in those blocks",
     "file, tensor where it is the only one, or the one in which a single bit flipped",
     "A file was edited or replaced after Tessera wrote it, or bytes changed on disk.",
     "Restore the file. If the change was intended, delete the manifest and convert the "
     "checkpoint, which writes a new one."},
    {Finding::kBadSeal, "CK044", Severity::kError, "error", "quick",
     "our own manifest is there but cannot be used: damaged (it has a checksum of itself), or of "
     "other files (missing ones and other sizes are named)",
     "file", "Files were removed or replaced, or the manifest itself was damaged.",
     "Restore the manifest, or delete it and verify what the format itself can prove."},
    {Finding::kUncheckedBytes, "CK045", Severity::kError, "error", "quick",
     "`--require-sums`: no checksum covers some stored bytes", "tensor",
     "The format keeps no checksums and no manifest of ours lies beside it.",
     "Convert it once: the result has a manifest with checksums."},
    {Finding::kDifferentCopies, "CK046", Severity::kError, "error", "full",
     "two copies of one chunk differ", "file, tensor",
     "Ranks diverged in training, or one copy was damaged later.",
     "Compare both with an older checkpoint: neither copy can show which of them is right."},
    {Finding::kDiffersFromReport, "CK047", Severity::kError, "error", "full",
     "`--against`: dtype, shape, quantizer, content, a value or a file differ from the report; a "
     "warning: a value is on one side only and the report is of another format, or the report is "
     "of an earlier release and of another format, and its values differ as a whole",
     "file or tensor",
     "The checkpoint was changed, converted with another dtype, or damaged since the report.",
     "Find out which of the two is right; `ckpt-inspect diff` shows where they differ."},
    {Finding::kOnOneSide, "CK048", Severity::kError, "error", "full",
     "`--against`: a tensor is on one side only, or a value where both are of one format, or the "
     "manifest has no checksums of a file",
     "tensor or file", "Tensors were added, renamed or left out since the report.",
     "Compare with `ckpt-inspect diff`, or make a new report with `ckpt-inspect hash`."},
    {Finding::kUnreadableBytes, "CK049", Severity::kError, "error", "full",
     "bytes without a checksum of their own cannot be read or decoded", "file, tensor",
     "A compressed item was damaged, or the disk returned an error.",
     "Restore the file from another copy, or write what is whole with `ckpt-convert --salvage`."},
    {Finding::kRelatedState, "CK050", Severity::kWarning, "warning", "(all commands)",
     "an optimizer or other weights lie next to what is read, and belong to the same training "
     "state; or one shard or one rank's file of a set is read alone",
     "", "The framework saves optimizer and model side by side.",
     "Name the folder above it, or both paths, to convert them together."},
    {Finding::kDamagedRelated, "CK051", Severity::kError, "error, warning of a file of unknown use",
     "quick",
     "what lies next to the checkpoint and belongs to the same training state cannot be opened; if "
     "it can, its own findings are listed with its name",
     "file", "The related checkpoint was damaged or never finished.",
     "Verify it by its own path, and restore it before you resume training."},
    {Finding::kRelatedLeftBehind, "CK052", Severity::kInfo, "info, warning", "(conversion)",
     "what lies next to the source and belongs to the same training state is left behind; a "
     "warning where the framework does not recognise its own checkpoint without it (Lightning's "
     "`meta.pt`)",
     "file", "One part of a training state was converted by itself.",
     "Copy it, or convert it by its own path, if you want to resume training."},
    {Finding::kSalvageLoss, "CK053", Severity::kWarning, "warning", "quick",
     "the checkpoint is what `--salvage` could write: this was lost, in that run or in an earlier "
     "one",
     "tensor or value", "The source was damaged when `--salvage` wrote this.",
     "Do not resume from it without the lost tensors; restore them from another checkpoint."},
}};

}  // namespace tessera
