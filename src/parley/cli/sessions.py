"""`parley sessions`: where each session of a running server is."""

from __future__ import annotations

from parley.cli.remote import NotAllowed, RemoteServer, Titled, VerbReport, reports


@reports
def sessions(server: RemoteServer) -> VerbReport:
    """Show every session: its state, worker and key, and how long it has been in that state."""
    found = server.ask("GET", "/status")
    states, listed = found["session_states"], found["sessions"]
    if states and not listed:
        raise NotAllowed("The server lists its sessions for operators only.")
    return VerbReport(
        data={"session_states": states, "sessions": listed},
        table=Titled(
            ("state", "session", "kind", "worker", "for", "key", "address", "protected", "why"),
            [
                (
                    one["state"],
                    one["session_id"],
                    one["kind"],
                    one["worker"],
                    _duration(one["for_s"]),
                    one["key_id"],
                    one["address"],
                    "yes" if one["is_protected"] else "no",
                    one["why"],
                )
                for one in listed
            ],
            none="No sessions.",
        ),
    )


def _duration(seconds: float) -> str:
    minutes, left_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{left_s:02}" if hours else f"{minutes}:{left_s:02}"
