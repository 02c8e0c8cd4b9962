"""What can happen in any conversation, with no dialect attached.

A dialect makes client events of a client's messages; a runner emits server events, and the dialect
makes messages of those. Observers (a recorder, the worker's meter) see both kinds.
"""

from parley.dialects.events.client import *  # noqa: F403
from parley.dialects.events.client import ClientEvent
from parley.dialects.events.content import *  # noqa: F403
from parley.dialects.events.server import *  # noqa: F403
from parley.dialects.events.server import ServerEvent

Event = ClientEvent | ServerEvent
