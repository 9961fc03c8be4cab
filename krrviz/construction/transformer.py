"""Transformer: plain softmax attention and ReLU MLPs in a residual stream, and how to run them.

Nothing here knows about kernels: what the stack computes is decided by its weights alone
(``weights.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from krrviz.construction.slots import Slots
from krrviz.problem import Problem
from krrviz.trajectory import Trajectory

Stream = Float[Tensor, "*batch tokens channels"]
Pattern = Float[Tensor, "*batch tokens tokens"]


def fixed(weight: Tensor) -> nn.Parameter:
    """A weight that is set, not trained."""
    return nn.Parameter(weight.contiguous(), requires_grad=False)


class Attention(nn.Module):
    """One softmax head: softmax(W_Q h · W_K h) W_V h, written back by W_O.

    The usual 1/√d_k is folded into W_Q. There is no mask: keys are hidden by their logits.
    """

    def __init__(self, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor) -> None:
        super().__init__()
        self.w_q, self.w_k, self.w_v, self.w_o = (fixed(w) for w in (w_q, w_k, w_v, w_o))

    @property
    def idle(self) -> bool:
        """Whether it writes nothing, whatever it attends to."""
        return not bool(self.w_v.any() and self.w_o.any())

    def pattern(self, stream: Stream) -> Pattern:
        """The attention weights; rows (queries) sum to 1."""
        logits = (stream @ self.w_q.mT) @ (stream @ self.w_k.mT).mT
        return logits.softmax(-1)

    def forward(self, stream: Stream, pattern: Pattern | None = None) -> Stream:
        """What this head adds to the stream; ``pattern`` may be given where it is known."""
        pattern = self.pattern(stream) if pattern is None else pattern
        return (pattern @ (stream @ self.w_v.mT)) @ self.w_o.mT


class MLP(nn.Module):
    """One hidden ReLU layer, token by token: W_2 relu(W_1 h + b_1)."""

    def __init__(self, w_1: Tensor, b_1: Tensor, w_2: Tensor) -> None:
        super().__init__()
        self.w_1, self.b_1, self.w_2 = (fixed(w) for w in (w_1, b_1, w_2))

    def forward(self, stream: Stream) -> Stream:
        """What this layer adds to the stream."""
        return (stream @ self.w_1.mT + self.b_1).relu() @ self.w_2.mT


class Hinges:
    """The same function as an :class:`MLP`, without its hidden layer.

    Hidden units whose rows of W_1 are equal read the same number s = w·h and differ in where
    they switch on: together they are one piecewise linear function of s. With thresholds sorted,
    the units that are on are the first k, and

        Σ_{h ≤ k} v_h (s − t_h) = s·V_k − T_k,   V_k = Σ_{h ≤ k} v_h,   T_k = Σ_{h ≤ k} v_h t_h,

    so one search replaces all of them; where the thresholds lie at equal distances, a division.
    The dense module stays the definition.
    """

    def __init__(self, mlp: MLP) -> None:
        self.channels: list[int] = []
        w_1, b_1, w_2 = mlp.w_1.double(), mlp.b_1.double(), mlp.w_2.double()
        rows, group, size = torch.unique(w_1, dim=0, return_inverse=True, return_counts=True)
        crowds = torch.nonzero(size > 4).flatten().tolist()
        lone = ~torch.isin(group, torch.tensor(crowds, device=group.device, dtype=group.dtype))
        like = mlp.w_1
        # s·V_k − T_k cancels, as a sum of positive terms does not: half precision is widened.
        self.wide = wide = torch.promote_types(like.dtype, torch.float32)
        lone &= w_2.any(0)
        self.rest = MLP(mlp.w_1[lone], mlp.b_1[lone], mlp.w_2[:, lone]) if lone.any() else None
        # One function for every channel that a crowd writes to. All have as many thresholds as
        # the largest crowd; those beyond their own are never reached.
        most = max((int(size[g]) for g in crowds), default=0)
        functions = []
        for g in crowds:
            on = torch.nonzero(group == g).flatten()
            spare = most - len(on)
            threshold, order = (-b_1[on]).sort()
            for channel in w_2[:, on].any(1).nonzero().flatten().tolist():
                v = w_2[channel, on[order]]
                sums = [pad(x, (1, spare)).cumsum(0) for x in (v, v * threshold)]
                functions.append((rows[g], pad(threshold, (0, spare), value=torch.inf), *sums))
                self.channels.append(channel)
        if not functions:
            return
        directions, thresholds, slopes, offsets = map(torch.stack, zip(*functions, strict=True))
        self.directions, self.thresholds = directions.to(like), thresholds.to(wide)
        # The functions' tables end to end.
        self.slopes, self.offsets = (x.to(wide).flatten() for x in (slopes, offsets))
        self.starts = (most + 1) * torch.arange(len(functions), device=w_1.device)[:, None]
        # The functions are continuous: within rounding of a threshold either side will do.
        first, gap = thresholds[:, :1], (thresholds[:, -1:] - thresholds[:, :1]) / (most - 1)
        off = (first + gap * torch.arange(most, device=w_1.device) - thresholds).abs()
        even = off <= 2 * torch.finfo(like.dtype).eps * thresholds.abs().amax(1, keepdim=True)
        self.even = (first.to(wide), gap.to(wide)) if bool(even.all() and gap.all()) else None

    def __call__(self, stream: Stream) -> Stream:
        """What the layer adds to the stream."""
        columns = stream.reshape(-1, stream.shape[-1]).mT.contiguous()
        added = torch.zeros_like(columns)
        self.add(columns, added)
        return added.mT.reshape(stream.shape)

    def add(
        self, stream: Float[Tensor, "channels tokens"], to: Float[Tensor, "channels tokens"]
    ) -> None:
        """Add what the layer makes of ``stream`` to ``to``, which may be the same.

        A channel's values lie together here.
        """
        sums = self._sums(stream)
        if self.rest is not None:
            # W_2 relu(W_1 h + b_1), token by column
            hidden = torch.addmm(self.rest.b_1[:, None], self.rest.w_1, stream).relu_()
            to.addmm_(self.rest.w_2, hidden)
        for channel, value in zip(self.channels, sums, strict=True):
            to[channel] += value.to(to)

    def _sums(self, stream: Float[Tensor, "channels tokens"]) -> Sequence[Tensor]:
        """What each function makes of each token."""
        if not self.channels:
            return ()
        s = (self.directions @ stream).to(self.wide)
        if self.even is None:
            k = torch.searchsorted(self.thresholds, s)
        else:
            first, gap = self.even
            k = ((s - first) / gap).ceil_().clamp_(0, self.thresholds.shape[1]).nan_to_num_().long()
        at = (k + self.starts).flatten()
        # index_select is several times as fast as slopes[at].
        slope, offset = (x.index_select(0, at).view_as(s) for x in (self.slopes, self.offsets))
        return s.mul_(slope).sub_(offset).unbind()


class Block(nn.Module):
    """Attention, then MLP, each added to the stream."""

    attention: Attention
    mlp: MLP

    def __init__(self, attention: Attention, mlp: MLP) -> None:
        super().__init__()
        self.attention, self.mlp = attention, mlp

    def forward(self, stream: Stream) -> Stream:
        stream = stream + self.attention(stream)
        return stream + self.mlp(stream)


class Transformer(nn.Module):
    """A stack of blocks with fixed weights; the last block reads the answer out.

    ``updates`` are the blocks after which the state has taken its steps 0, 1, 2, …; reading out
    there instead of at the end is the same transformer with fewer blocks.
    """

    blocks: Sequence[Block]

    def __init__(self, slots: Slots, blocks: list[Block], updates: range, n_max: int) -> None:
        super().__init__()
        self.slots, self.updates, self.n_max = slots, updates, n_max
        # Updates share their weights, so one module may stand in many places.
        self.blocks = cast("Sequence[Block]", nn.ModuleList(blocks))

    def forward(self, stream: Stream) -> Stream:
        """The whole stack, block by block; what ``run`` and ``predict.predict`` must agree with."""
        for block in self.blocks:
            stream = block(stream)
        return stream

    @property
    def weight(self) -> Tensor:
        """Any weight: its dtype and device are the model's."""
        return next(self.parameters())

    def embed(self, problem: Problem) -> Stream:
        """Tokens: one sink, N context slots, Q queries; unused slots are masked.

        Raises
        ------
        ValueError
            The problem has another input dimension or more context slots than the weights
            were built for.
        """
        if problem.X.shape[-1] != self.slots.d:
            raise ValueError(
                f"inputs have d={problem.X.shape[-1]} but the weights are for d={self.slots.d}"
            )
        if problem.n_max > self.n_max:
            raise ValueError(f"N={problem.n_max} but the weights are for N up to {self.n_max}")
        problem = problem.to(self.weight.device, self.weight.dtype)
        n, batch, at = problem.n_max, problem.count.shape, self.slots.index
        tokens = 1 + n + problem.x_query.shape[-2]
        stream = self.weight.new_zeros(*batch, tokens, len(self.slots))
        stream[..., 1 : 1 + n, : self.slots.d] = problem.X
        stream[..., 1 + n :, : self.slots.d] = problem.x_query
        stream[..., at["half_sq_norm"]] = stream[..., : self.slots.d].square().sum(-1) / 2
        stream[..., 1 : 1 + n, at["y"]] = problem.y
        stream[..., at["one"]] = 1
        stream[..., at["mask"]] = 1
        stream[..., 1 : 1 + n, at["mask"]] = (~problem.used).to(stream)
        stream[..., 0, at["sink"]] = 1
        if "count" in self.slots:
            stream[..., 0, at["count"]] = problem.count.to(stream)
            stream[..., 0, at["log_count"]] = problem.count.double().log().to(stream)
        return stream

    def constant(self, attention: Attention) -> bool:
        """Whether an attention reads, for its pattern, only channels that no block writes.

        Then the pattern is the same wherever that attention stands. Read off the weights.
        """
        read = attention.w_q.any(0) | attention.w_k.any(0)
        written = torch.stack(
            [block.attention.w_o.any(1) | block.mlp.w_2.any(1) for block in set(self.blocks)]
        ).any(0)
        return not bool((read & written).any())


