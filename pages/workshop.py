"""Train your own: does a small transformer, trained while you watch, learn the regression?"""

from krrviz.ui import share, shell, workshop

shell.settings()

share.head(
    "Train your own",
    "A GPT-2-style model learns kernel ridge regression from random prompts, here and now; each "
    "curve of its fan is what a layer answers. The sidebar's settings are not used on this page.",
)
workshop.form()
workshop.problem()
workshop.watch()
workshop.load()
