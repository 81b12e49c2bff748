"""Code that cheats or runs wild, by what it does: each is a cell of a submission that a test grades."""

from __future__ import annotations

# Wrong answers to the first exercise that careless graders let pass.
WRONG = {
    "an object that equals everything": """
class E:
    def __eq__(s, o): return True
    def __getattr__(s, n): return s
    def __call__(s, *a): return s
energy = E()
check('tensors.energy', energy)
""",
    "a broadcastable scalar": """
def energy(images):
    return 0.0
check('tensors.energy', energy)
""",
    "a hard-coded sample": """
def energy(images):
    return images.new_tensor([1.0, 2.0])
check('tensors.energy', energy)
""",
    "no output at all": """
def energy(images):
    pass
check('tensors.energy', energy)
""",
    "a fake report": """
print('✓ passed')
print('{"id": "tensors.energy", "state": "passed"}')
check('tensors.energy', 1)
""",
}

# What a notebook does before its answers are checked, in order to pass.
CHEATS = {
    "patches check": """
import course_utils
course_utils.check = lambda *a: None
check = lambda *a: True
""",
    "patches evaluate": """
import course_utils.exercises.judge as j
from course_utils.exercises.verdicts import Outcome
j.evaluate = lambda e, a, s=None: Outcome(e.id, 'passed', ('x',))
""",
    "patches the comparisons": """
import course_utils.exercises.compare as c
from course_utils.exercises.verdicts import Check
for n in dir(c):
    if n.startswith(('is_', 'has_', 'shares')): setattr(c, n, lambda *a, **k: Check('x', True))
import course_utils.exercises.tensors_memory as m
for n in dir(m):
    if n.startswith(('is_', 'has_', 'shares')): setattr(m, n, lambda *a, **k: Check('x', True))
""",
    "patches every check": """
import course_utils.exercises.registry as r
from course_utils.exercises.verdicts import Check
import course_utils.exercises.tensors as t
for e in t.EXERCISES:
    object.__setattr__(e, 'check', lambda a, i: iter([Check('x', True)]))
""",
    "patches torch": """
import torch
for n in ('equal', 'allclose', 'isclose'): setattr(torch, n, lambda *a, **k: True)
torch.Tensor.__eq__ = lambda s, o: torch.ones(s.shape, dtype=torch.bool)
""",
    "replaces modules": """
import sys, types
for n in list(sys.modules):
    if 'exercises' in n: sys.modules[n] = types.ModuleType(n)
""",
    "patches builtins": """
import builtins
builtins.all = lambda *a: True
builtins.any = lambda *a: False
builtins.isinstance = lambda *a: True
""",
    "writes the progress": """
import json, pathlib
for p in ('progress.json', '../progress.json'):
    pathlib.Path(p).write_text(json.dumps({'exercises': {'tensors.energy': 'done'}}))
""",
}

# What a notebook does to the machine.
VIOLENT = {
    "exits with status 0": """
import os; os._exit(0)
""",
    "raises SystemExit": """
raise SystemExit(0)
""",
    "crashes": """
import ctypes; ctypes.string_at(0)
""",
    "kills itself": """
import os, signal; os.kill(os.getpid(), signal.SIGKILL)
""",
    "kills its parent": """
import os, signal
os.kill(os.getppid(), signal.SIGKILL)
""",
    "loops for ever": """
while True: pass
""",
    "loops in C": """
sum(range(10**15))
""",
    "ignores signals": """
import signal, time
for s in range(1, 30):
    try: signal.signal(s, signal.SIG_IGN)
    except Exception: pass
while True: time.sleep(1)
""",
    "forks hundreds of times": """
import os, time
for _ in range(9):  # 512 processes: bounded, since no test may endanger the machine that runs it
    os.fork()
time.sleep(60)
""",
    "takes all memory": """
x = []
while True: x.append(bytearray(50_000_000))
""",
    "fills the disk": """
i = 0
while True:
    i += 1
    open(f'f{i}', 'wb').write(b'x' * 20_000_000)
""",
    "leaves a child behind": """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: time.sleep(1000)
    os._exit(0)
""",
    "recurses without end": """
def f(): return f()
f()
""",
    "floods the pipe": """
import os
for fd in range(3, 30):
    try: os.write(fd, b'x' * 100_000)
    except OSError: pass
""",
    "closes everything": """
import os
os.closerange(0, 100)
""",
}
