"""`parley reload`: let a running server read its settings and its certificate again."""

from __future__ import annotations

from parley.cli.remote import RemoteServer, VerbReport, reports


@reports
def reload(server: RemoteServer) -> VerbReport:
    """Read settings and certificate again. Running sessions continue."""
    found = server.ask("POST", "/api/admin/reload")
    problem = found["problem"]
    lines = [f"In effect now: {', '.join(found['applied']) or 'no setting was changed'}."]
    if found["needs_restart"]:
        lines.append(f"In effect after a restart: {', '.join(found['needs_restart'])}.")
    if found["certificate"]:
        lines.append("New connections get the certificate in the files.")
    return VerbReport(
        data=found,
        lines=lines,
        notes=[f"The settings were not read; the old ones hold. {problem}"] if problem else [],
        exit_code=1 if problem else 0,
    )
