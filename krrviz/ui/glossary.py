"""Glossary: what every symbol on the screen stands for, told under the pointer or the focus."""

from __future__ import annotations

import html
import re

import streamlit as st

SYMBOLS = {
    "σ": "bandwidth of the Gaussian kernel exp(−‖x − x′‖²/2σ²), in standard deviations of an input",
    "λ": "ridge: what is added to the kernel's diagonal, or, times n, in the per-sample convention",
    "N": "context length: the most labelled points a prompt holds; weights are made for it",
    "n": "the labelled points of a prompt so far, up to N",
    "d": "input dimension; in a cell's formula, the distance of two points",
    "T": "depth: how many steps the transformer takes; in the paper's layout two blocks each",
    "t": "a step, 0 to T",
    "x": "an input; x_* is one whose label is asked for",
    "y": "the labels, standardised",
    "K": "kernel matrix of the context: K_ij = exp(−‖x_i − x_j‖²/2σ²)",
    "k_*": "the kernel between a query and the context",
    "D": "diagonal matrix of the kernel's row sums, K1: the degrees",
    "D⁻¹K": "the row-normalised kernel: what softmax attention makes of distances",
    "r": "what stands on the diagonal beside K: λ, or nλ",
    "A": "K + rI, the matrix of the linear system",
    "P": "the preconditioner D + sI that each step divides by",
    "s": "sink level: attention to the sink token; 0 in the paper",
    "S": "D + s at a token: undoes the division by the softmax's sum",
    "α": "dual coefficients, the solution of Aα = y; the answer is k_*ᵀα",
    "η": "step size of an iteration",
    "μ": "smallest eigenvalue of the matrix iterated with, or a bound below it",
    "L": "largest eigenvalue of the matrix iterated with, or a bound above it",
    "m": "hinges per side: a product of two numbers is made of 4m ReLU units",
    "R": "range of α (or of its stand-in) within which the products hold",
    "B": "bound on ‖x‖ within which masked tokens are masked exactly",
    "ε": "accuracy: the largest distance to exact kernel ridge regression that is allowed",
    "f": "the answer at the queries; f_t after step t",
    "u": "fitted values K α at every token, in the function-space form",
    "β": "momentum: how much of the last change is taken again",
    "κ": "condition number L/μ",
    "ℓ": "a layer of a trained model; 0 is before the first",
    "KRR": "kernel ridge regression: f(x_*) = k_*ᵀ(K + rI)⁻¹y, here solved directly in float64",
    "CG": "conjugate gradients: its coefficients depend on the data, so no fixed weights hold them",
    "R²": "share of the variance that a probe or a fit explains; 1 is all of it",
    "RMSE": "root mean square error, in the label's own unit",
    "GCV": "generalised cross-validation: an estimate of held-out error from one fit",
}

# The longest first: D⁻¹K is one symbol. Not within words, nor where a letter is an article.
_SYMBOL = re.compile(
    r"(?<![\w*⁻'’])("
    + "|".join(map(re.escape, sorted(SYMBOLS, key=len, reverse=True)))
    + r")(?!\w)"
)


def marked(text: str) -> str:
    """``text`` as HTML, each symbol with its meaning beside it. A capital A may be an article."""

    def symbol(found: re.Match[str]) -> str:
        name = found[1]
        if name == "A" and text[found.end() : found.end() + 2].strip()[:1].isalpha():
            return name
        return (
            f'<span class="symbol" tabindex="0">{name}'
            f'<span role="tooltip"><b>{name}</b>: {html.escape(SYMBOLS[name])}</span></span>'
        )

    return _SYMBOL.sub(symbol, html.escape(text, quote=False))


def strip() -> None:
    """Every symbol in a row, for pointer, keyboard and finger."""
    told = " ".join(marked(name) for name in SYMBOLS)
    st.html(f'<div class="glossary strip">Symbols: {told}</div>')


STYLE = """
.glossary { position: relative; line-height: 1.5; margin: -.6rem 0 0; }
.strip { margin: 0; }
.symbol { cursor: help; border-radius: 3px; text-decoration: underline dotted 1px; text-underline-offset: 3px; }
.strip > .symbol { display: inline-block; min-width: 24px; padding: 2px 4px; text-align: center; text-decoration: none; }
.symbol:focus-visible { outline: 2px solid var(--st-primary-color, currentColor); }
.symbol > [role="tooltip"] { display: none; position: absolute; z-index: 10; left: 0; bottom: 100%;
  max-width: min(42rem, 100%); padding: 6px 10px; border: 1px solid; border-radius: 6px;
  font-size: 14px; font-weight: normal; text-align: left; line-height: 1.4; background: Canvas; color: CanvasText; }
.symbol:is(:hover, :focus) > [role="tooltip"] { display: block; }
"""  # noqa: E501
