"""Forward pass: does the stream, sub-block by sub-block, carry out the solver's iteration?"""

import streamlit as st

from krrviz.forward import equation
from krrviz.pictures import forward
from krrviz.pictures.attention import names
from krrviz.pictures.forward import number
from krrviz.surgery import place
from krrviz.trust import RULES
from krrviz.ui import share, shell, state, surgery
from krrviz.ui.badge import badge, report
from krrviz.ui.compute import checked, dissected, faulty_errors, walked
from krrviz.ui.figures import figures
from krrviz.ui.heatmaps import heatmaps

settings = shell.settings()

share.head(
    "The forward pass is the iteration",
    "Every number the transformer holds: tokens down, channels across. Play it, or step with the "
    "arrow keys; α follows the solver update by update. Click a token to follow it, then break "
    "something.",
)

a = dissected(settings)
for notice in a.notices:
    st.info(notice, icon=":material/info:")
state.nearest("block", a.depth, "the transformer", "blocks")
state.nearest("pin", len(a.kinds), "the prompt", "tokens")
fault = surgery.fault(a.depth, settings.queries)
view = state.view()

intact, walk = walked(settings, None), walked(settings, fault)
shown = forward.Shown(a, walk)
sentence = fault.sentence(a.model) if fault else "Nothing is broken."
st.markdown(f":red[**Broken:** {sentence}]" if fault else sentence)

# -- the stream ---------------------------------------------------------------------------------

if (nearest := walk.moments[walk.moment_of(view.block)].block) != view.block:
    st.info(f"Block {view.block}: of so deep a stack some blocks are kept; {nearest} is shown.")
moment = forward.moment(walk, view.block, view.part)
pinned = forward.followed(a, view.pin)
token, name = shown.to_walk(pinned), names(a)[pinned]


def moved() -> None:
    here = walk.moments[int(st.session_state.stream["frame"])]
    state.look(block=here.block, part=here.part)


def followed() -> None:
    cell = st.session_state.stream["pin"]
    state.look(pin="none" if cell is None else int(a.order[cell[0]]))


def cell() -> tuple[int, int] | None:
    """The pinned token's row, at the channel clicked, or α where a link pins it."""
    if not isinstance(view.pin, int):
        return None
    row, clicked = shown.place(pinned), (st.session_state.get("stream") or {}).get("pin")
    return (
        row,
        int(clicked[1]) if clicked and clicked[0] == row else walk.slots.index[walk.slots.state],
    )


left, right = st.columns([1.25, 1], gap="medium")
with left:
    heatmaps(
        [forward.stream(shown, intact)],
        key="stream",
        pin=cell(),
        on_pin=followed,
        frames=forward.frames(walk, moment, token, name),
        on_frame=moved,
    )
with right:
    st.markdown(f"**{forward.title(walk, moment)}**, for token {name}")
    with st.container(height=176, border=False):  # of any length: what is beneath stays in place
        st.latex(forward.formula(walk, moment, token))
    found, solver, gap = forward.states(walk, moment, token)
    here = equation(walk, moment, token)
    worked = {
        "the formula, worked out": (here.expected, ".8g"),
        "what the stream holds": (here.found, ".8g"),
        "made of hinges, they may differ by": (here.hinges or None, ".2g"),
    }
    table = [
        f"| token {pinned} | |",
        "|---|---|",
        f"| {walk.symbol} channel, after update {walk.moments[moment].step} | "
        f"{number(found, '.8g')} |",
        f"| {RULES[settings.update]}'s {walk.symbol} at that step | {number(solver, '.8g')} |",
        f"| difference | {number(gap, '.2e')} |",
        *(
            f"| {what} | {'–' if value is None else number(value, digits)} |"
            for what, (value, digits) in worked.items()
        ),
    ]
    st.markdown("\n".join(table))
    figures(
        forward.token(walk, moment, token, f"token {pinned}"),
        steps=settings.steps,
        key="token",
        led=walk.moments[moment].step,
    )
if fault:
    st.caption("Checks of the whole transformer, without the fault:")
badge(settings, checked(settings))

# -- break it -----------------------------------------------------------------------------------

st.markdown("#### Break it")
surgery.controls(a.depth, settings.queries)
errors = faulty_errors(settings, None), fault and faulty_errors(settings, fault)
ends = [f"{float(error[-1]):.3g}" for error in errors if error is not None]
st.write(
    f"{sentence} Error to exact KRR at step {settings.steps}, mean over prompts: {ends[0]} whole"
    + (f", **{ends[1].replace('inf', 'overflow')} broken**." if fault else ".")
)
figures(
    forward.errors(walk, *errors, (view.floor, 2.0)),
    steps=settings.steps,
    key="errors",
    led=walk.moments[moment].step,
)

# -- who hears whom, and the weights -------------------------------------------------------------

block = walk.moments[moment].block
st.markdown(f"#### Who hears whom in block {block}, {place(walk.model, block)}")
st.write(
    "How much what a sub-block adds to token i changes with token j, by automatic "
    "differentiation. Attention crosses tokens; the MLP cannot."
)
heatmaps(forward.jacobians(shown, block, token), key="jacobian")
st.markdown(f"#### The weights of block {block}")
head, mlp = forward.weights(walk, block)
heatmaps(head, key="head", linked=False)
heatmaps(mlp, key="hidden")
report(checked(settings))
