"""krrviz in the browser: streamlit run app.py."""

from krrviz.ui import shell

shell.run()
