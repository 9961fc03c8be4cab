"""Guarantee: which depth and width does an accuracy take, what is proved, and what grows how?"""

from krrviz.ui import guarantee, share, shell, state
from krrviz.ui.badge import badge, report
from krrviz.ui.compute import checked

settings = shell.settings()

share.head(
    "From an accuracy to a transformer",
    "Choose ε, and see the depth T and width 4m that reach it for every prompt, how both grow, and "
    "what the proof leaves out.",
)
topic = guarantee.choose()
checks = checked(settings)
state.completed()
guarantee.show(topic, settings)
badge(settings, checks)
report(checks)
