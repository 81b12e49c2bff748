# %% [markdown] id="title"
# # 90 A sample of every kind of cell
#
# **Does the authoring pipeline carry everything a lesson uses?** No learner sees this lesson.

# %% id="parameters" tags=["parameters"]
SEED = 0
DEVICE = "auto"
FAST = True

# %% id="setup" tags=["setup"]
import sys
import time
import warnings

import ipywidgets
import matplotlib.pyplot as plt
from IPython.display import display
from tqdm.auto import tqdm

from course_utils import show, shows_error
from course_utils.cards import Card
from course_utils.plots import Diagram, use_style

use_style()


def check(exercise: str, answer) -> None:
    """Stand in for the course's check: this lesson has no module of exercises."""
    passed = callable(answer) and answer(2) == 4
    Card("done" if passed else "todo", f"{exercise}: {'passed' if passed else 'not attempted yet'}").show()


# %% [markdown] id="numbers"
# ## Numbers, shapes and text
#
# Write the sum of the first four squares, then run on.

# %% id="guess" tags=["prediction"]
guess = ...

# %% id="sum"
squares = [i * i for i in range(4)]
print(f"sum {sum(squares)}, you said {guess}")
squares

# %% id="shape"
rows, columns = 3, 4
print(f"shape ({rows}, {columns})")

# %% [markdown] id="pictures"
# ## Pictures

# %% id="figure"
x = [i / 10 for i in range(51)]
fig, ax = plt.subplots()
ax.plot(x, [v**2 for v in x], label="square")
ax.set(title="A parabola", xlabel="x (m)", ylabel="area (m²)")
show(fig, "The area grows faster than the side.")

# %% id="diagram"
drawing = '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="20"><rect width="40" height="20"/></svg>'
show(Diagram(drawing, "One rectangle, 40 wide and 20 high."))

# %% [markdown] id="streams"
# ## Both streams, a warning, a progress bar, an expected error

# %% id="both-streams"
for i in range(5):
    print("out", i)
    print("err", i, file=sys.stderr)

# %% id="warning"
warnings.warn("this is on purpose", UserWarning, stacklevel=1)
print(object().__repr__())

# %% id="progress-bar"
for _ in tqdm(range(3), desc="steps"):
    time.sleep(0.01)

# %% id="expected-error"
with shows_error(ZeroDivisionError):
    1 / 0

# %% id="panel" tags=["explorer"]
slider = ipywidgets.IntSlider(value=3, min=0, max=9)
view = {"version_major": 2, "version_minor": 0, "model_id": slider.model_id}
display({"application/vnd.jupyter.widget-view+json": view, "text/plain": "a slider at 3"}, raw=True)

# %% id="clock" tags=["nbval-ignore-output"]
print(f"{time.perf_counter():.9f} s on this machine's clock")

# %% [markdown] id="exercises"
# ## Exercises


# %% id="exercise-double" tags=["exercise"] exercise="sample.double"
def double(number: int) -> int:
    """Return twice the number."""
    ### BEGIN SOLUTION
    return 2 * number
    ### END SOLUTION


check("sample.double", double)


# %% id="clinic-square" tags=["clinic"] exercise="sample.square"
def square(number: int) -> int:
    ### BEGIN SOLUTION
    return number**2
    ### END SOLUTION
    ### BEGIN STUB
    # # the power is one too low
    # return number**1
    ### END STUB


check("sample.square", square)

# %% [markdown] id="recap"
# ## Recap
#
# That is all.
