"""Predict: what ``transformer.run`` answers, without what nobody reads.

A forward pass holds a pattern of tokens × tokens for every prompt and every prefix of it. Its
answers need less, and what is left out is found from the weights and the logits:

- A masked key weighs exactly 0. Unused slots are therefore left out, and query tokens too unless
  the last block reads at them what other blocks wrote.
- Where an attention reads only channels that no block writes, its logits are those of the stream as
  it is embedded. Those of a prompt's tokens do not depend on the prefix, so with m_i the largest
  logit of row i

      Σ_j softmax_j v_j = (Σ_j E_ij v_j + e_i v_sink)/(Σ_j E_ij + e_i),

  E_ij = exp(logit_ij − m_i), j over the prefix's tokens, e_i the sink's own: one E serves every
  prefix, as one product whose columns are the prefixes' values. It is formed once, or, where it is
  large, tile by tile and never held.
- The read-out is asked for once, for all steps.

Where one of this does not hold, as of a stack that was broken on purpose or in half precision, the
dense pass answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from krrviz.construction.transformer import Attention, Forward, Hinges, Transformer, trajectory_of
from krrviz.kernel import TILE_BYTES, times
from krrviz.machine import CHUNK_BYTES, room
from krrviz.problem import Problem
from krrviz.trajectory import Trajectory

Told = Callable[[float], None]


@torch.no_grad()
def predict(model: Transformer, problem: Problem, progress: Told = lambda done: None) -> Trajectory:
    """The trajectory of ``run``; ``progress`` is called before each update with the share done.

    Raises
    ------
    ValueError
        The problem has another input dimension or more context slots than the weights were built
        for.
    SettingsError
        The dense pass is needed and its patterns need more memory than there is.
    """
    try:
        return Packed(model, problem.to(model.weight.device, model.weight.dtype)).run(progress)
    except _NeedsAllError:
        return dense(model, problem, progress)


@torch.no_grad()
def dense(model: Transformer, problem: Problem, progress: Told = lambda done: None) -> Trajectory:
    """The trajectory of ``run`` alone: no stream is kept, and no pattern of a past block.

    Raises
    ------
    SettingsError
        Two patterns and their logits need more memory than there is.
    """
    tokens = 1 + problem.n_max + problem.x_query.shape[-2]
    size = 3 * problem.count.numel() * tokens**2 * model.weight.element_size()
    room(size, f"n={problem.n_max} in a pass with every pattern", "n")
    forward, steps = Forward(model, problem), []
    for index, block in enumerate(model.blocks[:-1]):
        forward.advance(block)
        if index in model.updates:
            progress(len(steps) / len(model.updates))
            steps.append(forward.read_out())
    return trajectory_of(steps)


class _NeedsAllError(Exception):
    """The answers may depend on what would be left out."""


def _ensure(holds: bool) -> None:
    if not holds:
        raise _NeedsAllError


class Head:
    """One attention on rows that all prefixes share: E, the sink's e, and their sums."""

    def __init__(self, attention: Attention, packed: Packed, rows: slice) -> None:
        whole, sinks, used = packed.whole, packed.sinks, packed.used
        context = slice(1, 1 + used.shape[-1])
        slots = packed.model.slots
        self.q = whole[..., rows, :] @ attention.w_q.mT
        keys = whole[..., context, :]
        self.k = keys @ attention.w_k.mT
        lowest = torch.finfo(whole.dtype)
        sink = times(self.q, sinks @ attention.w_k.mT)
        lead = sink.ndim - self.q.ndim + 1
        self.most = sink.amax(tuple(range(lead))) if lead else sink.clone()
        for part in self._tiles():
            largest = (self.q[..., part, :] @ self.k.mT).amax(-1)
            self.most[..., part] = self.most[..., part].maximum(largest)
        # A key is hidden where its exponential is 0 whatever row's maximum is taken from it.
        hidden, far = keys.clone(), 3 * math.log(lowest.tiny)
        hidden[..., slots.index["mask"]] = 1
        step = (hidden - keys) @ attention.w_k.mT
        others = whole[..., context.stop :, :] @ attention.w_k.mT
        _ensure(bool((self.q @ step[..., :1, :].mT < far).all()))
        _ensure(bool((self.q @ others.mT - self.most[..., None] < far).all()))
        self.E = None
        if 8 * self.most.numel() * used.shape[-1] <= CHUNK_BYTES:
            self.E = (self.q @ self.k.mT).sub_(self.most[..., None]).exp_()
        self.e = (sink - self.most).exp()
        self.sums = self.summed(used.to(whole)) + self.e
        # Terms lost to underflow are then below rounding.
        _ensure(bool((self.sums > lowest.tiny / lowest.eps).all()))

    def __call__(
        self, context: Float[Tensor, "*lead N"], sink: Float[Tensor, "*lead"]
    ) -> Float[Tensor, "*lead rows"]:
        """The average of values at the used context, 0 elsewhere, and at the sink."""
        return (self.summed(context) + self.e * sink[..., None]) / self.sums

    def summed(self, values: Float[Tensor, "*lead N"]) -> Float[Tensor, "*lead rows"]:
        """Σ_j E_ij v_j."""
        if self.E is not None:
            return times(self.E, values)
        out = values.new_empty(*values.shape[: values.ndim - self.q.ndim + 1], *self.most.shape)
        for rows in self._tiles():
            tile = self.q[..., rows, :] @ self.k.mT
            out[..., rows] = times(tile.sub_(self.most[..., rows, None]).exp_(), values)
        return out

    def _tiles(self) -> Iterator[slice]:
        """Rows whose logits stay in a core's cache. What is made of them is filled in place: parts
        kept between tiles would leave the heap in pieces."""
        size = max(1, TILE_BYTES // (self.k[..., 0].numel() * self.k.element_size()))
        return (slice(at, at + size) for at in range(0, self.q.shape[-2], size))


class Packed:
    """A forward call over the tokens that matter: the stream is (channels, tokens of all prompts).

    whole : the uncut prompts as embedded; sinks : each prefix's sink token
    """

    whole: Float[Tensor, "*core tokens channels"]
    sinks: Float[Tensor, "*batch channels"]
    used: Bool[Tensor, "*batch N"]
    at: Int[Tensor, " live"]

    def __init__(self, model: Transformer, problem: Problem) -> None:
        last, f = model.blocks[-1], model.slots.index["f"]
        self.model, self.problem, self.used = model, problem, problem.used
        attentions = {b.attention for b in model.blocks if not b.attention.idle}
        _ensure(model.weight.dtype in (torch.float32, torch.float64))
        # Another kind of attention may have other weights than softmax's.
        _ensure(all(type(a) is Attention and model.constant(a) for a in attentions))
        # Whether query tokens take part: what the last MLP reads there may have been written.
        self.listening = bool(last.mlp.w_2.any())
        _ensure(not self.listening or last.attention.idle)
        _ensure(
            self.listening
            or not any((b.attention.w_o[f].any() | b.mlp.w_2[f].any()) for b in model.blocks[:-1])
        )
        n, stream = problem.n_max, model.embed(problem)
        self.whole = stream if problem.whole is None else model.embed(problem.whole)
        self.sinks = stream[..., 0, :]
        tokens = stream.shape[-2] if self.listening else 1 + n
        live = torch.ones(*self.used.shape[:-1], tokens, dtype=torch.bool, device=stream.device)
        live[..., 1 : 1 + n] = self.used
        self.shape, self.at = live.shape, live.flatten().nonzero()[:, 0]
        self.stream = stream[..., :tokens, :][live].mT.contiguous()
        self.hinges = {mlp: Hinges(mlp) for mlp in {block.mlp for block in model.blocks}}
        self.heads = {
            attention: Head(attention, self, slice(1, tokens))
            for attention in {b.attention for b in model.blocks[:-1] if not b.attention.idle}
        }
        self.own = {attention: self._sink_row(attention) for attention in self.heads}

    def run(self, progress: Told) -> Trajectory:
        """Block by block; states, and what the read-out reads, are kept at every update."""
        model, slots, last = self.model, self.model.slots, self.model.blocks[-1]
        states, read = [], []
        for index, block in enumerate(model.blocks[:-1]):
            if block.attention in self.heads:
                self._attend(block.attention)
            self.hinges[block.mlp].add(self.stream, self.stream)
            if index in model.updates:
                progress(len(states) / len(model.updates))
                states.append(self.stream[slots.index[slots.state]].clone())
                if self.listening:
                    after = self.stream.clone()
                    self.hinges[last.mlp].add(after, after)
                    read.append(after[slots.index["f"]])
                else:
                    read.append(last.attention.w_v @ self.stream)
        n = self.problem.n_max
        state = self._spread(torch.stack(states))[..., 1 : 1 + n]
        if "count" in slots and slots.state == "alpha":
            state = state / self.problem.count[..., None].to(state)
        values = self._spread(torch.stack(read))
        if self.listening:
            answers = values[..., 1 + n :]
        else:
            head = Head(last.attention, self, slice(1 + n, None))
            found = head(values[..., 1 : 1 + n], values[..., 0])
            answers = torch.einsum("h,th...->t...", last.attention.w_o[slots.index["f"]], found)
        return trajectory_of(list(zip(answers, state, strict=True)))

    def _attend(self, attention: Attention) -> None:
        """Add what a head writes to the stream."""
        n = self.problem.n_max
        values = self._spread(attention.w_v @ self.stream)
        context, sink = values[..., 1 : 1 + n], values[..., 0]
        mine = (self.own[attention][..., 1:] * context).sum(-1)
        mine = mine + self.own[attention][..., 0] * sink
        rows = torch.cat([mine[..., None], self.heads[attention](context, sink)], -1)
        self.stream.addmm_(attention.w_o, rows.flatten(1)[:, self.at])

    def _sink_row(self, attention: Attention) -> Float[Tensor, "*batch keys"]:
        """The sink token's own weights: of each prefix by itself, for want of a common maximum."""
        q = self.sinks @ attention.w_q.mT
        context = times(self.heads[attention].k, q).masked_fill(~self.used, -torch.inf)
        own = (q * (self.sinks @ attention.w_k.mT)).sum(-1, keepdim=True)
        return torch.cat([own, context], -1).softmax(-1)

    def _spread(self, values: Float[Tensor, "*lead live"]) -> Float[Tensor, "*lead *batch tokens"]:
        """Values of the tokens that matter at their places; 0 elsewhere."""
        lead = values.shape[:-1]
        spread = values.new_zeros(*lead, self.shape.numel())
        spread[..., self.at] = values
        return spread.view(*lead, *self.shape)
