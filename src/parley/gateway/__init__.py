"""What clients meet: queue, leases, relay, REST. Never torch, never inside a message it
forwards."""
