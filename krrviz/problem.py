"""Problem: a padded batch of Gaussian kernel systems (K + rI)α = y, with their exact answers.

K_ij = exp(−‖x_i − x_j‖²/2σ²), r = λ (ridge scale ``absolute``) or nλ (``per_sample``, n the
prompt's own count). This file alone decides how λ scales.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from krrviz.kernel import HELD_BYTES, RANK, gaussian_kernel, partial_cholesky, tiled, times

# Where K is not held: how long is iterated for α*.
ITERATIONS = 200


@dataclass(frozen=True, eq=False)
class Problem:
    """A batch of prompts; prompt ``b`` uses the first ``count[b]`` of its N context slots.

    Parameters
    ----------
    X : (..., N, d) context inputs, in standardised units
    y : (..., N) labels, standardised; unused slots are set to 0
    x_query : (..., Q, d) query inputs
    count : (...) labelled tokens of each prompt, 1 to N
    bandwidth, ridge : σ > 0 and λ > 0
    ridge_scale : ``absolute`` or ``per_sample``
    noiseless, labels : (..., Q) at the queries: the drawn function, and the held-out labels;
        None where nobody knows them
    whole : the same prompts uncut, where this is ``prefixes`` of them: batch (...) is then
        (prefixes, ...), and K is theirs, formed once

    Unused slots get y = 0, identity rows in K and zeros in k_*, so that every method's α stays
    0 there and none of them needs to know about padding.

    Raises
    ------
    ValueError
        A shape that does not fit, a value that is not finite, a count outside 1 to N, a
        bandwidth or ridge that is not positive, or ``whole`` of other inputs, bandwidth or ridge.
    """

    X: Float[Tensor, "*batch N d"]
    y: Float[Tensor, "*batch N"]
    x_query: Float[Tensor, "*batch Q d"]
    count: Int[Tensor, "*batch"]
    bandwidth: float
    ridge: float
    ridge_scale: str = "absolute"
    noiseless: Float[Tensor, "*batch Q"] | None = None
    labels: Float[Tensor, "*batch Q"] | None = None
    whole: Problem | None = None

    def __post_init__(self) -> None:
        batch, n, d = self.X.shape[:-2], *self.X.shape[-2:]
        for name, tensor, shape in (
            ("y", self.y, (*batch, n)),
            ("x_query", self.x_query, (*batch, self.x_query.shape[-2], d)),
            ("count", self.count, batch),
        ):
            if tuple(tensor.shape) != tuple(shape):
                raise ValueError(
                    f"{name} has shape {tuple(tensor.shape)} but X is {tuple(self.X.shape)}: "
                    f"expected {tuple(shape)}"
                )
        for name in ("X", "y", "x_query"):
            if not bool(torch.isfinite(getattr(self, name)).all()):
                raise ValueError(f"{name} holds values that are not finite")
        for name in ("bandwidth", "ridge"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name}={value} must be a finite number above 0")
        if self.ridge_scale not in ("absolute", "per_sample"):
            raise ValueError(
                f"ridge_scale={self.ridge_scale!r} must be one of absolute, per_sample"
            )
        if bool((self.count < 1).any()) or bool((self.count > n).any()):
            raise ValueError(f"count must be 1 to {n}, the number of context slots")
        if self.whole is not None and not (
            (self.bandwidth, self.ridge, self.ridge_scale)
            == (self.whole.bandwidth, self.whole.ridge, self.whole.ridge_scale)
            and torch.equal(self.X[0], self.whole.X)
            and torch.equal(self.x_query[0], self.whole.x_query)
        ):
            raise ValueError(
                "whole has other inputs, another bandwidth or ridge; cut the prompts anew"
            )
        object.__setattr__(self, "y", self.y * self.used)

    # -- shapes and copies ----------------------------------------------------------------

    @property
    def n_max(self) -> int:
        """N, the number of context slots."""
        return self.X.shape[-2]

    @cached_property
    def used(self) -> Bool[Tensor, "*batch N"]:
        """True where a context slot holds a labelled token."""
        return torch.arange(self.n_max, device=self.X.device) < self.count[..., None]

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Problem:
        """This problem on another device and in another precision; itself where it is there."""
        if self.X.device == torch.device(device) and self.X.dtype == dtype:
            return self
        moved: dict[str, Tensor] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Tensor):
                kind = dtype if value.is_floating_point() else value.dtype
                moved[item.name] = value.to(device=device, dtype=kind)
        whole = None if self.whole is None else self.whole.to(device, dtype)
        return replace(self, **moved, whole=whole)

    def pick(self, index: tuple[Tensor, ...]) -> Problem:
        """Some prompts of the batch, by one index tensor for each batch dimension."""
        chosen = {
            item.name: value[index]
            for item in fields(self)
            if isinstance(value := getattr(self, item.name), Tensor)
        }
        return replace(self, **chosen, whole=None)

    def prefixes(self, counts: list[int]) -> Problem:
        """The same prompts cut to each of ``counts``: batch (len(counts), ...)."""
        lead = (len(counts), *self.count.shape)

        def repeated(value: Tensor | None) -> Tensor | None:
            return None if value is None else value.expand(len(counts), *value.shape)

        cut = torch.tensor(counts, device=self.X.device).view(-1, *[1] * self.count.ndim)
        return replace(
            self,
            X=repeated(self.X),
            y=repeated(self.y),
            x_query=repeated(self.x_query),
            count=cut.expand(lead).minimum(self.count.expand(lead)),
            noiseless=repeated(self.noiseless),
            labels=repeated(self.labels),
            # Prefixes of prefixes would have two lists of them.
            whole=self if self.whole is None else None,
        )

    def prefix(self, i: int) -> Problem:
        """The i-th of ``prefixes`` by itself, with its own matrices."""
        assert self.whole is not None, "these prompts are not prefixes"
        return replace(self.whole, y=self.y[i], count=self.count[i], whole=None)

    # -- the linear system ------------------------------------------------------------------

    @cached_property
    def K(self) -> Float[Tensor, "*batch N N"]:
        """Kernel matrix; identity rows and columns on unused slots."""
        if self.whole is None:
            K = gaussian_kernel(self.X, self.X, self.bandwidth)
            if bool(self.used.all()):
                return K
        else:
            K = self.whole.K
        pair = self.used[..., :, None] & self.used[..., None, :]
        eye = torch.eye(self.n_max, device=self.X.device, dtype=self.X.dtype)
        return torch.where(pair, K, eye)

    @cached_property
    def k_query(self) -> Float[Tensor, "*batch Q N"]:
        """k_*: kernel between queries and context; 0 on unused slots."""
        if self.whole is None:
            k = gaussian_kernel(self.x_query, self.X, self.bandwidth)
        else:
            k = self.whole.k_query
        return k * self.used[..., None, :]

    @cached_property
    def degree(self) -> Float[Tensor, "*batch N"]:
        """Row sums D_i = Σ_j K_ij, at least 1."""
        return self.image(torch.ones_like(self.y))

    @cached_property
    def query_degree(self) -> Float[Tensor, "*batch Q"]:
        """D_* = Σ_j k_*j."""
        return self.predict(torch.ones_like(self.y))

    @cached_property
    def r(self) -> Float[Tensor, "*batch 1"]:
        """What stands on the diagonal beside K: λ, or nλ."""
        scale = self.count if self.ridge_scale == "per_sample" else torch.ones_like(self.count)
        return self.ridge * scale[..., None].to(self.X.dtype)

    def preconditioner(self, sink: float | str = 0.0) -> Float[Tensor, "*batch N"]:
        """The diagonal of P = D + sI; ``ridge`` stands for s = r."""
        return self.degree + self.level(sink)

    def level(self, sink: float | str) -> Float[Tensor, "*batch 1"]:
        """s of each prompt: a number, or its r."""
        return self.r if isinstance(sink, str) else torch.full_like(self.r, sink)

    @property
    def A(self) -> Float[Tensor, "*batch N N"]:
        """K + rI; made anew at each call, since most methods need only ``apply``."""
        return self.K + torch.diag_embed(self.r.expand(self.y.shape))

    def image(self, v: Float[Tensor, "*lead N"]) -> Float[Tensor, "*lead N"]:
        """Kv, for one vector a prompt or more: (..., *batch, N).

        Where the prompts are prefixes, v is cut to each, multiplied by the one K of the uncut
        prompts, and cut again: one product with the prefixes as its columns.
        """
        uncut = self.whole or self
        if not uncut.held:
            product = tiled(uncut.X, uncut.X, self.bandwidth, v * self.used)
        elif self.whole is None:
            return times(self.K, v)
        else:
            product = times(uncut.K, v * self.used)
        return torch.where(self.used, product, v)

    @property
    def held(self) -> bool:
        """Whether K is small enough to be held, were it in float64."""
        return 8 * self.y[..., 0].numel() * self.n_max**2 <= HELD_BYTES

    def apply(self, alpha: Float[Tensor, "*lead N"]) -> Float[Tensor, "*lead N"]:
        """Aα = Kα + rα, for one α a prompt or more."""
        return self.image(alpha) + self.r * alpha

    def predict(self, alpha: Float[Tensor, "*lead N"]) -> Float[Tensor, "*lead Q"]:
        """f(x*) = k(x*)ᵀα, for one α a prompt or more."""
        if self.whole is None:
            return times(self.k_query, alpha)
        return times(self.whole.k_query, alpha * self.used)

    # -- the exact answer ---------------------------------------------------------------------

    @cached_property
    def factor(self) -> Float[Tensor, "*batch N N"] | None:
        """L of A = LLᵀ; None where rounding leaves some prompt's A without one."""
        factor, failed = torch.linalg.cholesky_ex(self.A)
        return None if bool(failed.any()) else factor

    @cached_property
    def alpha_star(self) -> Float[Tensor, "*batch N"]:
        """α* = A⁻¹y by Cholesky; where K is not held, by conjugate gradients.

        Where r is the same for every prefix, the leading block of L is the prefix's own factor:
        LLᵀα = y is solved for all of them at once, Lz = y and then Lᵀα = z, z cut to the prefix,
        which leaves α 0 beyond it. Otherwise each prefix has a factor of its own.

        Where rounding leaves A without a factor (duplicate rows and a ridge below rounding) the
        eigenvalues decide instead: K is positive semidefinite, so none of A's may lie below r.
        ``residual`` says how good the answer is.
        """
        if not (self.whole or self).held:
            return self._by_gradients()
        if self.whole is not None and self.ridge_scale == "absolute":
            factor = self.whole.factor
            if factor is not None:
                columns = self.y.movedim(0, -1)
                z = torch.linalg.solve_triangular(factor, columns, upper=False)
                z = z * self.used.movedim(0, -1)
                return torch.linalg.solve_triangular(factor.mT, z, upper=True).movedim(-1, 0)
        if self.whole is not None:
            return torch.stack([self.prefix(i).alpha_star for i in range(len(self.count))])
        if self.factor is not None:
            return torch.cholesky_solve(self.y[..., None], self.factor)[..., 0]
        values, vectors = torch.linalg.eigh(self.A)
        coefficients = (vectors.mT @ self.y[..., None])[..., 0] / values.maximum(self.r)
        return (vectors @ coefficients[..., None])[..., 0]

    def _by_gradients(self) -> Float[Tensor, "*batch N"]:
        """α* by conjugate gradients, preconditioned by a partial Cholesky factor of K.

        They stop at the last digits, or after ``ITERATIONS``; the iterate of the least residual is
        taken.

        K ≈ LLᵀ with N × rank L, rows of unused slots 0: M = LLᵀ + rI is inverted by

            M⁻¹v = (v − L(rI + LᵀL)⁻¹Lᵀv)/r.
        """
        uncut = self.whole or self
        L = partial_cholesky(uncut.X, self.bandwidth, min(RANK, self.n_max))
        eye = torch.eye(L.shape[-1]).to(L)

        def square(used: Tensor) -> Tensor:
            rows = L * used[..., None]
            return rows.mT @ rows

        squares = (
            square(self.used) if self.whole is None else torch.stack([*map(square, self.used)])
        )
        inner = torch.linalg.cholesky(squares + self.r[..., None] * eye)

        def preconditioned(v: Tensor) -> Tensor:
            small = torch.cholesky_solve(times(L.mT, v)[..., None], inner)[..., 0]
            return (v - times(L, small) * self.used) / self.r

        best = alpha = torch.zeros_like(self.y)
        residual = self.y
        least = residual.norm(dim=-1, keepdim=True)
        z = direction = preconditioned(residual)
        rz = (residual * z).sum(-1, keepdim=True)
        goal = 10 * torch.finfo(self.y.dtype).eps * least
        for _ in range(ITERATIONS):
            going = least > goal
            if not bool(going.any()):
                break
            image = self.apply(direction)
            length = torch.where(going, rz / (direction * image).sum(-1, keepdim=True), 0)
            alpha, residual = alpha + length * direction, residual - length * image
            norm = residual.norm(dim=-1, keepdim=True)
            best, least = torch.where(norm < least, alpha, best), norm.minimum(least)
            z = preconditioned(residual)
            new = (residual * z).sum(-1, keepdim=True)
            direction, rz = z + torch.where(going, new / rz, 0) * direction, new
        return best

    @cached_property
    def exact(self) -> Float[Tensor, "*batch Q"]:
        """The kernel ridge regression answer at the queries, k_*ᵀα*."""
        return self.predict(self.alpha_star)

    @cached_property
    def residual(self) -> Float[Tensor, "*batch"]:
        """‖y − Aα*‖/‖y‖: how well the direct solve solved; 0 where y is 0."""
        error = (self.y - self.apply(self.alpha_star)).norm(dim=-1)
        return error / self.y.norm(dim=-1).clamp_min(torch.finfo(self.y.dtype).tiny)
