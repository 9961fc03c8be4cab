"""Tour: from one softmax to what a trained model does, in eight predictions."""

import streamlit as st

from krrviz.ui import share, shell, tour

settings = shell.settings()

share.head(
    "A tour in eight predictions",
    "Predict first, then see: from one softmax to what a trained model does. Every station is a "
    "link, and so is how far you are.",
)
station = tour.stations()
left, right = st.columns([1, 1.7], gap="large")
with left:
    tour.predict(station)
    tour.onward(station)
with right:
    tour.pictures(station, settings)
