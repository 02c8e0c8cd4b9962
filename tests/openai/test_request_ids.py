"""Every answer has an id, which SDKs show and the log repeats."""

import asyncio
import io
import json

import pytest
from tests.openai.sdk_client import chat, client_of, talking
from tests.support.gateways import running_gateway

import openai
from parley import logs
from parley.gateway.http.openai.models import ModelList


async def test_answers_streams_and_errors_have_an_id_that_the_sdk_shows():
    async with talking() as (_, client):
        answer = await chat(client)
        with pytest.raises(openai.BadRequestError) as caught:
            await chat(client, messages=[])
        with pytest.raises(openai.NotFoundError) as missing:
            await client.embeddings.create(model="m", input="x")
        made = client.responses.with_streaming_response
        async with made.create(model="m", input="hi", stream=True) as stream:
            headers = stream.headers

    ids = {
        answer._request_id,
        caught.value.request_id,
        missing.value.request_id,
        headers["x-request-id"],
    }
    assert len(ids) == 4
    assert all(each is not None and each.startswith("req_") for each in ids)
    assert int(headers["openai-processing-ms"]) >= 0


async def test_refusals_in_front_of_the_routes_have_an_id_too():
    async with running_gateway() as running, running.http() as http:
        wrong = {"authorization": "Bearer pk_unknown"}
        refused = await http.get("/v1/models", headers=wrong)
        large = await http.post("/v1/models", content=b"x" * 100_000)

    assert (refused.status_code, large.status_code) == (401, 413)
    assert refused.headers["x-request-id"] != large.headers["x-request-id"]


async def test_a_fault_of_ours_names_the_id_under_which_the_log_has_it(monkeypatch):
    monkeypatch.setattr(ModelList, "cards", lambda self: 1 / 0)
    log = io.StringIO()

    async with running_gateway() as running, client_of(running) as client:
        logs.configure(style="json", stream=log)
        with pytest.raises(openai.InternalServerError) as caught:
            await client.models.list()
        await asyncio.sleep(0)

    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    (failed,) = [line for line in lines if line["event"] == "request_failed"]
    assert caught.value.request_id == failed["request_id"]
    assert str(caught.value.request_id) in str(caught.value)