@dataclass(frozen=True, eq=False)
class Pass:
    """One forward call, all of it.

    stream : the residual stream before the first block and after each
    attention : each block's pattern; None where the block is idle. Equal patterns are one tensor.
    trajectory : the state, α or fitted values, and the answer after each update
    """

    stream: Float[Tensor, "levels *batch tokens channels"]
    attention: tuple[Tensor | None, ...]
    trajectory: Trajectory


class Forward:
    """A forward call in progress; what the weights make constant is computed once."""

    def __init__(self, model: Transformer, problem: Problem) -> None:
        self.model, self.stream = model, model.embed(problem)
        self.context = slice(1, 1 + problem.n_max)
        # The state of an unused slot is nobody's; nα is reported as α.
        self.used = problem.used.to(self.stream)
        if "count" in model.slots and model.slots.state == "alpha":
            self.used = self.used / problem.count[..., None].to(self.stream)
        self.hinges = {mlp: Hinges(mlp) for mlp in {block.mlp for block in model.blocks}}
        self.constant = {a: model.constant(a) for a in {block.attention for block in model.blocks}}
        self.known: dict[Attention, Pattern] = {}

    def pattern(self, attention: Attention) -> Pattern | None:
        """Its weights on the stream as it stands; None where it is idle."""
        if attention.idle:
            return None
        if attention in self.known:
            return self.known[attention]
        pattern = attention.pattern(self.stream)
        if self.constant[attention]:
            self.known[attention] = pattern
        return pattern

    def advance(self, block: Block) -> Pattern | None:
        """Run one block; its pattern."""
        pattern = self.pattern(block.attention)
        self.stream = self.after(block, pattern)
        return pattern

    def after(self, block: Block, pattern: Pattern | None) -> Stream:
        """The stream after a block."""
        stream = self.stream
        if pattern is not None:
            stream = stream + block.attention(stream, pattern)
        return stream + self.hinges[block.mlp](stream)

    def read_out(self) -> tuple[Tensor, Tensor]:
        """What the last block would answer at the queries if it came now; and the state."""
        slots, last = self.model.slots, self.model.blocks[-1]
        stream = self.after(last, self.pattern(last.attention))
        # Copies: a view would keep each step's whole stream alive.
        return (
            stream[..., self.context.stop :, slots.index["f"]].clone(),
            stream[..., self.context, slots.index[slots.state]] * self.used,
        )


@torch.no_grad()
def run(model: Transformer, problem: Problem) -> Pass:
    """One forward call with every block's stream and attention kept."""
    forward = Forward(model, problem)
    stream, attention, steps = [forward.stream], [], []
    for index, block in enumerate(model.blocks):
        attention.append(forward.advance(block))
        stream.append(forward.stream)
        if index in model.updates:
            steps.append(forward.read_out())
    return Pass(torch.stack(stream), tuple(attention), trajectory_of(steps))


def trajectory_of(steps: list[tuple[Tensor, Tensor]]) -> Trajectory:
    """Answers and states, step by step, as a trajectory."""
    answers, alphas = zip(*steps, strict=True)
    return Trajectory("transformer", torch.stack(answers), torch.stack(alphas))
