"""Own data: what do transformer and solvers make of a person's own numbers?"""

import streamlit as st

from krrviz.ui import own_data, share, shell, state

settings = shell.settings()

share.head(
    "Your own numbers",
    "Bring a table: the transformer, the solvers and scikit-learn learn from some of its rows and "
    "are tried on others. It stays in this session; a link holds its hash alone.",
)
own_data.source()
columns, table = state.columns(), state.table()
if columns is None or table is None:
    st.caption("Numbers and dates can be used; columns of text are refused by name.")
else:
    own_data.choose(columns, table)
    own_data.suggestions(settings)
    own_data.comparison(settings, table)
