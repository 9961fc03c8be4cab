"""The page on trained models, topic by topic, for small models of a person's own."""

import json
from typing import Any

import pytest
import torch
from streamlit.testing.v1 import AppTest

from krrviz import Settings
from krrviz.settings import SettingsError, View
from krrviz.trained.abroad import live
from krrviz.trained.gpt import GPT, Shape, digest, shape_card
from krrviz.trained.inside import heads
from krrviz.trained.prompts import Task, draw
from krrviz.trained.train import Recipe

SETTINGS = Settings(n=6, prompts=2, queries=3, steps=3)


def own(kernel: str, layout: str) -> tuple[GPT, dict[str, Any]]:
    """A model of one layer that has learnt nothing, and its card."""
    torch.manual_seed(0)
    shape = Shape(d=1, n=4, layers=1, width=16, heads=2, layout=layout)
    model = GPT(shape).eval()
    recipe = Recipe(shape=shape, task=Task(d=1, n=4, kernel=kernel), warm_up=2, steps=20)
    figures = {"loss": 1.0, "gap_to_krr": 0.9, "excess_error": 0.1}
    card = {
        "shape": shape_card(shape), "recipe": recipe.card(), "steps": 20, "figures": figures,
        "sha256": digest(model.state_dict()),
    }  # fmt: skip
    return model, json.loads(json.dumps(card))


def shown(model: tuple[GPT, dict[str, Any]], **look: Any) -> AppTest:
    """The page, as it is drawn of ``model``."""

    def page() -> None:
        import streamlit as st

        from krrviz.ui import trained

        trained.show(st.session_state.settings)

    test = AppTest.from_function(page, default_timeout=60)
    view = View(model="own", asked=64, **look)
    for name, value in {"own": model, "settings": SETTINGS, "view": view, "problems": ()}.items():
        test.session_state[name] = value
    return test.run()


@pytest.mark.parametrize("study", ["fan", "operator", "heads", "controls", "beyond", "yours"])
@pytest.mark.parametrize(("kernel", "layout"), [("gaussian", "interleaved"), ("linear", "pairs")])
def test_a_model_of_one_layer_is_shown_or_says_what_cannot_be(
    kernel: str, layout: str, study: str
) -> None:
    test = shown(own(kernel, layout), study=study)
    assert not test.exception
    told = [error.value.replace("\\", "") for error in test.error]  # Markdown's signs are escaped
    refused = kernel == "linear" and study in ("fan", "operator")
    assert told == (["D⁻¹ has no meaning for the linear kernel's row sums."] if refused else [])


def test_a_layer_beyond_the_last_is_told_with_the_true_number() -> None:
    test = shown(own("gaussian", "pairs"), study="heads", layer=128)
    assert not test.exception
    wanted = "layer=128: the model has 1 layers; 1 is the last and is shown."
    assert [warning.value for warning in test.warning] == [wanted]


def test_the_same_weights_with_another_task_or_attention_are_another_model() -> None:
    model, card = own("gaussian", "pairs")
    first = shown((model, card), study="controls").caption[-1].value
    other = json.loads(json.dumps(card))
    other["recipe"]["task"]["ridge"] = [5.0, 5.0]
    assert shown((model, other), study="controls").caption[-1].value != first


def test_a_models_part_in_your_prompts_is_held_to_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KRRVIZ_MAX_MEMORY", "0.00001")
    model, card = own("gaussian", "interleaved")
    with pytest.raises(SettingsError, match="n=6, prompts=2 for this model would need about"):
        live(model, card, SETTINGS)


def test_signed_weights_have_shares_between_0_and_1() -> None:
    torch.manual_seed(0)
    model = GPT(Shape(d=1, n=6, layers=2, width=16, heads=2, attention="linear"))
    found = heads(model, draw(Task(d=1, n=6), 4, torch.Generator().manual_seed(0)))
    assert ((found.share >= 0) & (found.share <= 1)).all()
    sizes = found.attention.abs().sum(-1)[..., 1:]  # the first point may look at none
    assert torch.allclose(sizes, torch.ones_like(sizes))
    assert (found.attention < 0).any()
