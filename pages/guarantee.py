"""Guarantee: which depth and width does an accuracy take, what is proved, and what grows how?"""

import streamlit as st

from krrviz.ui import guarantee, shell, state
from krrviz.ui.badge import badge, report
from krrviz.ui.compute import checked

settings = shell.settings()

st.subheader("From an accuracy to a transformer")
topic = guarantee.choose()
checks = checked(settings)
state.completed()
guarantee.show(topic, settings)
badge(settings, checks)
report(checks)
