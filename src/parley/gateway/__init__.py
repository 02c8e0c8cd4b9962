"""The gateway, the server that clients connect to: queue, leases, relay, REST. It does not import
torch and never parses the messages that it forwards.
"""
