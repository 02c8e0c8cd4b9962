"""How long tests wait for what must come."""

HANG_S = 60.0
"""What has not come by then never comes, however busy the machine: nothing is claimed about speed,
which `parley bench` measures."""

PROCESS_S = 240.0
"""The same for a process that imports PyTorch, loads a model or compiles."""
