"""Anatomy: one prompt's attention, block by block, beside D⁻¹K computed in the log domain."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.linalg import eigh
from scipy.spatial.distance import cdist
from scipy.special import log_softmax, logsumexp
from torch import Tensor

from krrviz.construction.transformer import Attention, Stream, Transformer
from krrviz.construction.weights import LEVELS, Construction, build
from krrviz.machine import check
from krrviz.problem import Problem
from krrviz.settings import Settings
from krrviz.surgery import place
from krrviz.tables import Table
from krrviz.tasks import sample, table_of
from krrviz.trust import attention_tolerance

# Tokens looked into: the prompt's first ones, where it has more.
CONTEXT, QUERIES = 512, 64

Tokens = Float[np.ndarray, " tokens"]
Square = Float[np.ndarray, "tokens tokens"]


@dataclass(frozen=True, eq=False)
class Step:
    """A token's row, from scores to attention, by key.

    query : q_i = W_Q h_i. score : q_i·k_j. exponential : exp(score − largest), whose sum is
    ``total``. attention : their quotient, as the block computes it. cancelled : ‖x_i‖²/2σ², by
    which the scores of context keys exceed −‖x_i − x_j‖²/2σ², and which softmax cancels.
    """

    query: Float[np.ndarray, " width"]
    score: Tokens
    exponential: Tokens
    total: float
    attention: Tokens
    cancelled: float


@dataclass(frozen=True, eq=False)
class Anatomy:
    """The first prompt in the transformer, token by token: the sink, the context, the queries.

    Parameters
    ----------
    construction, model, problem : the fan's own; the problem is one prompt in float64
    kinds : sink, context, masked (an unused slot) or query
    order : the tokens as they are best shown: in each kind by x, or by a seriation of K
    distance : ‖x_i − x_j‖²; the sink stands at x = 0
    log_degree : log D_i, D_i = Σ_j K_ij over the context
    inputs : (tokens, 1) in the data's own unit, or (tokens, 2) where they are standardised; for
        d > 2 the first two principal coordinates of the context. NaN for the sink
    labels : y in its own unit; a query's is the held-out one, NaN where there is none
    titles : what ``order``, the columns of ``inputs``, and ``labels`` are called
    notices : what is shown otherwise than asked for
    """

    construction: Construction
    model: Transformer
    problem: Problem
    kinds: tuple[str, ...]
    order: Int[np.ndarray, " tokens"]
    distance: Square
    log_degree: Tokens
    inputs: Float[np.ndarray, "tokens axes"]
    labels: Tokens
    titles: tuple[str, ...]
    notices: tuple[str, ...] = ()

    @property
    def depth(self) -> int:
        """How many blocks there are."""
        return len(self.model.blocks)

    @property
    def places(self) -> Float[np.ndarray, "tokens d"]:
        """Where each token lies; the sink at x = 0."""
        return places(self.problem)

    @property
    def degree(self) -> Tokens:
        """D, the row sums of K over the context; 0 where they are below the smallest number."""
        return np.exp(self.log_degree)

    def place(self, block: int) -> str:
        """What a block is for, in words."""
        return place(self.model, block)

    def idle(self, block: int) -> bool:
        """Whether a block's attention writes nothing."""
        return self.model.blocks[block].attention.idle

    def levels(self, block: int) -> Tokens:
        """The sink's level s on each token's row: attention is K/(D + s), and s/(D + s) on it."""
        c, n, first = self.construction, int(self.problem.count), self.model.updates.start
        context = np.array(self.kinds) == "context"
        small, large = LEVELS[c.dtype]
        s, q = (float(self.problem.level(sink)) for sink in (c.sink, c.query_sink))
        if block == 0:  # read-in answers the context only
            return np.where(context, s or small, 0.0)
        if block <= first:  # and, in function space, the other rows after that
            return np.where(context, 0.0, q)
        if block == self.depth - 1:
            return np.full(len(context), large * n / c.n_max if c.per_sample else large)
        return np.where(context, s, q if c.update == "function_space" else s)

    def factor(self, block: int) -> Tokens:
        """What attention is multiplied by to be seen, by key: S in the read-out, as W_O does.

        Elsewhere, and on the sink, whose value is 0 there, it is 1.
        """
        factor = np.ones(len(self.kinds))
        if block == self.depth - 1:
            factor[1:] = float(self.model.blocks[block].attention.w_o.max())
        return factor

    def tolerance(self, block: int) -> float:
        """The most that attention may differ from the kernel."""
        sink = bool(self.levels(block).any())
        largest = math.sqrt(self.distance[0].max())  # ‖x‖: the sink stands at x = 0
        return attention_tolerance(self.construction, largest, sink)

    def attention(self, block: int) -> Square | None:
        """The pattern of a block, times ``factor``; None where the block is idle."""
        if self.idle(block):
            return None
        head, stream = self._head(block)
        return _numpy(head.pattern(stream)) * self.factor(block)

    def kernel(self, block: int) -> Square:
        """P⁻¹K in the log domain from the distances alone; 0 on keys that are not context.

        With a level s it is K/(D + s), and s/(D + s) on the sink, times ``factor``.
        """
        context = np.flatnonzero(np.array(self.kinds) == "context")
        logits = -self.distance[:, context] / (2 * self.construction.bandwidth**2)
        with np.errstate(divide="ignore"):
            levels = np.log(self.levels(block))  # −∞ where there is no sink
        total = np.logaddexp(self.log_degree, levels)[:, None]
        kernel = np.zeros_like(self.distance)
        kernel[:, context] = np.exp(logits - total)
        kernel[:, 0] = np.exp(levels - total[:, 0])
        return kernel * self.factor(block)

    def nearest(self, token: int) -> int:
        """The context token nearest to a token: itself, if it is one, also among equal ones."""
        if self.kinds[token] == "context":
            return token
        context = np.flatnonzero(np.array(self.kinds) == "context")
        return int(context[self.distance[token, context].argmin()])

    def step(self, block: int, token: int) -> Step | None:
        """From the scores of a token to its attention, in the weights' own precision."""
        if self.idle(block):
            return None
        head, stream = self._head(block)
        query = stream[token] @ head.w_q.mT
        score = query @ (stream @ head.w_k.mT).mT
        exponential = (score - score.max()).exp()
        norm = float(stream[token, self.model.slots.index["half_sq_norm"]])
        return Step(
            _numpy(query),
            _numpy(score),
            _numpy(exponential),
            float(exponential.sum()),
            _numpy(head.pattern(stream)[token]) * self.factor(block),
            norm / self.construction.bandwidth**2,
        )

    def _head(self, block: int) -> tuple[Attention, Stream]:
        head = self.model.blocks[block].attention
        # Its pattern is the same before the first block as where it stands.
        assert self.model.constant(head), "attention reads a channel that a block writes"
        return head, self.model.embed(self.problem)


