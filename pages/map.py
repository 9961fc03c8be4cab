"""Map: how many steps does it take where, and who is first?"""

from krrviz.ui import map, share, shell, state
from krrviz.ui.badge import badge, report
from krrviz.ui.compute import checked

settings = shell.settings()
map.open_asked()

share.head(
    "Where is which method fast?",
    "Each cell is a setting of its own: how many steps a method takes to an error ε, which method "
    "takes the fewest, or how far the last step comes. Click a cell to open it on the page Fan.",
)
checks = checked(settings)
state.completed()
map.show(settings)
badge(settings, checks)
report(checks)
