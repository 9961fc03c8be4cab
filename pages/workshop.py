"""Train your own: does a small transformer, trained while you watch, learn the regression?"""

import streamlit as st

from krrviz.ui import shell, workshop

shell.settings()

st.subheader("Train your own")
st.write(
    "A GPT-2-style model learns kernel ridge regression from random prompts, here and now; each "
    "curve of its fan is what a layer answers. The sidebar's settings are not used on this page."
)
workshop.form()
workshop.problem()
workshop.watch()
workshop.load()
