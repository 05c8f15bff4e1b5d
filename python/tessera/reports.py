"""The commands' JSON documents as dataclasses. Made by make_reports.py from docs/json; do not edit.

Every report keeps the document that it was made of in `document`, and its fields have the document's names (`from` is
`from_`). A field that a document may lack is None there."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar


class _Row:
    """Fields of a JSON object."""

    _parts: ClassVar[dict[str, type]] = {}

    @classmethod
    def of(cls, document):
        known = {field.name: document.get(field.name.rstrip("_")) for field in dataclasses.fields(cls)
                 if field.name != "document"}
        for name, part in cls._parts.items():
            value = known[name]
            if isinstance(value, list):
                known[name] = [part.of(each) if isinstance(each, dict) else each for each in value]
            elif isinstance(value, dict):
                known[name] = part.of(value)
        return cls(**known)


class _Report(_Row):
    document: dict

    @classmethod
    def of(cls, document):
        report = super().of(document)
        object.__setattr__(report, "document", document)
        return report


@dataclasses.dataclass(frozen=True)
class SummaryNumber(_Row):
    name: str
    value: float | str  # a number; not finite: "nan", "inf", "-inf"
    source: str


@dataclasses.dataclass(frozen=True)
class SummaryByteRow(_Row):
    key: str
    tensors: int
    numel: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class SummaryRoot(_Row):
    name: str  # empty: the top level itself
    role: str
    tensors: int
    values: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class SummaryGroup(_Row):
    index: int
    members: int
    lr: float | str | None
    weight_decay: float | str | None


@dataclasses.dataclass(frozen=True)
class SummaryOptimizer(_Row):
    root: str
    kind: str
    kind_source: str
    dialect: str
    leaves: list[str]
    parameters_with_state: int
    groups: list[SummaryGroup]


SummaryOptimizer._parts = {"groups": SummaryGroup}


@dataclasses.dataclass(frozen=True)
class SummaryGlobal(_Row):
    name: str
    verdict: str
    file: str | None


@dataclasses.dataclass(frozen=True)
class SummaryBeside(_Row):
    path: str  # relative to the folder
    kind: str
    what: str
    bytes: int


@dataclasses.dataclass(frozen=True)
class SummaryLost(_Row):
    name: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Note(_Row):
    code: str  # stable, as CK012
    severity: str
    file: str | None
    tensor: str | None
    message: str
    path: str | None = None


@dataclasses.dataclass(frozen=True)
class SummaryReport(_Report):
    """ckpt-inspect summary: one checkpoint: tessera.summary/1"""

    path: str
    format: str
    dialect: str
    detected_by: str
    complete: bool
    problems: list[str]
    files: int
    file_bytes: int
    world_size: int | None
    world_size_source: str
    numbers: list[SummaryNumber]
    tensors: int
    embedded_tensors: int
    chunks: int
    values: int
    parameters: int
    parameter_numel: int
    trainable: int
    frozen: int
    buffers: int
    tensor_bytes: int
    by_kind: list[SummaryByteRow]
    by_dtype: list[SummaryByteRow]
    roots: list[SummaryRoot]
    optimizers: list[SummaryOptimizer]
    tied: list[list[str]]  # names that share one storage
    aliases: dict[str, Any]  # tied weights that are recorded and not stored: name -> the tensor that has its bytes
    padded_tensors: int
    provenance: dict[str, Any]
    globals: list[SummaryGlobal]
    beside: list[SummaryBeside]  # of the same training state, not read with it
    lost: list[SummaryLost]  # what could not be brought over when this, or its source, was salvaged
    notes: list[Note]
    scan: dict[str, Any] | None = None  # with --globals: the document of ckpt-inspect scan on the same files (scan.schema.json)


SummaryReport._parts = {"numbers": SummaryNumber, "by_kind": SummaryByteRow, "by_dtype": SummaryByteRow, "roots": SummaryRoot, "optimizers": SummaryOptimizer, "globals": SummaryGlobal, "beside": SummaryBeside, "lost": SummaryLost, "notes": Note}


@dataclasses.dataclass(frozen=True)
class RunCheckpoint(_Row):
    path: str
    name: str
    step: int | None
    format: str | None
    world_size: int | None
    bytes: int
    complete: bool
    problem: str | None
    latest: bool
    stored_step: int | None = None  # the step that its content holds; "step" is that of its name
    disk_bytes: int | None = None  # of all files in its folder, read or not
    modified: int | None = None  # when the newest of them was written, in seconds since 1970
    refused: bool | None = None  # it has something that is not understood here, and no damage was seen: "problem" names it


@dataclasses.dataclass(frozen=True)
class RunReport(_Report):
    """ckpt-inspect summary: several checkpoints, or a folder with several: tessera.run/1"""

    path: str
    pointer: str | None
    pointer_target: str | None
    pointer_stale: bool
    checkpoints: list[RunCheckpoint]
    newest_whole: str | None = None  # name of the complete checkpoint with the highest step; where none has a step, of the one written last; null: none is complete
    free_bytes: int | None = None  # free on the disk that they lie on
    others: list[str] | None = None  # of several PATHs those that are no checkpoints
    scan: dict[str, Any] | None = None  # with --globals: the document of ckpt-inspect scan on the same files (scan.schema.json)


RunReport._parts = {"checkpoints": RunCheckpoint}


@dataclasses.dataclass(frozen=True)
class LsChunk(_Row):
    offsets: list[int]  # origin of the box in the tensor, per dim
    lengths: list[int]  # shape of the box
    flat_range: list[int] | None  # half-open range of the box's row-major elements; null: all of them
    source: str
    file: str | None
    file_offset: int  # bytes
    file_length: int  # bytes
    rank: int | None
    replica: int  # 0 for the first copy


@dataclasses.dataclass(frozen=True)
class LsTensor(_Row):
    name: str  # dotted
    dtype: str  # PyTorch's name
    shape: list[int]
    numel: int
    bytes: int
    kind: str
    chunks: int
    sharding: str  # as "dim 0 x 4"; empty for one chunk
    replicas: int
    files: list[str]
    chunk_table: list[LsChunk] | None = None


LsTensor._parts = {"chunk_table": LsChunk}


@dataclasses.dataclass(frozen=True)
class LsReport(_Report):
    """ckpt-inspect ls: tessera.ls/1"""

    path: str
    format: str
    dialect: str
    world_size: int | None  # number of writing ranks that the checkpoint itself shows
    world_size_source: str
    tensors: list[LsTensor]
    values: dict[str, Any]  # name -> value; objects JSON lacks carry a tag, as {"__float__": "nan"}
    aliases: dict[str, Any]  # tied weights that are recorded and not stored: name -> the tensor that has its bytes
    total_numel: int
    total_bytes: int
    notes: list[Note]


LsReport._parts = {"tensors": LsTensor, "notes": Note}


@dataclasses.dataclass(frozen=True)
class ShowChunk(_Row):
    offsets: list[int]  # origin of the box in the tensor, per dim
    lengths: list[int]  # shape of the box
    flat_range: list[int] | None  # half-open range of the box's row-major elements; null: all of them
    source: str
    file: str | None
    file_offset: int  # bytes
    file_length: int  # bytes
    rank: int | None
    replica: int  # 0 for the first copy


@dataclasses.dataclass(frozen=True)
class ShowTensor(_Row):
    name: str  # dotted
    dtype: str  # PyTorch's name
    shape: list[int]
    numel: int
    bytes: int
    kind: str
    chunks: int
    sharding: str  # as "dim 0 x 4"; empty for one chunk
    replicas: int
    files: list[str]
    chunk_table: list[ShowChunk] | None = None


ShowTensor._parts = {"chunk_table": ShowChunk}


@dataclasses.dataclass(frozen=True)
class ShowReport(_Report):
    """ckpt-inspect show: tessera.show/1"""

    path: str
    format: str
    name: str
    what: str
    value: Any = None  # what = value: as ls prints it
    children: list[str] | None = None  # what = value: names directly below
    tensor: ShowTensor | None = None
    facts: dict[str, Any] | None = None
    slice_origin: list[int] | None = None
    slice_shape: list[int] | None = None
    elided: bool | None = None  # values holds the corners only
    shown: list[list[int]] | None = None  # per dim: which indices are in values
    values: list[str] | None = None  # row-major over shown, as text
    element_text_is_number: bool | None = None


ShowReport._parts = {"tensor": ShowTensor}


@dataclasses.dataclass(frozen=True)
class StatHistogram(_Row):
    scale: str
    low: float | str  # a number; not finite: "nan", "inf", "-inf"
    high: float | str  # a number; not finite: "nan", "inf", "-inf"
    zeros: int
    counts: list[int]


@dataclasses.dataclass(frozen=True)
class StatTensor(_Row):
    name: str
    dtype: str
    shape: list[int]
    kind: str
    skipped: str | None = None  # why there are no numbers
    count: int | None = None
    finite: int | None = None
    nan: int | None = None
    pos_inf: int | None = None
    neg_inf: int | None = None
    zeros: int | None = None
    subnormal: int | None = None
    outside_bf16: int | None = None
    outside_fp16: int | None = None
    first_nan: int | None = None
    first_inf: int | None = None
    min: float | str | None = None
    max: float | str | None = None
    mean: float | str | None = None
    std: float | str | None = None
    l1: float | str | None = None
    l2: float | str | None = None
    abs_max: float | str | None = None
    constant: bool | None = None
    all_zero: bool | None = None
    quantiles: dict[str, Any] | None = None
    histogram: StatHistogram | None = None
    row_norms: list[float | str] | None = None


StatTensor._parts = {"histogram": StatHistogram}


@dataclasses.dataclass(frozen=True)
class StatReport(_Report):
    """ckpt-inspect stat: tessera.stat/1"""

    path: str
    format: str
    ok: bool
    bytes: int
    tensors: list[StatTensor]
    findings: list[Note]
    notes: list[Note]


StatReport._parts = {"tensors": StatTensor, "findings": Note, "notes": Note}


@dataclasses.dataclass(frozen=True)
class OptimLeaf(_Row):
    name: str
    dtype: str | None
    shape: list[int]
    matches_weight: bool


@dataclasses.dataclass(frozen=True)
class OptimParameter(_Row):
    name: str
    stored_key: str
    inferred: bool
    certain: bool
    group: int | None
    leaves: list[OptimLeaf]
    step: float | str | None
    step_origin: str
    has_weight: bool | None = None  # its weight is in the checkpoint; without one no leaf matches_weight


OptimParameter._parts = {"leaves": OptimLeaf}


@dataclasses.dataclass(frozen=True)
class OptimGroup(_Row):
    index: int
    members: list[str]
    options: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class OptimLeafSet(_Row):
    leaves: str
    step: float | str | None
    count: int


@dataclasses.dataclass(frozen=True)
class OptimUpdate(_Row):
    name: str
    ratio: float | str  # a number; not finite: "nan", "inf", "-inf"
    update_norm: float | str  # a number; not finite: "nan", "inf", "-inf"
    weight_norm: float | str  # a number; not finite: "nan", "inf", "-inf"
    m_norm: float | str  # a number; not finite: "nan", "inf", "-inf"
    v_max: float | str  # a number; not finite: "nan", "inf", "-inf"
    lr: float | str  # a number; not finite: "nan", "inf", "-inf"
    bias_corrected: bool
    growth: float | str | None


@dataclasses.dataclass(frozen=True)
class OptimOptimizer(_Row):
    root: str
    kind: str
    dialect: str
    parameters: list[OptimParameter]
    groups: list[OptimGroup]
    leaf_sets: list[OptimLeafSet]
    updates: list[OptimUpdate]
    update_note: str | None


OptimOptimizer._parts = {"parameters": OptimParameter, "groups": OptimGroup, "leaf_sets": OptimLeafSet, "updates": OptimUpdate}


@dataclasses.dataclass(frozen=True)
class OptimReport(_Report):
    """ckpt-inspect optim: tessera.optim/1"""

    path: str
    other_path: str | None
    format: str
    ok: bool
    optimizers: list[OptimOptimizer]
    findings: list[Note]
    notes: list[Note]


OptimReport._parts = {"optimizers": OptimOptimizer, "findings": Note, "notes": Note}


@dataclasses.dataclass(frozen=True)
class HashQuantizer(_Row):
    scheme: str
    scale: float | None = None
    zero_point: int | None = None
    axis: int | None = None
    scales: str | None = None  # per channel: SHA-256 of the canonical text of all scales
    zero_points: str | None = None  # the same of the zero points


@dataclasses.dataclass(frozen=True)
class HashTensor(_Row):
    name: str
    dtype: str
    shape: list[int]
    sha256: str  # 64 hex digits
    quantizer: HashQuantizer | None = None  # of a quantized tensor


HashTensor._parts = {"quantizer": HashQuantizer}


@dataclasses.dataclass(frozen=True)
class HashValue(_Row):
    name: str
    kind: str  # dict: the kind of a dict that is no plain one and holds values alone
    sha256: str  # of the canonical text
    whole: bool  # false: part of it could not be followed


@dataclasses.dataclass(frozen=True, eq=False)
class HashReport(_Report):
    """ckpt-inspect hash: tessera.hash/2"""

    path: str
    format: str
    root: str  # 64 hex digits
    values_root: str  # over the canonical texts of the values: docs/canonical-values.md
    root_v1: str  # root as tessera.hash/1 had it: without quantizers
    values_root_v1: str  # values_root as tessera.hash/1 had it: over `values` as ls prints them
    bytes: int
    not_compared: int  # values that hold objects which could not be followed to the end
    tensors: list[HashTensor]
    values: list[HashValue]
    notes: list[Note]

    def __eq__(self, other):
        """Whether the content is the same: tensors and values, not paths and formats."""
        if not isinstance(other, HashReport):
            return NotImplemented
        return (self.root, self.values_root) == (other.root, other.values_root)

    def __hash__(self):
        return hash((self.root, self.values_root))


HashReport._parts = {"tensors": HashTensor, "values": HashValue, "notes": Note}


@dataclasses.dataclass(frozen=True)
class VerifyCause(_Row):
    code: str
    severity: str
    file: str | None
    message: str
    tensors: int  # how many tensors and values; their names are in the findings
    findings: int


@dataclasses.dataclass(frozen=True)
class VerifyBeside(_Row):
    path: str  # relative to the folder
    kind: str
    what: str
    bytes: int
    opened: bool  # and looked into, as a checkpoint of its own
    ok: bool
    tensors: int
    why: str | None  # where it was not opened


@dataclasses.dataclass(frozen=True)
class VerifyReport(_Report):
    """ckpt-inspect verify: tessera.verify/1"""

    path: str
    ok: bool
    findings: list[Note]
    causes: list[VerifyCause] | None = None  # the findings grouped: what one short, missing or unreadable file took along is one of them, and so are findings that say the same of one file
    format: str | None = None
    level: str | None = None
    files: int | None = None
    tensors: int | None = None
    chunks: int | None = None
    bytes_read: int | None = None
    bytes_with_sums: int | None = None
    tensor_bytes_stored: int | None = None
    sealed: bool | None = None
    not_compared: int | None = None  # --against: values that hold objects which could not be followed to the end
    other_files: int | None = None  # files in the checkpoint's folder that are no part of it and were not looked into
    beside: list[VerifyBeside] | None = None  # of the same training state, not read with it
    notes: list[Note] | None = None
    checkpoints: list[dict[str, Any]] | None = None  # several PATHs: the document of each


VerifyReport._parts = {"findings": Note, "causes": VerifyCause, "beside": VerifyBeside, "notes": Note}


@dataclasses.dataclass(frozen=True)
class ScanFinding(_Row):
    verdict: str
    message: str
    name: str | None  # the class or function, as the pickle names it
    use: str | None
    inside: str | None  # the member of an archive; members of members behind "!"
    offset: int | None  # of the opcode, in the file or member


@dataclasses.dataclass(frozen=True)
class ScanFile(_Row):
    path: str
    verdict: str
    kind: str | None
    findings: list[ScanFinding]  # worst first
    more_findings: int  # that are not listed
    use_instead: str | None  # a safe file beside it with the same weights


ScanFile._parts = {"findings": ScanFinding}


@dataclasses.dataclass(frozen=True)
class ScanLink(_Row):
    path: str
    target: str | None
    leaves: bool


@dataclasses.dataclass(frozen=True)
class ScanReport(_Report):
    """ckpt-inspect scan: tessera.scan/1"""

    path: str  # the first PATH
    paths: list[str]
    verdict: str  # of the worst file; unknown where not one could be judged
    safe: int
    unknown: int
    dangerous: int
    not_judged: int  # files of no kind known here
    files: list[ScanFile]
    links: list[ScanLink]  # symbolic links that leave the folder or lead nowhere


ScanReport._parts = {"files": ScanFile, "links": ScanLink}


@dataclasses.dataclass(frozen=True)
class DiffTensor(_Row):
    name: str
    what: str
    a: str | None = None
    b: str | None = None
    count: int | None = None
    numel: int | None = None
    first: int | None = None
    first_index: list[int] | None = None
    first_a: str | None = None
    first_b: str | None = None
    max_abs: float | str | None = None  # a number; not finite: "nan", "inf", "-inf"
    max_rel: float | str | None = None  # a number; not finite: "nan", "inf", "-inf"
    l2: float | str | None = None  # a number; not finite: "nan", "inf", "-inf"
    relative_l2: float | str | None = None  # a number; not finite: "nan", "inf", "-inf"
    cosine: float | str | None = None  # a number; not finite: "nan", "inf", "-inf"
    nonfinite_mismatch: int | None = None


@dataclasses.dataclass(frozen=True)
class DiffValue(_Row):
    name: str
    what: str
    a: Any
    b: Any
    at: str | None = None  # the first place inside that differs, as ".state.lr"
    at_a: Any = None  # what A has there; absent: nothing
    at_b: Any = None  # what B has there; absent: nothing


@dataclasses.dataclass(frozen=True)
class DiffLayer(_Row):
    name: str  # model.layers.3; without a number the module
    tensors: int  # that differ
    other_form: int  # of them: on one side alone, or of another type or shape
    relative_l2: float | str  # |a - b| / |a| of all whose values were compared; not finite: "nan", "inf", "-inf"
    most_changed: str | None
    most_relative_l2: float | str  # a number; not finite: "nan", "inf", "-inf"


@dataclasses.dataclass(frozen=True)
class DiffReport(_Report):
    """ckpt-inspect diff: tessera.diff/1"""

    path: str  # A
    path_a: str
    path_b: str
    format_a: str
    format_b: str
    equal: bool
    tensors_compared: int
    tensors_equal: int
    values_compared: int
    not_compared: int  # of these: equal as far as they could be followed, and not to the end
    bytes: int
    tensors: list[DiffTensor]
    values: list[DiffValue]
    notes: list[Note]
    layers: list[DiffLayer] | None = None  # with --by layer


DiffReport._parts = {"tensors": DiffTensor, "values": DiffValue, "notes": Note, "layers": DiffLayer}


@dataclasses.dataclass(frozen=True)
class ConvertVerifyScope(_Row):
    compared: list[str]
    not_compared: list[str]


@dataclasses.dataclass(frozen=True)
class ConvertFile(_Row):
    path: str
    bytes: int
    tensor_bytes: int
    tensors: int


@dataclasses.dataclass(frozen=True)
class ConvertSource(_Row):
    tensors: int
    values: int
    inner_tensors: int  # inside of values
    bytes: int


@dataclasses.dataclass(frozen=True)
class ConvertRestated(_Row):
    step: str
    tensors: int
    values: int
    inner_tensors: int  # inside of values
    bytes: int


@dataclasses.dataclass(frozen=True)
class ConvertWritten(_Row):
    tensors: int
    values: int
    inner_tensors: int  # inside of values
    bytes: int


@dataclasses.dataclass(frozen=True)
class ConvertLeftOut(_Row):
    reason: str
    tensors: int
    values: int
    inner_tensors: int  # inside of values
    bytes: int
    tensor_names: list[str]
    value_names: list[str]


@dataclasses.dataclass(frozen=True)
class ConvertLeftBehind(_Row):
    path: str
    what: str
    bytes: int


@dataclasses.dataclass(frozen=True)
class ConvertBalance(_Row):
    source: ConvertSource
    restated: list[ConvertRestated]  # what other names and forms did to the numbers without a loss
    written: ConvertWritten
    left_out: list[ConvertLeftOut]
    left_behind: list[ConvertLeftBehind]  # beside the source, of the same training state


ConvertBalance._parts = {"source": ConvertSource, "restated": ConvertRestated, "written": ConvertWritten, "left_out": ConvertLeftOut, "left_behind": ConvertLeftBehind}


@dataclasses.dataclass(frozen=True)
class ConvertTransformation(_Row):
    kind: str
    detail: str
    tensors: int
    changes: list[str]


@dataclasses.dataclass(frozen=True)
class ConvertDtype(_Row):
    dtype: str
    tensors_before: int
    bytes_before: int
    tensors_after: int
    bytes_after: int


@dataclasses.dataclass(frozen=True)
class ConvertLost(_Row):
    name: str
    reason: str


@dataclasses.dataclass(frozen=True)
class ConvertReport(_Report):
    """ckpt-reshard and ckpt-convert: what was written: tessera.convert/1"""

    path: str  # DST
    format: str
    source: str
    source_format: str
    world_size: int | None
    tensors: int
    bytes: int  # exact size of all files, the seal not included
    published: bool
    bytes_read: int
    bytes_written: int
    resumed_bytes: int
    seconds: float
    verified: bool
    verify_scope: ConvertVerifyScope | None  # of a result that was verified: what was held against the source, and what was left out or compared in another form
    verify_findings: list[str]
    not_compared: int  # --verify: values that hold objects which could not be followed to the end
    files: list[ConvertFile]
    assets: list[str]
    dropped: list[str]
    balance: ConvertBalance  # source + restated = written + all of left_out, in tensors, values and bytes
    transformations: list[ConvertTransformation]
    dtypes: list[ConvertDtype]  # leaf tensors by type before and after a cast; empty without one
    lost: list[ConvertLost]
    notes: list[Note]


ConvertReport._parts = {"verify_scope": ConvertVerifyScope, "files": ConvertFile, "balance": ConvertBalance, "transformations": ConvertTransformation, "dtypes": ConvertDtype, "lost": ConvertLost, "notes": Note}


@dataclasses.dataclass(frozen=True)
class PlanFile(_Row):
    path: str
    bytes: int
    tensor_bytes: int
    tensors: int


@dataclasses.dataclass(frozen=True)
class PlanSource(_Row):
    tensors: int
    values: int
    inner_tensors: int  # inside of values
    bytes: int


@dataclasses.dataclass(frozen=True)
class PlanRestated(_Row):
    step: str
    tensors: int
    values: int
    inner_tensors: int  # inside of values
    bytes: int


@dataclasses.dataclass(frozen=True)
class PlanWritten(_Row):
    tensors: int
    values: int
    inner_tensors: int  # inside of values
    bytes: int


@dataclasses.dataclass(frozen=True)
class PlanLeftOut(_Row):
    reason: str
    tensors: int
    values: int
    inner_tensors: int  # inside of values
    bytes: int
    tensor_names: list[str]
    value_names: list[str]


@dataclasses.dataclass(frozen=True)
class PlanLeftBehind(_Row):
    path: str
    what: str
    bytes: int


@dataclasses.dataclass(frozen=True)
class PlanBalance(_Row):
    source: PlanSource
    restated: list[PlanRestated]  # what other names and forms did to the numbers without a loss
    written: PlanWritten
    left_out: list[PlanLeftOut]
    left_behind: list[PlanLeftBehind]  # beside the source, of the same training state


PlanBalance._parts = {"source": PlanSource, "restated": PlanRestated, "written": PlanWritten, "left_out": PlanLeftOut, "left_behind": PlanLeftBehind}


@dataclasses.dataclass(frozen=True)
class PlanTransformation(_Row):
    kind: str
    detail: str
    tensors: int
    changes: list[str]


@dataclasses.dataclass(frozen=True)
class PlanDtype(_Row):
    dtype: str
    tensors_before: int
    bytes_before: int
    tensors_after: int
    bytes_after: int


@dataclasses.dataclass(frozen=True)
class PlanLost(_Row):
    name: str
    reason: str


@dataclasses.dataclass(frozen=True)
class PlanReport(_Report):
    """ckpt-reshard and ckpt-convert with --dry-run: what would be written: tessera.plan/1"""

    path: str  # DST
    format: str
    source: str
    source_format: str
    world_size: int | None
    tensors: int
    bytes: int  # exact size of all files, the seal not included
    source_bytes: int
    seal_bytes: int
    temporary_bytes: int
    metadata_bytes: int
    metadata_limit_bytes: int
    staged_bytes_bound: int
    peak_memory_bound: int
    free_bytes: int
    replaced_bytes: int
    files: list[PlanFile]
    assets: list[str]
    dropped: list[str]
    balance: PlanBalance  # source + restated = written + all of left_out, in tensors, values and bytes
    transformations: list[PlanTransformation]
    dtypes: list[PlanDtype]  # leaf tensors by type before and after a cast; empty without one
    lost: list[PlanLost]
    notes: list[Note]


PlanReport._parts = {"files": PlanFile, "balance": PlanBalance, "transformations": PlanTransformation, "dtypes": PlanDtype, "lost": PlanLost, "notes": Note}


@dataclasses.dataclass(frozen=True)
class PathRule(_Row):
    rule: str
    answer: str
    reason: str | None


@dataclasses.dataclass(frozen=True)
class PathReport(_Report):
    """ckpt-inspect summary --explain-path: tessera.path/1"""

    path: str
    kind: str
    rules: list[PathRule]  # in the order in which they are asked; the first that says yes decides
    found: str | None  # the checkpoint's path
    format: str | None
    failure: str | None  # why no checkpoint was found


PathReport._parts = {"rules": PathRule}


@dataclasses.dataclass(frozen=True)
class ExplainFinding(_Row):
    code: str  # stable
    severity: str  # the usual one
    severities: str  # all of them, in words
    level: str | None  # the first level of verify that reports it, or who else does, in parentheses; null for optim and stat
    meaning: str  # Markdown
    names: str | None  # what a finding names: file, tensor
    cause: str  # Markdown
    cure: str  # Markdown


@dataclasses.dataclass(frozen=True)
class ExplainReport(_Report):
    """ckpt-inspect explain: tessera.explain/1"""

    findings: list[ExplainFinding]


ExplainReport._parts = {"findings": ExplainFinding}


@dataclasses.dataclass(frozen=True)
class PageReport(_Report):
    """ckpt-inspect report: what was written: tessera.report/1"""

    path: str  # of the page
    bytes: int  # its size
    source: str  # the checkpoint
    format: str
    tensors: int
    left_out: list[str]  # what the page's budget of bytes had no room for
    page: str | None = None  # the page itself, where path is -


@dataclasses.dataclass(frozen=True)
class AuditSampling(_Row):
    bytes: int  # of the tensors, in all checkpoints
    bytes_read: int  # of those that were not in the cache
    every: int  # every n-th block of 32768 elements was read; small tensors whole
    seen_share: float  # with a confidence of 95 %, what fills this share of a tensor's blocks, or more, was seen; 0: all was read
    norm_error: float  # largest relative standard error of a norm
    sampled_elements: int  # of each tensor, that changes are estimated by; smaller tensors in full


@dataclasses.dataclass(frozen=True)
class AuditCheckpoint(_Row):
    name: str  # relative to the run's folder
    path: str
    series: str  # its name with # for numbers: checkpoints of one series are compared with each other
    step: float | None  # of its name, else the stored one
    name_step: int | None
    stored_step: float | None
    stored_step_source: str | None  # name of the value, or trainer_state.json
    optimizer_step: float | None
    format: str | None
    world_size: int | None
    bytes: int  # of its files
    tensors: int
    parameters_with_state: int
    complete: bool
    problem: str | None  # why it is not complete
    refused: bool  # of a kind that is not understood here; no damage was seen
    latest: bool  # the run's pointer names it
    sealed: bool  # our manifest is there and fits
    root: str | None  # content as SHA-256, where the seal has it
    same_as: str | None  # the checkpoint before, whose content it repeats (AU010)
    sound: bool  # complete, and named by no error
    bytes_read: int  # with --deep, of tensors
    from_cache: bool


@dataclasses.dataclass(frozen=True)
class AuditRetention(_Row):
    name: str
    bytes: int
    reason: str


@dataclasses.dataclass(frozen=True)
class AuditLayer(_Row):
    series: str
    name: str  # as model.layers.3
    norm: list[float | str | None]
    update: list[float | str | None]
    v_max: list[float | str | None]


@dataclasses.dataclass(frozen=True)
class AuditReport(_Report):
    """ckpt-inspect audit: tessera.audit/1"""

    path: str
    ok: bool  # no finding is an error
    pointer: str | None  # file name of the run's pointer
    pointer_target: str | None  # what it names, as written
    newest_whole: str | None  # name of a checkpoint
    newest_sound: str | None  # the newest that no error names
    deep: bool
    sampling: AuditSampling | None  # what was read of the tensors; null without --deep
    retention_bytes: int  # of all that could go
    checkpoints: list[AuditCheckpoint]
    findings: list[Note]  # by severity, then code; `file` names a checkpoint
    retention: list[AuditRetention]  # checkpoints that could go
    layers: list[AuditLayer]  # with --deep: numbers of each layer, one for each of `checkpoints`
    notes: list[Note]


AuditReport._parts = {"sampling": AuditSampling, "checkpoints": AuditCheckpoint, "findings": Note, "retention": AuditRetention, "layers": AuditLayer, "notes": Note}


@dataclasses.dataclass(frozen=True)
class TrendSampling(_Row):
    bytes: int  # of the tensors, in all checkpoints
    bytes_read: int  # of those that were not in the cache
    every: int  # every n-th block of 32768 elements was read; small tensors whole
    seen_share: float  # with a confidence of 95 %, what fills this share of a tensor's blocks, or more, was seen; 0: all was read
    norm_error: float  # largest relative standard error of a norm
    sampled_elements: int  # of each tensor, that changes are estimated by; smaller tensors in full


@dataclasses.dataclass(frozen=True)
class TrendPoint(_Row):
    tensor: str
    series: str
    checkpoint: str
    step: float | None
    value: float | str  # "nan" where the tensor holds NaN or Inf


@dataclasses.dataclass(frozen=True)
class TrendReport(_Report):
    """ckpt-inspect trend: tessera.trend/1"""

    path: str
    measure: str
    sampling: TrendSampling  # what was read of the tensors
    points: list[TrendPoint]  # by tensor, then in the order of the run
    notes: list[Note]


TrendReport._parts = {"sampling": TrendSampling, "points": TrendPoint, "notes": Note}


_REPORTS = {
    "tessera.summary": SummaryReport,
    "tessera.run": RunReport,
    "tessera.ls": LsReport,
    "tessera.show": ShowReport,
    "tessera.stat": StatReport,
    "tessera.optim": OptimReport,
    "tessera.hash": HashReport,
    "tessera.verify": VerifyReport,
    "tessera.scan": ScanReport,
    "tessera.diff": DiffReport,
    "tessera.convert": ConvertReport,
    "tessera.plan": PlanReport,
    "tessera.path": PathReport,
    "tessera.explain": ExplainReport,
    "tessera.report": PageReport,
    "tessera.audit": AuditReport,
    "tessera.trend": TrendReport,
}


def read_report(document):
    """The report of a JSON document that a command printed."""
    schema = document.get("schema")
    name = str(schema).rpartition("/")[0]
    if name not in _REPORTS:
        raise ValueError(f"{schema!r} is no report that this version knows")
    return _REPORTS[name].of(document)
