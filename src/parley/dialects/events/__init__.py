"""Events of a conversation, independent of dialects.

A dialect decodes a client's messages into client events. A runner emits server events, which the
dialect encodes as messages. Observers (a recorder, the worker's meter) receive both kinds.
"""

from parley.dialects.events.client import *  # noqa: F403
from parley.dialects.events.client import ClientEvent
from parley.dialects.events.server import *  # noqa: F403
from parley.dialects.events.server import ServerEvent

Event = ClientEvent | ServerEvent
