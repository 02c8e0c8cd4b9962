"""The gateway, which clients meet: queue, leases, relay, REST. It imports no torch and never looks
inside a message that it forwards.
"""