def anatomy(settings: Settings, table: Table | None = None) -> Anatomy:
    """Take apart what ``settings`` describe, on the first prompt of the fan.

    Raises
    ------
    SettingsError
        What the data or the memory cannot give, or the transformer has no form for.
    """
    c = Construction.from_settings(settings, table)
    check(settings.but(prompts=1, methods=("transformer",)), 1)
    whole = sample(settings.but(prompts=1), table)
    problem, notices = _first(whole)
    n, q = problem.n_max, len(problem.x_query)
    at = places(problem)
    used = problem.used.numpy()
    kinds = ("sink", *np.where(used, "context", "masked").tolist(), *["query"] * q)
    distance = cdist(at, at, "sqeuclidean")
    logits = -distance[:, 1 : 1 + n][:, used] / (2 * c.bandwidth**2)
    context = 1 + np.flatnonzero(used)
    group = [["sink", "context", "masked", "query"].index(kind) for kind in kinds]
    order = np.lexsort((_ranks(at, context, logits), np.array(group)))
    inputs, labels, titles = _shown(settings, problem, at, context, table)
    return Anatomy(
        construction=c,
        model=build(c),
        problem=problem,
        kinds=kinds,
        order=order,
        distance=distance,
        log_degree=logsumexp(logits, axis=1),
        inputs=inputs,
        labels=labels,
        titles=titles,
        notices=notices,
    )


def places(problem: Problem) -> Float[np.ndarray, "tokens d"]:
    """Where each token of one prompt lies: the sink at x = 0, the context, the queries."""
    origin = np.zeros((1, problem.X.shape[1]))
    return np.concatenate([origin, problem.X.numpy(), problem.x_query.numpy()])


def _numpy(values: Tensor) -> np.ndarray:
    return values.double().numpy()


