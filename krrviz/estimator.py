"""TransformerKRR: the hand-built transformer behind scikit-learn's interface."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import torch

from krrviz.construction.predict import predict
from krrviz.construction.weights import Construction, build
from krrviz.machine import DTYPES, check, on_device
from krrviz.problem import Problem
from krrviz.settings import Settings, SettingsError, shown

try:
    from sklearn.base import BaseEstimator, RegressorMixin
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError("TransformerKRR needs scikit-learn: pip install 'krrviz[sklearn]'") from error

QUERIES = 1024  # in one forward call; also the most that settings allow
# Scores are differences of numbers as large as (‖x − x̄‖/σ)²: of one, this much may be rounded
# away, or ten roundings where that is more.
LOST = 1e-3


# Names without types: what scikit-learn passes on, it checks itself, and names in its own words.
class TransformerKRR(RegressorMixin, BaseEstimator):
    """Gaussian kernel ridge regression by a softmax transformer with hand-built weights.

    The training rows are the prompt. With more steps, and enough segments, predictions go to those
    of ``KernelRidge(alpha=ridge, kernel="rbf", gamma=1 / (2 * bandwidth**2))``; nothing is centred
    or scaled on the way, so scale inputs first where their units differ. Attention takes distances
    from dot products: its kernel keeps the digits of ``dtype`` less those of (‖x − mean‖/σ)².

    Parameters
    ----------
    bandwidth : σ, in the inputs' units
    ridge : λ, added to the kernel's diagonal
    steps, segments, layout, product, update, sink, dtype, device : see ``Settings``

    Attributes
    ----------
    X_fit_, y_fit_ : (rows, d) and (rows,) what was learned from, at most 16384 rows
    settings_ : the parameters, checked
    n_features_in_, feature_names_in_ : as in scikit-learn
    """

    def __init__(
        self,
        bandwidth=1.0,
        ridge=0.1,
        steps=64,
        segments=128,
        layout="paper",
        product="balanced",
        update="richardson",
        sink: Any = 0.0,  # a number or "ridge"
        dtype="float64",
        device="auto",
    ) -> None:
        self.bandwidth = bandwidth
        self.ridge = ridge
        self.steps = steps
        self.segments = segments
        self.layout = layout
        self.product = product
        self.update = update
        self.sink = sink
        self.dtype = dtype
        self.device = device

    def fit(self, X, y):
        """Check the parameters and keep X (rows, d) and y (rows,).

        Raises
        ------
        SettingsError
            A parameter out of its range, or more rows than this machine has the memory for.
        ValueError
            Arrays that scikit-learn refuses.
        """
        checked: Any = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        X, y = checked
        given = {}
        for name, value in self.get_params().items():
            plain = value.item() if isinstance(value, np.generic) else value  # from a grid
            try:
                given[name] = Settings.table()[name].rule.check(plain)
            except ValueError as error:
                raise SettingsError(f"{name}={shown(value)} {error}", name) from None
        size = {"n": max(2, len(X)), "d": min(X.shape[1], 50)}  # d only for memory
        settings = Settings(
            data="csv", prompts=1, queries=1, methods=("transformer",), **size, **given
        )
        check(settings, 1)
        self.settings_, self.X_fit_, self.y_fit_ = settings, X, y.astype(np.float64)
        return self

    def predict(self, X):
        """What the transformer answers at X (rows, d), 1024 rows in one forward call: (rows,).

        Raises
        ------
        SettingsError
            More than this machine has the memory for, or weights that ``dtype`` cannot hold.
        ValueError
            Arrays that scikit-learn refuses, or no ``fit`` before; a row so many bandwidths from
            the others that ``dtype`` cannot hold the scores' differences.
        """
        check_is_fitted(self)
        asked: Any = validate_data(self, X, reset=False, dtype=np.float64)
        s = self.settings_.but(queries=min(len(asked), QUERIES))
        check(s, 1)
        # k(x − c, x' − c) = k(x, x'): near the origin the dot products lose the fewest digits. The
        # answer is linear in y: labels of size 1 at most fit one bound, exactly.
        centre = self.X_fit_.mean(axis=0)
        context, queries = torch.from_numpy(self.X_fit_ - centre), torch.from_numpy(asked - centre)
        scale = np.abs(self.y_fit_).max() or 1.0
        farthest = float(torch.cat([context, queries]).norm(dim=1).max())
        eps = torch.finfo(DTYPES[s.dtype]).eps
        most = s.bandwidth * math.sqrt(max(LOST, 10 * eps) / eps)
        if not farthest <= most:  # nor may it be no number
            raise ValueError(
                f"X: a row lies {farthest:.3g} from the mean of the training rows; with "
                f"bandwidth={s.bandwidth:g} and dtype={s.dtype} scores keep their digits up to "
                f"{most:.3g}; scale the inputs or choose a wider bandwidth"
            )
        construction = Construction(
            d=context.shape[1],
            n_max=len(context),
            bandwidth=s.bandwidth,
            ridge=s.ridge,
            steps=s.steps,
            segments=s.segments,
            input_bound=farthest or 1.0,
            label_bound=1.0,
            layout=s.layout,
            product=s.product,
            update=s.update,
            sink=s.sink,
            dtype=DTYPES[s.dtype],
        )

        def answers(device: torch.device) -> torch.Tensor:
            model = build(construction).to(device)
            labels, count = torch.from_numpy(self.y_fit_ / scale), torch.tensor(len(context))
            problems = (
                Problem(context, labels, part, count, s.bandwidth, s.ridge)
                for part in queries.split(QUERIES)
            )
            return torch.cat([predict(model, p).predictions[-1].cpu() for p in problems])

        found, notice = on_device(s, answers)
        if notice:
            warnings.warn(notice, stacklevel=2)
        return found.double().numpy() * scale
