"""Where the public implementation does something that is plainly a defect, and which side we take.

The switches are settings (`model.behaviour`), each with ours as the default and the public one's as
the alternative; `reference()` switches all of them over, which is what the golden vectors were
recorded with. Source: sessions.md, the passages marked FIX.
"""

from parley.settings import ModelBehaviour as Behaviour

__all__ = ["Behaviour"]
