"""`parley rerun`: replays recorded inputs on a model and compares the results."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated

import typer

from parley import logs, models
from parley.cli import flags
from parley.cli.recordings import folders_of
from parley.engine.engine import Engine
from parley.errors import ParleyError
from parley.library.voices import VoiceLibrary, named_voice
from parley.recording.layout import Folder
from parley.session import rerun as reruns
from parley.session.rerun import Comparison
from parley.settings import Settings
from parley.turns import JudgesTurns
from parley.worker.main import load_judges

SHOWN = 5
"""Number of differences printed per recording."""


@flags.sets("model.name", "model.device", "storage.data_dir")
def rerun(
    read: flags.Reader,
    run: Annotated[list[str], typer.Argument(metavar="ID", help="Recording ids or folders.")],
) -> None:
    """Run recorded sessions again with the same seeds and compare every result.

    With the same weights on the same machine the results are bit-identical. The exit code is 1 if
    anything differs, or was not run again.
    """
    settings = read()
    logs.configure(level="warning", style=settings.log.format)
    folders = folders_of(settings.storage.data_dir, run)
    if not asyncio.run(_rerun(settings, folders)):
        raise typer.Exit(1)


async def _rerun(settings: Settings, folders: list[Folder]) -> bool:
    voices = VoiceLibrary(settings.storage.data_dir, limit_s=settings.limits.reference_audio_s)
    find_voice = partial(named_voice, registered=voices.find, settings=settings)
    is_equal = True
    model = models.load(settings.model)
    if isinstance(model, JudgesTurns):
        # The session ran with a worker's judges; without them, other speech interrupts.
        model.use_judges(load_judges(settings.worker))
    async with Engine(model) as engine:
        await engine.warm_up()
        for folder in folders:
            slot = await engine.take_slot()
            try:
                found = await reruns.rerun(folder, slot, find_voice=find_voice)
            except ParleyError as error:
                typer.echo(f"{folder.recording_id}: cannot be rerun: {error}")
                is_equal = False
                continue
            finally:
                await slot.close()
            if found.model != engine.spec.name:
                typer.echo(
                    f"{folder.recording_id}: recorded with '{found.model}', "
                    f"rerun with '{engine.spec.name}'",
                    err=True,
                )
            typer.echo(describe(found))
            is_equal = is_equal and found.is_equal
    return is_equal


def describe(found: Comparison) -> str:
    what = "equal" if found.is_equal else "incomplete"
    if found.differences:
        what = f"{len(found.differences)} differences"
    lines = [f"{found.recording_id}: {found.compared} of {found.entries} entries, {what}"]
    if found.ended:
        lines.append(f"  ended early: {found.ended}")
    lines += [f"  {one}" for one in found.differences[:SHOWN]]
    return "\n".join(lines)
