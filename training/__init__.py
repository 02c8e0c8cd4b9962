"""How the pocket model is made: data on line, phases, export. Not part of the installed package.

    python -m training.pocket all --minutes 240 --run /path/outside/the/repository

`docs/understand/pocket.md` tells what is trained on what, and why.
"""
