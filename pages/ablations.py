"""Ablations: which of the parts matter, in trained models and in the one built by hand?"""

import streamlit as st

from krrviz.ui import ablations, shell

settings = shell.settings()

st.subheader("What if the kernel or the attention is another?")
st.write(
    "The paper, as far as digests of it tell, finds a weaker match where the kernel is another "
    "or linear attention stands in softmax's place. Here is what comes out."
)
ablations.show(settings)