def _first(whole: Problem) -> tuple[Problem, tuple[str, ...]]:
    """The first prompt, cut to as many tokens as are looked into."""
    prompt = whole.pick((torch.tensor(0),))
    n, q = prompt.n_max, prompt.x_query.shape[-2]
    notices = tuple(
        f"{name}={size}: the first {most} are taken here, as if they were the whole prompt."
        for name, size, most in (("n", n, CONTEXT), ("queries", q, QUERIES))
        if size > most
    )
    cut = Problem(
        X=prompt.X[:CONTEXT],
        y=prompt.y[:CONTEXT],
        x_query=prompt.x_query[:QUERIES],
        count=prompt.count.clamp_max(CONTEXT),
        bandwidth=prompt.bandwidth,
        ridge=prompt.ridge,
        ridge_scale=prompt.ridge_scale,
        labels=None if prompt.labels is None else prompt.labels[:QUERIES],
    )
    return cut, notices


# Seriation. Of all ways to give each context token a number φ_i, with Σ D_i φ_i = 0 and
# Σ D_i φ_i² = 1, the one that makes Σ_ij K_ij (φ_i − φ_j)² least puts tokens that attend to each
# other side by side: φ = D^−½ v, v the eigenvector of D^−½KD^−½ for its second largest eigenvalue
# (the Fiedler vector of the graph with weights K). Another token stands where attention puts it,
# at Σ_j (D⁻¹K)_*j φ_j. Where φ does not tell tokens apart, the first principal coordinate does.


def _ranks(
    places: Float[np.ndarray, "tokens d"],
    context: np.ndarray,
    logits: Float[np.ndarray, "tokens n"],
) -> Tokens:
    """One number a token, by which it is ordered: x itself if d = 1, φ's rank otherwise.

    context : the indices of the context tokens; logits : −‖x_i − x_j‖²/2σ² to each of those
    """
    if places.shape[1] == 1:
        return places[:, 0]
    K = np.exp(logits[context])
    root = np.sqrt(K.sum(1))
    _, vectors = eigh(K / np.outer(root, root), subset_by_index=[len(K) - 2, len(K) - 2])
    phi = vectors[:, 0] / root
    spread = np.exp(log_softmax(logits, axis=1)) @ phi
    spread[context] = phi
    first = principal(places, context)[:, 0]
    # An eigenvector has no sign of its own.
    spread *= 1.0 if (phi - phi.mean()) @ first[context] >= 0 else -1.0
    ranks = np.empty(len(places))
    ranks[np.lexsort((first, (spread / np.abs(phi).max()).round(9)))] = np.arange(len(places))
    return ranks


def principal(
    places: Float[np.ndarray, "tokens d"], context: np.ndarray
) -> Float[np.ndarray, "tokens axes"]:
    """All tokens' first two principal coordinates of the context's inputs."""
    centred = places - places[context].mean(0)
    _, _, axes = np.linalg.svd(centred[context], full_matrices=False)
    axes *= np.where(axes[:, :1] < 0, -1.0, 1.0)
    flat = centred @ axes[:2].T
    # Two tokens span one axis only.
    return np.pad(flat, ((0, 0), (0, 2 - flat.shape[1])))


def _shown(
    settings: Settings,
    problem: Problem,
    places: Float[np.ndarray, "tokens d"],
    context: np.ndarray,
    table: Table | None,
) -> tuple[Float[np.ndarray, "tokens axes"], Tokens, tuple[str, ...]]:
    """Inputs, labels and titles as a person knows them."""
    known = problem.labels
    held = np.full(len(problem.x_query), math.nan) if known is None else known.numpy()
    y = np.concatenate([[math.nan], problem.y.numpy(), held])
    raw = None if settings.data == "gp" else table_of(settings, table)

    def title(name: str, unit: str) -> str:
        return f"{name} ({unit})" if unit else name

    if raw is None:
        y_title = "label y (standardised)"
    else:
        y, y_title = raw.y_raw(y), title(raw.target_name, raw.y_unit)
    if places.shape[1] > 1:
        flat = places.shape[1] == 2
        inputs = places.copy() if flat else principal(places, context)
        words = (
            ("x₁", "x₂") if flat else ("first principal coordinate", "second principal coordinate")
        )
        titles = ("a seriation of K", *words, y_title)
    else:
        inputs = places.copy() if raw is None else raw.x_raw(places)
        x_title = "input x" if raw is None else title(raw.input_names[0], raw.x_units[0])
        titles = (x_title, x_title, y_title)
    inputs[0] = math.nan
    return inputs, y, titles
