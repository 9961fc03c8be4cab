"""Trained: does gradient descent find the same algorithm as the one built by hand?"""

from krrviz.ui import share, shell, trained

settings = shell.settings()

share.head(
    "Does a trained transformer find the same algorithm?",
    "GPT-2-style models were trained on nothing but labels of random functions. Read every layer, "
    "and see which solver's steps it is like, under each metric, step policy and ridge convention.",
)
trained.show(settings)
