#pragma once
// Codes of verify from CK060 on: what particular formats and frameworks report.
// Rows in the order of the enum (findings.cc checks it).
#include <tessera/state/findings.h>

#include <array>

namespace tessera {

inline constexpr std::array<FindingInfo, 30> kFormatRows = {{
    {Finding::kUnknownTensorClass, "CK060", Severity::kWarning, "warning", "quick",
     "a tensor of an unknown class is read as a plain tensor", "file, tensor",
     "A library's subclass of torch.Tensor was saved.",
     "Nothing to do if its values are those of a plain tensor."},
    {Finding::kTensorAttributes, "CK061", Severity::kWarning, "warning, info", "quick",
     "tensors have Python attributes (`tensor.name = ...`), which are not kept; each attribute is "
     "reported once, with the first tensor that has it, by its place in the file; those that "
     "PyTorch, DeepSpeed and Megatron set themselves are not reported; as info: a module of "
     "torch.nn that was pickled whole is read as its state_dict(), without its options, hooks and "
     "other attributes",
     "file, tensor", "A program stored attributes on its tensors, or saved the model itself.",
     "Nothing to do, unless the program needs the attributes after loading."},
    {Finding::kMissingScale, "CK062", Severity::kWarning, "warning", "quick",
     "a quantized weight has no scale, or one of a shape that cannot be its own: its codes are no "
     "numbers; 8-bit floats count where other weights, or config.json, have scales",
     "tensor", "A file of the model is missing, or scales were left out when it was saved.",
     "Take the scale from the model's origin; `--dequantize` refuses the weight until then."},
    {Finding::kUsedPadding, "CK065", Severity::kWarning, "warning, info", "full",
     "padding in a shard is not zero (nor 42, which FSDP writes between parameters); no reader "
     "uses it (ZeRO stage 3 itself leaves what memory held: info)",
     "file, tensor", "The flat parameter was resized, or memory was not cleared before the save.",
     "Nothing to do if the tensors verify; no reader uses the padding."},
    {Finding::kRanksDisagree, "CK066", Severity::kError, "error", "quick",
     "ranks disagree about a number or option that all of them keep: a step counter, an "
     "optimizer's groups, sizes and layers in Megatron's args",
     "file, tensor", "Files of different saves were mixed, or a rank fell behind.",
     "Bring the files of one save together; do not resume from a mixture."},
    {Finding::kOtherRanksFile, "CK067", Severity::kError, "error, warning", "quick",
     "a rank's file is another rank's, by what it holds, or because it has the other's name inside "
     "and the same bytes, or each has the other's name (error); by the name it was saved under "
     "alone (warning): renamed or copied",
     "file, tensor", "Files were renamed or copied over each other.",
     "Restore the original names, or copy the files of that rank again."},
    {Finding::kRankEntries, "CK070", Severity::kInfo, "info", "quick",
     "entries that differ from rank to rank; each rank's own is listed", "",
     "Each rank saves state of its own: random states, timers, data loaders.",
     "Nothing to do; `--rank-state` says what a conversion does with it."},
    {Finding::kUnnamedFlat, "CK071", Severity::kWarning, "warning", "quick",
     "per-rank files: nothing says which parameters the flat parameters hold, or those whose runs "
     "an optimizer holds",
     "", "FSDP1 saved LOCAL_STATE_DICT, which does not store parameter names.",
     "Pass `--flat-layout` with the parameters' names and shapes."},
    {Finding::kUnfittingIds, "CK072", Severity::kWarning, "warning", "quick",
     "per-rank files: ids of the optimizer do not fit the parameters and stay ids", "",
     "The optimizer was built over other parameters than the model's, or in another order.",
     "Save the optimizer with names (FSDP.optim_state_dict), or convert the model alone."},
    {Finding::kNamesFromFile, "CK073", Severity::kInfo, "info", "quick",
     "per-rank files: a full state dict beside them names the parameters", "file",
     "A full state dict was saved beside the ranks' files.", "Nothing to do."},
    {Finding::kFlatNotRestored, "CK074", Severity::kInfo, "info", "(conversion)",
     "flat parameters cannot be rebuilt; sharded tensors are written instead", "",
     "The original flat parameters need wrapping information that is not stored.",
     "Nothing to do; load the result as sharded tensors."},
    {Finding::kUnsureOptimizer, "CK075", Severity::kWarning, "warning", "quick",
     "per-rank files: ids of the optimizer fit the parameters in several ways; they are listed in "
     "the order of the model, and a conversion refuses them (exit 5)",
     "tensor: the optimizer", "Parameters of equal sizes, and an optimizer that stores ids alone.",
     "Save the optimizer with names (FSDP.optim_state_dict), or convert the model alone."},
    {Finding::kExternalLink, "CK080", Severity::kError, "error, warning elsewhere", "quick",
     "HDF5: an external link, which is not followed", "file, tensor",
     "The file refers to a dataset in another HDF5 file.",
     "Copy the dataset into this file, for example with h5py."},
    {Finding::kSecondName, "CK081", Severity::kInfo, "info", "quick",
     "HDF5: a soft link, or a second name of a dataset or group; listed once, under its first name",
     "file", "The writer linked one dataset under several names.", "Nothing to do."},
    {Finding::kNoValue, "CK082", Severity::kWarning, "warning", "quick",
     "HDF5: an attribute or a text has no form as a value and is left out", "file",
     "The attribute has a type that no plain value represents.",
     "Nothing to do, unless your program needs the attribute."},
    {Finding::kUnreadableDataset, "CK083", Severity::kError, "error, warning elsewhere", "quick",
     "HDF5: a dataset that cannot be read: an external file, or its sources", "file, tensor",
     "External or virtual sources are missing or not followed.",
     "Copy the data into this file, for example with h5py, then verify again."},
    {Finding::kUnsupportedDataset, "CK084", Severity::kWarning, "warning", "quick",
     "HDF5: a dataset of a type, filter or selection that is not read here; its bytes are not "
     "checked, and converting it is exit 5",
     "file, tensor", "A filter plugin, a compound type or a selection that is not supported.",
     "Rewrite the dataset with a supported filter (h5repack -f GZIP=4)."},
    {Finding::kUnfinished, "CK090", Severity::kError, "error", "quick",
     "Megatron: `metadata.json`, which is written last, is missing: the save was interrupted",
     "file", "The job was killed while it saved.", "Use the previous iteration, or save again."},
    {Finding::kBucketsKept, "CK091", Severity::kInfo, "info", "quick",
     "Megatron: buckets of the distributed optimizer are kept as they are", "",
     "The distributed optimizer was saved as buckets instead of by parameter.",
     "Nothing to do; to change the parallel layout, save with Megatron's "
     "`--dist-ckpt-optim-fully-reshardable` first."},
    {Finding::kRawBfloat16, "CK092", Severity::kInfo, "info", "quick",
     "Megatron: two raw bytes of a zarr array are read as bfloat16", "file, tensor",
     "zarr 2 has no bfloat16, so Megatron stores two raw bytes.", "Nothing to do."},
    {Finding::kMissingOnRank, "CK093", Severity::kError, "error", "quick",
     "Megatron: a rank lacks a tensor that its peers hold", "file, tensor",
     "A rank's file is of another model or of another save.",
     "Bring the files of one save together."},
    {Finding::kUnmatchedIds, "CK094", Severity::kWarning, "warning", "quick",
     "Megatron: ids of the optimizer could not be matched with parameters; its state is as stored",
     "file", "The optimizer's groups do not fit the model's parameters.",
     "Nothing to do to read it; name the parameters yourself before you convert the optimizer."},
    {Finding::kUnmatchedBuckets, "CK095", Severity::kWarning, "warning", "quick",
     "Megatron: buffers of the distributed optimizer could not be matched with parameters", "file",
     "The buffers' sizes fit no order of the model's parameters: another model, or another bucket "
     "size.",
     "Convert the model alone, or save with a format that names parameters."},
    {Finding::kIntegrity, "CK096", Severity::kError, "error, warning", "full",
     "Megatron: a file is not what `integrity.json` lists, is missing, or is not covered by it",
     "file", "A file was changed, removed or added after the save.",
     "Restore the file from another copy, or save again."},
    {Finding::kAssumedPlain, "CK097", Severity::kInfo, "info", "quick",
     "Megatron: nothing shows how a tensor is sharded; it is taken as sharded by rows, as "
     "`--assume-plain` asks",
     "tensor", "`--assume-plain` was given and no tensor-parallel rule has this name.",
     "Check that the tensor is not cut along another dim or in another order."},
    {Finding::kUncomparedReplicas, "CK098", Severity::kInfo, "info", "quick",
     "Megatron: tensors that several ranks hold lie in one buffer with others, so checksums do not "
     "show whether the copies are equal; from `full` on `verify` compares their bytes and reports "
     "only differences",
     "tensor", "Several tensors share one record, so one checksum covers them all.",
     "Run `ckpt-inspect verify`, which compares the copies byte by byte."},
    {Finding::kUnnamedState, "CK099", Severity::kWarning, "warning", "quick",
     "DeepSpeed without ZeRO, FusedAdam: nothing shows which parameters lie where in the "
     "optimizer's flat buffers; the message gives the reason",
     "file", "FusedAdam flattens parameters, and the file does not store their order.",
     "Convert the model alone, or use a Universal Checkpoint."},
    {Finding::kNoCutPatterns, "CK100", Severity::kInfo, "info", "(conversion)",
     "a Universal Checkpoint is written for tensor parallelism 1, because no pattern that is "
     "understood shows how layers are sharded: every parameter has `cat_dim` 0, and an engine with "
     "more ranks would shard it along that dim",
     "", "The source does not say how layers are cut for tensor parallelism.",
     "Nothing to do if the model has no tensor parallelism; otherwise write the Universal "
     "Checkpoint with DeepSpeed's own tool."},
    {Finding::kNotCompared, "CK104", Severity::kWarning, "warning", "full",
     "`--against`: values hold objects that could not be followed to the end (deeper than 200 "
     "levels, or cycles within cycles): these parts were not compared",
     "", "A value is nested more deeply than any checkpoint needs, or refers to itself.",
     "Look at the value with `ckpt-inspect show`."},
    {Finding::kOtherFiles, "CK110", Severity::kInfo, "info", "quick",
     "files in the folder that are not part of the checkpoint and were not read (`other_files` in "
     "JSON); `ckpt-inspect scan` judges every file",
     "", "Configuration, tokenizers, logs or other saves lie in the folder.",
     "Nothing to do; `ckpt-inspect scan` looks into every file."},
}};

}  // namespace tessera
