"""Tasks: prompts that depend on seed and number alone, with the statistics they promise."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics.pairwise import rbf_kernel

from krrviz import Problem, Settings, SettingsError, sample
from krrviz.settings import DATASETS
from krrviz.tables import Columns, Table, TableError, parse_csv, read_columns, shipped
from krrviz.tasks import dimension, input_bound, own_table, usable

INPUTS = ("uniform", "clumped", "gaussian")
SHIPPED = tuple(name for name, entry in DATASETS.items() if entry.rows)
OWN = parse_csv(b"a,b,y\n" + b"".join(b"%d,%d,%d\n" % (i, i * i, i % 7) for i in range(40)), "own")

# Every kind of prompt there is: small, and the table that it needs.
KINDS: dict[str, tuple[Settings, Table | None]] = {
    **{kind: (Settings(data="gp", inputs=kind, n=12, queries=5), None) for kind in INPUTS},
    **{name: (Settings(data=name, n=12, queries=5), None) for name in SHIPPED},
    "csv": (Settings(data="csv", n=12, queries=5), OWN),
}


def drawn(kind: str, **changes: Any) -> Problem:
    settings, table = KINDS[kind]
    return sample(settings.but(**changes), table)


def parts(problem: Problem) -> dict[str, torch.Tensor]:
    """The tensors that were drawn."""
    found = {name: getattr(problem, name) for name in ("X", "y", "x_query", "labels", "noiseless")}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def test_every_data_set_is_drawn_from() -> None:
    assert {settings.data for settings, _ in KINDS.values()} == set(DATASETS)


# -- what a prompt depends on -----------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_settings_give_the_same_prompts(kind: str) -> None:
    for first, second in zip(parts(drawn(kind)).values(), parts(drawn(kind)).values(), strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_has_the_shape_asked_for(kind: str) -> None:
    problem = drawn(kind, prompts=3, bandwidth=0.7, ridge=0.2)
    d = dimension(*KINDS[kind])
    assert problem.X.shape == (3, 12, d)
    assert problem.x_query.shape == (3, 5, d)
    assert problem.count.tolist() == [12] * 3
    assert (problem.bandwidth, problem.ridge, problem.ridge_scale) == (0.7, 0.2, "absolute")
    assert {tensor.dtype for tensor in parts(problem).values()} == {torch.float64}
    assert (problem.noiseless is None) == (KINDS[kind][0].data != "gp")


@pytest.mark.parametrize("kind", KINDS)
def test_seeds_and_prompts_differ(kind: str) -> None:
    first, second = drawn(kind), drawn(kind, seed=1)
    assert not torch.equal(first.X, second.X)
    everyone = torch.cat([first.y, second.y]).numpy()
    assert len(np.unique(everyone, axis=0)) == len(everyone)


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_does_not_depend_on_how_many_there_are(kind: str) -> None:
    few, many = parts(drawn(kind, prompts=2)), parts(drawn(kind, prompts=9))
    for name, tensor in few.items():
        assert torch.equal(many[name][:2], tensor)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [2, 13, 30])
def test_a_longer_context_only_adds_tokens(kind: str, n: int) -> None:
    short, long = parts(drawn(kind, n=2)), parts(drawn(kind, n=n))
    for name, tensor in short.items():
        size = tensor.shape[1]
        torch.testing.assert_close(long[name][:, :size], tensor, rtol=0, atol=1e-9)


def test_a_much_longer_context_only_adds_tokens() -> None:
    short = drawn("uniform", prompts=1, n=200, d=1, bandwidth=1.0)
    long = drawn("uniform", prompts=1, n=1500, d=1, bandwidth=1.0)
    torch.testing.assert_close(long.y[:, :200], short.y, rtol=0, atol=1e-7)


# -- Gaussian process draws -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("noise", [0.0, 0.1, 2.0])
def test_labels_have_variance_one_and_their_share_of_noise(kind: str, noise: float) -> None:
    problem = drawn(kind, prompts=256, n=2, queries=1, noise=noise, d=3)
    assert problem.noiseless is not None
    assert problem.labels is not None
    # One query a prompt, so 256 independent numbers: the standard error of a variance is .09.
    assert float(problem.labels.var()) == pytest.approx(1, abs=0.3)
    assert float(problem.noiseless.var()) == pytest.approx(1 / (1 + noise), abs=0.3)
    gap = (problem.labels - problem.noiseless) * np.sqrt(1 + noise)
    assert float(gap.var()) == pytest.approx(noise, rel=0.3, abs=1e-12)


def test_draws_are_normal_with_the_kernel_as_their_covariance() -> None:
    problem = drawn("uniform", prompts=200, n=2, queries=10, noise=0.0, bandwidth=0.4)
    assert problem.noiseless is not None
    whitened = []
    for p in range(200):
        x = problem.x_query[p].numpy()
        factor = np.linalg.cholesky(rbf_kernel(x, x, 1 / (2 * 0.4**2)) + 1e-10 * np.eye(10))
        whitened.append(np.linalg.solve(factor, problem.noiseless[p].numpy()))
    assert stats.kstest(np.ravel(whitened), "norm").pvalue > 1e-3
    assert np.abs(np.corrcoef(np.array(whitened).T) - np.eye(10)).max() < 0.3


def test_noise_is_independent_of_function_and_place() -> None:
    problem = drawn("uniform", prompts=256, n=2, queries=1, noise=1.0)
    assert problem.noiseless is not None
    assert problem.labels is not None
    noise = (problem.labels - problem.noiseless).flatten()
    places = problem.x_query[..., 0].flatten()
    table = torch.stack([noise, problem.noiseless.flatten(), places]).numpy()
    assert np.abs(np.corrcoef(table) - np.eye(3)).max() < 0.25  # four standard errors


@pytest.mark.parametrize("d", [1, 5])
def test_uniform_inputs_are_uniform_and_gaussian_ones_normal(d: int) -> None:
    uniform, normal = (
        drawn(kind, prompts=64, n=30, d=d).X.flatten().numpy() for kind in ("uniform", "gaussian")
    )
    assert stats.kstest(uniform, "uniform", args=(-1, 2)).pvalue > 1e-3
    assert stats.kstest(normal, "norm").pvalue > 1e-3


def test_crowds_and_loners_have_degrees_far_apart() -> None:
    def ratio(kind: str) -> float:
        degree = drawn(kind, prompts=32, n=96, d=2).degree
        return float((degree.amax(-1) / degree.amin(-1)).mean())

    assert ratio("clumped") > 2 * ratio("uniform")


def test_clumped_inputs_stay_in_the_cube() -> None:
    assert float(drawn("clumped", prompts=64, n=200).X.abs().max()) <= 1


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("bandwidth", [1e-3, 1e3])
def test_extreme_bandwidths_and_crowds_can_be_drawn(kind: str, bandwidth: float) -> None:
    problem = drawn(kind, prompts=1, n=900, d=1, bandwidth=bandwidth)
    assert bool(problem.y.isfinite().all())


# -- tables ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*SHIPPED, "csv"])
def test_prompts_hold_rows_of_the_table_and_no_row_twice(kind: str) -> None:
    settings, own = KINDS[kind]
    table = own or shipped(settings.data)
    rows = np.column_stack([table.X, table.y])
    problem = drawn(kind, n=30)
    for p in range(4):
        context = np.column_stack([problem.X[p].numpy(), problem.y[p].numpy()])
        labels = parts(problem)["labels"][p].numpy()
        held = np.concatenate([context, np.column_stack([problem.x_query[p].numpy(), labels])])
        kinds, table_counts = np.unique(rows, axis=0, return_counts=True)
        for row, count in zip(*np.unique(held, axis=0, return_counts=True), strict=True):
            # The data may hold a row twice; a prompt holds it no more often than the data.
            (at,) = np.flatnonzero((kinds == row).all(1))
            assert count <= table_counts[at]


def test_a_prompt_may_use_up_the_table() -> None:
    problem = drawn("csv", n=35)
    both = torch.cat([problem.X, problem.x_query], 1)[..., 0]
    assert torch.equal(both.sort(-1).values, torch.from_numpy(np.sort(OWN.X[:, 0])).expand(16, 40))


def test_more_rows_than_a_table_has_are_refused_with_its_name() -> None:
    with pytest.raises(SettingsError, match="n=36 with queries=5 needs 41 rows but own has 40"):
        drawn("csv", n=36)


def test_a_csv_needs_its_table() -> None:
    with pytest.raises(SettingsError, match="data=csv needs a file") as caught:
        sample(Settings(data="csv"))
    assert caught.value.fields == ("data",)


# -- what the construction is told ----------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("d", [1, 20])
def test_no_input_is_longer_than_the_bound(kind: str, d: int) -> None:
    settings, table = KINDS[kind]
    problem = drawn(kind, prompts=64, n=30, d=d)
    longest = float(torch.cat([problem.X, problem.x_query], 1).norm(dim=-1).max())
    assert longest <= input_bound(settings.but(d=d), table) * (1 + 1e-15)


@pytest.mark.parametrize("name", SHIPPED)
def test_the_bound_of_a_table_is_its_longest_row(name: str) -> None:
    wanted = np.sqrt((shipped(name).X ** 2).sum(1)).max()
    assert input_bound(KINDS[name][0]) == pytest.approx(wanted, rel=1e-15)


@pytest.mark.parametrize("kind", KINDS)
def test_a_named_bound_is_taken(kind: str) -> None:
    settings, table = KINDS[kind]
    assert input_bound(settings.but(input_bound=2.5), table) == 2.5


def test_dimensions_are_those_of_the_data() -> None:
    found = {kind: dimension(settings.but(d=7), table) for kind, (settings, table) in KINDS.items()}
    assert found == dict.fromkeys(INPUTS, 7) | {"motorcycle": 1, "co2": 1, "diabetes": 10, "csv": 2}


# -- a person's own file ----------------------------------------------------------------------


def columns_of(text: str) -> Columns:
    return read_columns(text.encode(), "own.csv")


def test_settings_choose_a_files_columns_by_number() -> None:
    columns = columns_of("a,name,b,c\n1,x,2,9\n2,y,5,3\n4,z,1,1\n7,w,8,2\n")
    table = own_table(columns, Settings(data="csv", target=1, columns="4,3"))
    assert (table.target_name, table.input_names) == ("a", ("c", "b"))
    for key in ("target=5", "columns=1,5"):
        told = f"{key.partition('=')[0]}=5: the file has 4 columns; allowed: 1 to 4"
        with pytest.raises(SettingsError, match=told):
            own_table(columns, Settings.from_query(f"data=csv&{key}"))
    with pytest.raises(SettingsError, match=f"file={'0' * 16}: this file's SHA-256 begins"):
        own_table(columns, Settings(data="csv", file="0" * 16))
    with pytest.raises(TableError, match=r"'name' holds text \('x'\)"):
        own_table(columns, Settings(data="csv", target=2))


@pytest.mark.parametrize(
    ("text", "target", "inputs"),
    [
        ("a,b\n1,2\n2,5\n3,1\n", "b", ("a",)),
        # the last column is constant: the one before it is the target
        ("a,b,c\n1,2,7\n2,5,7\n3,1,7\n", "b", ("a",)),
        # a column that is nearly empty leaves no complete rows: two others do
        ("a,s,b\n1,,2\n2,,5\n3,4,1\n", "b", ("a",)),
    ],
)
def test_the_first_choice_that_can_be_used_is_found(
    text: str, target: str, inputs: tuple[str, ...]
) -> None:
    choice, table = usable(columns_of(text))
    assert (table.target_name, table.input_names) == (target, inputs)
    again = own_table(columns_of(text), Settings(data="csv", **choice))
    np.testing.assert_array_equal(again.X, table.X)


def test_where_none_can_be_used_the_first_ones_reason_is_told() -> None:
    with pytest.raises(TableError, match="target 'b' is 7 in all rows"):
        usable(columns_of("a,b\n1,7\n1,7\n1,7\n"))
