"""Settings of the server: `tree` has their names and defaults, `reader` reads the values."""

from parley.settings.reader import load as load
from parley.settings.tree import EtaSettings as EtaSettings
from parley.settings.tree import ForwardAuthSettings as ForwardAuthSettings
from parley.settings.tree import GatewaySettings as GatewaySettings
from parley.settings.tree import LimitSettings as LimitSettings
from parley.settings.tree import ModelBehaviour as ModelBehaviour
from parley.settings.tree import ModelSettings as ModelSettings
from parley.settings.tree import Part as Part
from parley.settings.tree import QueueSettings as QueueSettings
from parley.settings.tree import SecuritySettings as SecuritySettings
from parley.settings.tree import Settings as Settings
from parley.settings.tree import StorageSettings as StorageSettings
from parley.settings.tree import TraceSettings as TraceSettings
from parley.settings.tree import WorkerSettings as WorkerSettings
