"""Settings and View: every number a person can move, its default, its range, its form in a link.

Field name = widget key = URL key = CLI option. Rules are data, so the sidebar, the command line
and the link reader all speak from this one table.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self
from urllib.parse import parse_qsl, urlencode

LINK_VERSION = "1"

# Keys that Streamlit itself reads from a link; not ours to judge.
FOREIGN_KEYS = frozenset({"embed", "embed_options"})


class SettingsError(ValueError):
    """A setting that cannot be used; the message names it, its value and what is allowed.

    ``fields`` holds the settings involved, the first to blame first.
    """

    def __init__(self, message: str, *blamed: str) -> None:
        super().__init__(message)
        self.fields = blamed


def shown(value: object) -> str:
    """``value`` as it may stand in a message: one line, printable, at most 40 characters."""
    text = "".join(c if c.isprintable() else "�" for c in str(value))
    return text if len(text) <= 40 else text[:39] + "…"


def _max_n() -> int:
    """The largest context length: ``KRRVIZ_MAX_N``, or 16384 with a warning where it is none."""
    named = os.environ.get("KRRVIZ_MAX_N", "16384")
    if re.fullmatch("[0-9]{1,9}", named) and int(named) >= 2:
        return int(named)
    warnings.warn(
        f"KRRVIZ_MAX_N={shown(named)} must be a whole number from 2; 16384 is used", stacklevel=2
    )
    return 16384


MAX_N = _max_n()


# ---------------------------------------------------------------------------------------------
# Rules: what a field may hold


@dataclass(frozen=True)
class Choice:
    """One of a few words."""

    options: tuple[str, ...]

    @property
    def allowed(self) -> str:
        return "one of " + ", ".join(self.options)

    def parse(self, text: str) -> str:
        return text

    def check(self, value: object) -> str:
        if not isinstance(value, str) or value not in self.options:
            raise ValueError(f"must be {self.allowed}")
        return value


@dataclass(frozen=True)
class Number:
    """A finite number in [low, high], or one of a few words."""

    low: float
    high: float
    whole: bool = False
    words: tuple[str, ...] = ()

    @property
    def allowed(self) -> str:
        low, high = (f"{edge:.10g}" for edge in (self.low, self.high))
        kind = "a whole number " if self.whole else ""
        return " or ".join([f"{kind}{low} to {high}", *self.words])

    def parse(self, text: str) -> float | int | str:
        if text in self.words:
            return text
        # Python's own parsers also take "1_000", " 1" and other alphabets' digits.
        if self.whole and re.fullmatch(r"[+-]?[0-9]{1,20}", text):
            return int(text)
        digits = r"[+-]?([0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})([eE][+-]?[0-9]{1,4})?"
        if not self.whole and re.fullmatch(digits, text):
            return float(text)
        raise ValueError(f"must be {self.allowed}")

    def check(self, value: object) -> float | int | str:
        if isinstance(value, str) and value in self.words:
            return value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"must be {self.allowed}")
        if not self.low <= value <= self.high:  # which no NaN and no infinity is
            raise ValueError(f"must be {self.allowed}")
        if self.whole and value != int(value):
            raise ValueError(f"must be {self.allowed}")
        return int(value) if self.whole else float(value)


@dataclass(frozen=True)
class Several:
    """One or more different words, kept in the order of ``options``."""

    options: tuple[str, ...]

    @property
    def allowed(self) -> str:
        return "one or more of " + ", ".join(self.options)

    def parse(self, text: str) -> tuple[str, ...]:
        return (text,)

    def check(self, value: object) -> tuple[str, ...]:
        words = (value,) if isinstance(value, str) else value
        if not isinstance(words, (tuple, list)) or not words or set(words) - set(self.options):
            raise ValueError(f"must be {self.allowed}")
        return tuple(word for word in self.options if word in words)


@dataclass(frozen=True)
class Text:
    """A short text of one form: the pattern tells it to a program, ``allowed`` to a person."""

    pattern: str
    allowed: str

    def parse(self, text: str) -> str:
        return text

    def check(self, value: object) -> str:
        if isinstance(value, str) and len(value) <= 1000 and re.fullmatch(self.pattern, value):
            return value
        raise ValueError(f"must be {self.allowed}")


Rule = Choice | Number | Several | Text


@dataclass(frozen=True)
class About:
    """What the interface says of a field."""

    rule: Rule
    label: str
    help: str
    group: str


def setting(default: Any, rule: Rule, label: str, help: str, group: str) -> Any:
    """A dataclass field with its rule and words."""
    return field(default=default, metadata={"about": About(rule, label, help, group)})


# ---------------------------------------------------------------------------------------------
# What both records share: checking, and the query-string form


@dataclass(frozen=True)
class Record:
    """A frozen set of checked fields with a query-string form."""

    # Keys of the sibling record, which a shared link also carries; and whether this record is the
    # one to tell of keys that neither knows.
    siblings: ClassVar[frozenset[str]] = frozenset()
    judges: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name, about in self.table().items():
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, about.rule.check(value))
            except ValueError as error:
                raise SettingsError(f"{name}={shown(value)} {error}", name) from None

    @classmethod
    def table(cls) -> dict[str, About]:
        """Field name -> rule, label, help, group, in order."""
        return {f.name: f.metadata["about"] for f in fields(cls)}

    @classmethod
    def read(cls, text: str, **fixed: Any) -> tuple[Self, tuple[str, ...]]:
        """A query string or whole link -> the record with all good keys applied, and problems.

        Each problem is a sentence naming key, value and allowed range; a link raises nothing.
        ``fixed`` fields win over the link's.
        """
        values, problems = cls._parse(text)
        values |= fixed
        while True:
            try:
                return cls(**values), tuple(problems)
            except SettingsError as error:
                if f"{error}." not in problems:
                    problems.append(f"{error}.")
                # Drop the first key to blame that the link itself named; defaults alone are fine.
                named = [name for name in error.fields if name in values and name not in fixed]
                if not named:
                    raise
                del values[named[0]]

    @classmethod
    def from_query(cls, text: str, **fixed: Any) -> Self:
        """Like :meth:`read`, but any problem raises :class:`SettingsError`."""
        record, problems = cls.read(text, **fixed)
        if problems:
            raise SettingsError(" ".join(problems))
        return record

    def to_query(self) -> str:
        """Every field, defaults too, and the link version; `read` gives the same record back."""
        pairs: list[tuple[str, str]] = [("v", LINK_VERSION)]
        for name in self.table():
            value = getattr(self, name)
            pairs += [(name, str(v)) for v in (value if isinstance(value, tuple) else (value,))]
        return urlencode(pairs)

    @classmethod
    def _parse(cls, text: str) -> tuple[dict[str, Any], list[str]]:
        """The keys that are good by themselves, and what is wrong with the others."""
        table, values, problems = cls.table(), dict[str, Any](), list[str]()
        for key, items in _pairs(text).items():
            if key == "v":
                if items != [LINK_VERSION] and cls.judges:
                    problems.append(
                        f"v={shown(items[-1])}: this version reads links of v={LINK_VERSION}."
                    )
            elif key in cls.siblings | FOREIGN_KEYS:
                continue
            elif key not in table:
                if not cls.judges:
                    continue
                problems.append(f"{shown(key)} is not a setting; known: {', '.join(table)}.")
            elif len(items) > 1 and not isinstance(table[key].rule, Several):
                problems.append(f"{key} stands {len(items)} times in the link; once is allowed.")
            else:
                rule = table[key].rule
                try:
                    parsed = [rule.parse(item) for item in items]
                    value = sum(parsed, ()) if isinstance(rule, Several) else parsed[0]
                    values[key] = rule.check(value)
                except ValueError as error:
                    problems.append(f"{key}={shown(','.join(items))} {error}.")
        return values, problems


def _pairs(text: str) -> dict[str, list[str]]:
    """Query string, ``?``-prefixed query or whole link -> key -> values."""
    head, mark, tail = text.strip().partition("?")
    if mark and ("=" not in head or "://" in head or head.startswith("/")):
        query = tail
    elif "://" in text.partition("=")[0]:
        query = ""  # a link without a query
    else:
        query = text.strip()
    query = query.partition("#")[0]
    pairs: dict[str, list[str]] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        pairs.setdefault(key, []).append(value)
    return pairs


# ---------------------------------------------------------------------------------------------
# The data sets that ship, as far as settings must know them (a test holds this to the files)


@dataclass(frozen=True)
class DataSet:
    """Name and size of a data set; ``rows`` and ``d`` are None where a person decides."""

    title: str
    rows: int | None
    d: int | None
    bandwidth: float


DATASETS: Mapping[str, DataSet] = {
    "gp": DataSet("Gaussian process draws", None, None, 0.5),
    "motorcycle": DataSet("Motorcycle crash", 133, 1, 0.3),
    "co2": DataSet("Mauna Loa CO₂", 2225, 1, 0.5),
    "diabetes": DataSet("Diabetes", 442, 10, 3.0),
    "csv": DataSet("Your CSV file", None, None, 1.0),
}

METHODS = (
    "transformer",
    "preconditioned_richardson",
    "function_space_richardson",
    "gradient_descent",
    "nesterov",
    "heavy_ball",
    "chebyshev",
    "conjugate_gradient",
    "preconditioned_conjugate_gradient",
)

# In the order of their making; one that is not there is shown as missing.
CHECKPOINTS = (
    "main-0",
    "linear-0",
    "laplacian-0",
    "main-1",
    "main-2",
    "matern-0",
    "full-0",
    "deep-0",
)

# Digits of a file's SHA-256 that a link carries, and columns that a file may have.
DIGEST, MAX_COLUMNS = 16, 1_000

PROBLEM, TRANSFORMER, COMPARISON, MACHINE = "problem", "transformer", "comparison", "machine"


@dataclass(frozen=True)
class Settings(Record):
    """One picture, wholly determined: same settings, dtype and device give the same numbers.

    Raises :class:`SettingsError` on the first field outside its range.
    """

    data: str = setting(
        "motorcycle", Choice(tuple(DATASETS)), "Data", "Where the prompts come from.", PROBLEM
    )
    file: str = setting(
        "none",
        Text(f"none|[0-9a-f]{{{DIGEST}}}", f"none or {DIGEST} hexadecimal digits"),
        "Your file",
        "For data=csv: how the file's SHA-256 begins. The file itself is in no link.",
        PROBLEM,
    )
    target: int | str = setting(
        "last",
        Number(1, MAX_COLUMNS, whole=True, words=("last",)),
        "Target column",
        "For data=csv: which column is predicted, counted from 1; last: the last that can be.",
        PROBLEM,
    )
    columns: str = setting(
        "all",
        Text("all|[1-9][0-9]{0,3}(,[1-9][0-9]{0,3})*", "all or column numbers, as in 1,3,4"),
        "Input columns",
        "For data=csv: which columns are inputs, counted from 1; all: all that can be.",
        PROBLEM,
    )
    inputs: str = setting(
        "uniform",
        Choice(("uniform", "clumped", "gaussian")),
        "GP inputs",
        "How inputs are spread, for Gaussian process draws only: uniform on [−1, 1]ᵈ, "
        "in a few tight clumps, or standard normal.",
        PROBLEM,
    )
    d: int = setting(
        2, Number(1, 50, whole=True), "Input dimension d", "For GP draws only.", PROBLEM
    )
    noise: float = setting(
        0.1,
        Number(0, 1e3),
        "Label noise",
        "Variance of the noise added to GP draws of variance 1; the labels are then scaled to "
        "variance 1.",
        PROBLEM,
    )
    n: int = setting(
        min(64, MAX_N),
        Number(2, MAX_N, whole=True),
        "Context length N",
        "Labelled tokens in a prompt. The transformer has this many context slots.",
        PROBLEM,
    )
    queries: int = setting(
        32,
        Number(1, 1024, whole=True),
        "Queries",
        "Test inputs per prompt, held out from the context; errors are over these.",
        PROBLEM,
    )
    prompts: int = setting(
        16,
        Number(1, 256, whole=True),
        "Prompts",
        "Independent prompts; every error is the mean over them.",
        PROBLEM,
    )
    # None stands for the data set's own default and is replaced when the record is made.
    bandwidth: float = setting(
        None,
        Number(1e-3, 1e3),
        "Bandwidth σ",
        "Width of the Gaussian kernel exp(−‖x−x′‖²/2σ²), in standardised input units.",
        PROBLEM,
    )
    ridge: float = setting(
        0.1,
        Number(1e-12, 1e6),
        "Ridge λ",
        "Added to the kernel's diagonal; the noise variance of the matching Gaussian process.",
        PROBLEM,
    )
    ridge_scale: str = setting(
        "absolute",
        Choice(("absolute", "per_sample")),
        "Ridge scale",
        "absolute: K + λI. per_sample: K + nλI with n the prompt's own count.",
        PROBLEM,
    )
    seed: int = setting(
        0, Number(0, 2**31 - 1, whole=True), "Seed", "Fixes every random draw.", PROBLEM
    )
    steps: int = setting(
        32,
        Number(0, 100_000, whole=True),
        "Depth: steps T",
        "Updates. In the paper's layout one update is two transformer blocks.",
        TRANSFORMER,
    )
    segments: int = setting(
        128,
        Number(1, 65_536, whole=True),
        "Hinges per side m",
        "The products are made of hinges: MLP width is 4m and a little more.",
        TRANSFORMER,
    )
    layout: str = setting(
        "paper",
        Choice(("paper", "fused")),
        "Layout",
        "paper: two blocks per update. fused: one block per update, the same numbers.",
        TRANSFORMER,
    )
    product: str = setting(
        "balanced",
        Choice(("plain", "balanced")),
        "Product",
        "balanced scales both factors to one range first: less width for the same error "
        "(our choice). plain gives the paper's rate.",
        TRANSFORMER,
    )
    update: str = setting(
        "richardson",
        Choice(("richardson", "chebyshev", "heavy_ball", "nesterov", "function_space")),
        "Update rule",
        "The iteration that the blocks carry out. richardson is the paper's; the others are ours, "
        "in the same stack.",
        TRANSFORMER,
    )
    sink: float | str = setting(
        0,
        Number(0, 1e12, words=("ridge",)),
        "Sink level s",
        "Attention to the sink in the iteration blocks: P = D + sI. 0 is the paper's; ridge is the "
        "ridge itself, λ or nλ; a very large s makes it plain Richardson.",
        TRANSFORMER,
    )
    alpha_range: float | str = setting(
        "calibrated",
        Number(1e-6, 1e9, words=("calibrated", "certified")),
        "Range of α",
        "The products hold for |α| up to this. calibrated: √N/λ, free of the data. certified: what "
        "no prompt within the bounds can leave.",
        TRANSFORMER,
    )
    label_bound: float = setting(
        4, Number(1e-6, 1e9), "Label bound", "The products hold for |y| up to this.", TRANSFORMER
    )
    input_bound: float | str = setting(
        "auto",
        Number(1e-6, 1e9, words=("auto",)),
        "Input bound B",
        "Inputs with ‖x‖ up to this are masked exactly. auto: the largest the data set can give.",
        TRANSFORMER,
    )
    policy: str = setting(
        "certified",
        Choice(("certified", "one_over_l", "optimal", "manual")),
        "Step policy",
        "certified: from N and λ alone, as fixed weights must. one_over_l: 1/(largest "
        "eigenvalue). optimal: 2/(smallest + largest). manual: your step size. "
        "The transformer always runs its certified step.",
        COMPARISON,
    )
    step_size: float = setting(
        1, Number(1e-6, 1e3), "Step size", "For the manual policy.", COMPARISON
    )
    methods: tuple[str, ...] = setting(
        (
            "transformer",
            "preconditioned_richardson",
            "gradient_descent",
            "nesterov",
            "conjugate_gradient",
        ),
        Several(METHODS),
        "Methods",
        "Which curves are drawn.",
        COMPARISON,
    )
    reference: str = setting(
        "krr",
        Choice(("krr", "noiseless", "labels")),
        "Error against",
        "krr: the exact kernel ridge regression answer. noiseless: the drawn function itself "
        "(GP draws only). labels: the held-out labels, noise included.",
        COMPARISON,
    )
    device: str = setting(
        "auto",
        Choice(("auto", "cpu", "cuda", "mps")),
        "Device",
        "auto: CUDA if there is one, then MPS (which has no float64), then the CPU.",
        MACHINE,
    )
    dtype: str = setting(
        "float64",
        Choice(("float64", "float32", "bfloat16", "float16")),
        "Precision",
        "What transformer and solvers compute in; exact answers are always float64.",
        MACHINE,
    )

    def __post_init__(self) -> None:
        if self.bandwidth is None and self.data in DATASETS:
            object.__setattr__(self, "bandwidth", DATASETS[self.data].bandwidth)
        super().__post_init__()
        rows = DATASETS[self.data].rows
        if rows is not None:
            check_rows(self.n, self.queries, rows, self.data)
        if self.reference == "noiseless" and self.data != "gp":
            raise SettingsError(
                f"reference=noiseless needs data=gp: nobody knows {self.data} without its "
                "noise; use krr or labels",
                "reference",
                "data",
            )
        if self.device == "mps" and self.dtype == "float64":
            raise SettingsError(
                "dtype=float64 does not run on device=mps; use float32", "dtype", "device"
            )

    def but(self, **changes: Any) -> Settings:
        """These settings with some fields changed."""
        return replace(self, **changes)

    def but_data(self, data: str, rows: int | None = None, file: str = "none") -> Settings:
        """These settings on another data set, with its bandwidth and as many rows as it has.

        ``rows`` and ``file`` are those of ``data=csv``.
        """
        rows = rows or DATASETS[data].rows or self.n + self.queries
        queries = min(self.queries, max(1, rows // 4, rows - self.n))
        return replace(
            self,
            data=data,
            file=file,
            target="last",
            columns="all",
            bandwidth=DATASETS[data].bandwidth,
            n=min(self.n, rows - queries),
            queries=queries,
            reference="krr" if self.reference == "noiseless" else self.reference,
        )


def check_rows(n: int, queries: int, rows: int, name: str) -> None:
    """Raise :class:`SettingsError` unless a prompt and its queries fit into ``rows`` rows."""
    if n + queries > rows:
        allowed = [
            *([f"n 2 to {rows - queries} with these queries"] if rows - queries >= 2 else []),
            *([f"queries 1 to {rows - n} with this n"] if rows - n >= 1 else []),
        ]
        raise SettingsError(
            f"n={n} with queries={queries} needs {n + queries} rows but {name} has {rows}; "
            f"allowed: {', or '.join(allowed) or f'n + queries up to {rows}'}",
            *("n", "queries", "data"),
        )


STATIONS = 8  # of the tour
# What a map may have on its axes.
MAPPED = (
    "bandwidth", "ridge", "n", "steps", "segments", "sink", "noise", "d", "step_size", "seed"
)  # fmt: skip
CONTROLS = "|".join(Settings.table())


@dataclass(frozen=True)
class View(Record):
    """What is looked at, not what is computed."""

    judges = False

    step: int | str = setting(
        "last", Number(0, 100_000, whole=True, words=("last",)), "Step", "The step lit.", "view"
    )
    lit_layer: int | str = setting(
        "last",
        Number(0, 128, whole=True, words=("last",)),
        "Layer lit",
        "The trained model's layer lit in its fans.",
        "view",
    )
    floor: float = setting(
        1e-3, Number(1e-16, 0.1), "Error axis from", "Curves below leave the frame.", "view"
    )
    block: int = setting(
        1, Number(0, 200_001, whole=True), "Block", "The transformer's block looked into.", "view"
    )
    pin: int | str = setting(
        "none",
        Number(0, MAX_N + 1024, whole=True, words=("none",)),
        "Pinned token",
        "The token whose row is followed: 0 is the sink, then the context, then the queries.",
        "view",
    )
    pin_key: int | str = setting(
        "none",
        Number(0, MAX_N + 1024, whole=True, words=("none",)),
        "Pinned key",
        "The token that the pinned one attends to; none: the context token nearest to it.",
        "view",
    )
    part: str = setting(
        "mlp",
        Choice(("prompt", "attention", "mlp")),
        "Sub-block",
        "After which of the block's two sub-blocks the stream is shown; prompt: before any.",
        "view",
    )
    topic: str = setting(
        "dial",
        Choice(
            ("dial", "spectrum", "depth", "width", "rules", "transfer", "sink", "precision",
             "looseness")
        ),
        "Topic",
        "What the guarantee page shows.",
        "view",
    )  # fmt: skip
    eps: float = setting(
        1e-2,
        Number(1e-15, 1e3),
        "Accuracy ε",
        "Largest |transformer − exact KRR| allowed, in standard deviations of the labels.",
        "view",
    )
    model: str = setting(
        "main-0", Choice((*CHECKPOINTS, "own")), "Trained model", "Which checkpoint.", "view"
    )
    study: str = setting(
        "fan",
        Choice(("fan", "match", "operator", "heads", "controls", "beyond", "yours")),
        "Topic",
        "What the page on trained models shows.",
        "view",
    )
    readout: str = setting(
        "lens",
        Choice(("lens", "labels", "krr", "untrained krr")),
        "Readout",
        "How a layer's answer is read: lens, by the model's own head; or by a linear probe fitted "
        "to the labels or to exact KRR. untrained krr: such a probe on a network of random "
        "weights, as a control.",
        "view",
    )
    metric: str = setting(
        "similarity",
        Choice(("similarity", "difference", "profile", "operator")),
        "Metric",
        "What says how alike a layer and a solver's step are.",
        "view",
    )
    asked: int = setting(
        128,
        Number(2, 2048, whole=True),
        "Prompts asked",
        "How many a trained model is probed on; as many others fit the probes.",
        "view",
    )
    layer: int = setting(
        1, Number(1, 128, whole=True), "Layer", "The trained model's layer looked into.", "view"
    )
    ablation: str = setting(
        "kernels",
        Choice(("kernels", "attention", "constructed")),
        "Topic",
        "What the page on ablations shows.",
        "view",
    )
    fault: str = setting(
        "none",
        Choice(("none", "block", "attention", "mlp", "quantise", "perturb", "ungated", "unmask")),
        "Fault",
        "What is broken in the transformer.",
        "view",
    )
    fault_block: int = setting(
        1, Number(0, 200_001, whole=True), "Block", "Where the fault is.", "view"
    )
    fault_matrix: str = setting(
        "W_Q",
        Choice(("W_Q", "W_K", "W_V", "W_O", "W_1", "W_2")),
        "Matrix",
        "Changed in this block and in all blocks that share it.",
        "view",
    )
    fault_bits: int = setting(
        12, Number(2, 32, whole=True), "Bits", "The matrix keeps 2ⁿ − 1 even levels.", "view"
    )
    fault_noise: float = setting(
        0.01,
        Number(0, 100),
        "Relative noise",
        "Every entry w becomes w(1 + noise · ξ), ξ standard normal.",
        "view",
    )
    fault_seed: int = setting(
        0, Number(0, 2**31 - 1, whole=True), "Seed of the noise", "Fixes ξ.", "view"
    )
    fault_query: int = setting(
        1, Number(1, 1024, whole=True), "Query", "The one that is not masked as a key.", "view"
    )
    map_x: str = setting(
        "bandwidth", Choice(MAPPED), "Across", "The map's setting from left to right.", "view"
    )
    map_y: str = setting("ridge", Choice(MAPPED), "Up", "The map's setting upwards.", "view")
    map_of: str = setting(
        "steps",
        Choice(("steps", "winner", "error")),
        "Shown",
        "steps: how many until the mean error is within ε. winner: the method that takes the "
        "fewest. error: at the last step.",
        "view",
    )
    map_method: str = setting(
        "transformer", Choice(METHODS), "Method", "Whose steps or error the map shows.", "view"
    )
    map_eps: float = setting(
        1e-2,
        Number(1e-15, 1e3),
        "ε",
        "Relative error to reach, mean over the prompts.",
        "view",
    )
    source: str = setting(
        "upload", Choice(("upload", "paste", "click")), "Source", "Where rows come from.", "view"
    )
    station: int = setting(
        1, Number(1, STATIONS, whole=True), "Station", "Where the tour stands.", "view"
    )
    answers: str = setting(
        "-" * STATIONS,
        Text(f"[abcs-]{{{STATIONS}}}", f"{STATIONS} of a, b, c, s (skipped) and - (not yet seen)"),
        "Answers",
        "What was predicted at each station of the tour.",
        "view",
    )
    presenter: str = setting(
        "off", Choice(("off", "on")), "Presenter size", "Larger type, thicker curves.", "view"
    )
    controls: str = setting(
        "none",
        Text(f"none|({CONTROLS})(,({CONTROLS}))*", "none or settings, as in bandwidth,ridge"),
        "Controls",
        "Which settings' controls an embedded page shows.",
        "view",
    )


Settings.siblings = frozenset(View.table())
View.siblings = frozenset(Settings.table())


# ---------------------------------------------------------------------------------------------
# Presets


@dataclass(frozen=True)
class Preset:
    """Named settings worth looking at."""

    title: str
    text: str
    settings: Settings


PRESETS: Mapping[str, Preset] = {
    "start": Preset("Motorcycle", "The first screen: real data, one input.", Settings()),
    "gentle": Preset(
        "Gentle",
        "A wide ridge: every method is there within a few steps.",
        Settings(data="gp", ridge=1.0, steps=16),
    ),
    "ill_conditioned": Preset(
        "Ill-conditioned",
        "Smooth kernel, tiny ridge: depth runs out long before precision does.",
        Settings(data="gp", d=1, bandwidth=1.0, ridge=1e-4, noise=1e-4, steps=64),
    ),
    "high_dimensional": Preset(
        "High-dimensional",
        "Ten inputs of 442 patients: row sums are nearly equal, so the preconditioner is nearly "
        "one number.",
        Settings(data="diabetes", n=min(256, MAX_N), prompts=4),
    ),
    "clumped": Preset(
        "Clumped inputs",
        "Crowds and loners: row sums differ widely, which is what D⁻¹ answers.",
        Settings(data="gp", inputs="clumped", n=min(96, MAX_N)),
    ),
    "one_dimensional": Preset(
        "One-dimensional picture",
        "A single Gaussian process draw: watch the fitted curve itself.",
        Settings(data="gp", d=1, bandwidth=0.3, n=min(40, MAX_N), prompts=8),
    ),
}
