"""Lessons: the stations of the tour, each a link with words, a formula and one question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from krrviz.settings import PRESETS, STATIONS, Settings

AVERAGE = "average"  # the one picture that no other page has


@dataclass(frozen=True)
class Station:
    """One claim to predict, and the pictures that settle it.

    Parameters
    ----------
    title, text : what the claim is about; ``formula`` in LaTeX
    question, options : what to predict; ``right`` is the index of the true option
    reveal : why, once the pictures are seen
    page, settings, look : where its pictures are at home: the link
    shown : the names of the page's pictures that are drawn, in order
    """

    title: str
    text: str
    formula: str
    question: str
    options: tuple[str, str, str]
    right: int
    reveal: str
    page: str
    settings: Settings
    shown: tuple[str, ...]
    look: Mapping[str, Any] = field(default_factory=dict)


_PAIR = ("transformer", "preconditioned_richardson")

TOUR = (
    Station(
        title="One softmax is a local average",
        text="A query attends to the labelled points by distance, and reads their labels with "
        "these weights. That is the Nadaraya–Watson estimator: an average of the labels nearby.",
        formula=r"\hat f(x_*) = \sum_i "
        r"\frac{e^{-\|x_*-x_i\|^2/2\sigma^2}}{\sum_j e^{-\|x_*-x_j\|^2/2\sigma^2}}\, y_i",
        question="Beside kernel ridge regression with the same σ, the average will",
        options=(
            "reach the same peaks and troughs",
            "be flatter",
            "overshoot",
        ),
        right=1,
        reveal="An average cannot leave the range of the labels it is taken over, and it flattens "
        "every peak by as much as σ is wide. Regression asks for weights that, once averaged, "
        "give the labels back.",
        page="fan",
        settings=Settings(),
        shown=(AVERAGE,),
    ),
    Station(
        title="Softmax attention is the row-normalised kernel",
        text="Dot products are no distances. But a score may hold the key's own norm, and the "
        "query's is the same for every key: the softmax divides it away.",
        formula=r"\mathrm{softmax}_j\!\left(\frac{x_i\cdot x_j}{\sigma^2}-\frac{\|x_j\|^2}"
        r"{2\sigma^2}\right)=\frac{K_{ij}}{\sum_l K_{il}}=(D^{-1}K)_{ij}",
        question="How far apart are the transformer's attention and D⁻¹K, made from distances "
        "alone?",
        options=(
            "By rounding: about 1e-15",
            "By an approximation: about 1e-3",
            "By a tenth: softmax is no Gaussian",
        ),
        right=0,
        reveal="It is an identity, not an approximation. What differs is the order in which "
        "numbers are rounded; the third map's colours end at the tolerance for that.",
        page="attention",
        settings=Settings(),
        shown=("attention", "kernel", "difference"),
        look={"block": 1, "pin": "none"},
    ),
    Station(
        title="Repeated, averages become a regression",
        text="Each update lets attention average what is in hand, compares it with the labels, and "
        "corrects. That is Richardson iteration, preconditioned by the row sums D. Two blocks of "
        "the transformer make one step.",
        formula=r"\alpha \leftarrow \alpha + \eta\, D^{-1}\bigl(y - (K+\lambda I)\alpha\bigr)",
        question="As the steps t go on, the error to exact kernel ridge regression",
        options=(
            "falls fast at first, then ever more slowly",
            "falls by the same factor at every step",
            "goes up and down",
        ),
        right=0,
        reveal="Directions of large eigenvalues are learned within a few steps, those of small "
        "ones remain. What is left at last falls by one factor a step, and that one is near 1.",
        page="fan",
        settings=Settings(methods=_PAIR),
        shown=("fan_transformer", "fan_preconditioned_richardson", "steps"),
    ),
    Station(
        title="Products are made of hinges",
        text="The update multiplies numbers of the data, and a ReLU layer only bends lines. A "
        "product is a difference of squares, and a square is drawn by m hinges on each side.",
        formula=r"uv = \tfrac14\bigl((u+v)^2-(u-v)^2\bigr),\qquad "
        r"s^2 \approx \sum_{k=1}^{m} c_k \left(\mathrm{ReLU}(s-t_k)+\mathrm{ReLU}(-s-t_k)\right)",
        question="With twice as many hinges, a product's error is divided by",
        options=("2", "4", "16"),
        right=1,
        reveal="Between two hinges a parabola is off its chord by the square of their distance. So "
        "width grows as 1/√ε. The balanced product is ours; the paper's rate is the plain one's.",
        page="guarantee",
        settings=Settings(prompts=4),
        shown=("width_error", "width_n"),
        look={"topic": "width"},
    ),
    Station(
        title="What no fixed weights can do",
        text="The transformer's weights know N, λ and σ, and no prompt. Conjugate gradients "
        "measure each prompt as they go: their step sizes are quotients of inner products.",
        formula=r"\alpha \leftarrow \alpha + \frac{r^\top r}{p^\top A p}\,p,\qquad r = y - A\alpha",
        question="After 32 steps, which is nearest to exact kernel ridge regression?",
        options=("The transformer", "Nesterov's method", "Conjugate gradients"),
        right=2,
        reveal="By ten powers of ten. The transformer has what fixed coefficients allow; of the "
        "others here Nesterov and gradient descent run with certified ones too.",
        page="fan",
        settings=Settings(),
        shown=("steps", "fan_transformer", "fan_nesterov", "fan_conjugate_gradient"),
    ),
    Station(
        title="One step size for all prompts has a price",
        text="A smooth kernel and a tiny ridge: one input, σ = 1, λ = 10⁻⁴. Weights know N and λ "
        "alone, so their step must suit every prompt: 2/(μ + L) with bounds that no prompt leaves.",
        formula=r"\text{what a step leaves of a mode }\theta:\quad 1-\eta\theta,\qquad "
        r"\eta=\frac{2}{\mu+L},\quad \mu=\frac{\lambda}{N},\; L=1+\lambda",
        question="After T = 64 steps the transformer's relative error is",
        options=("below 1e-6", "about 0.05, as gradient descent's", "above 0.5"),
        right=2,
        reveal="The largest mode of D⁻¹(K + λI) is 1 + λ itself here, and a step that may just not "
        "diverge turns its sign every time and hardly shrinks it: that one mode is nearly all of "
        "the error. Gradient descent's bound N + λ lies well above its largest mode, which dies "
        "within a few steps. Another step policy, or a sink, changes the order.",
        page="fan",
        settings=PRESETS["ill_conditioned"].settings,
        shown=("steps", "fan_transformer", "fan_gradient_descent"),
    ),
    Station(
        title="How depth grows with accuracy",
        text="A certificate turns an accuracy ε into a depth T that holds for every prompt within "
        "its bounds. Here it is measured: steps until the mean error is within ε, one line per N.",
        formula=r"T(\varepsilon) = O\!\left(\log\tfrac1\varepsilon\right)\quad"
        r"\text{for one fixed contraction factor}",
        question="With the paper's absolute ridge, do the lines of different N lie together?",
        options=(
            "Yes: depth does not depend on N",
            "No: a larger N needs more steps for small ε",
            "No: a larger N needs fewer steps for small ε",
        ),
        right=1,
        reveal="The smallest eigenvalue of D⁻¹(K + λI) falls with N when λ stays. Depth is free of "
        "N where the ridge grows with n and the sink with it: the last picture.",
        page="guarantee",
        settings=Settings(prompts=4),
        shown=("depth_absolute_0", "depth_per_sample_ridge"),
        look={"topic": "depth"},
    ),
    Station(
        title="What a trained model does",
        text="A GPT-2-style model was trained on nothing but labels of random functions. Its "
        "layers are read one by one, by its own head and by linear probes.",
        formula=r"f_\ell(x_*) = \mathrm{head}(h_\ell)\quad\text{beside}\quad f_t(x_*) = "
        r"k_*^\top\alpha_t",
        question="Its errors to exact kernel ridge regression",
        options=(
            "fan out layer by layer, as a solver's do step by step",
            "stay at 1 until the last layer",
            "fan out, and so do those of an untrained network",
        ),
        right=0,
        reveal="The fan is there, and a network of random weights has none. Which solver's steps "
        "the layers are most like depends on metric and step policy: the page Trained lets you "
        "choose.",
        page="trained",
        settings=Settings(),
        shown=("layers_lens", "layers_krr", "layers_untrained_krr", "by_layer"),
        look={"study": "fan", "model": "main-0", "asked": 64},
    ),
)

assert len(TOUR) == STATIONS
