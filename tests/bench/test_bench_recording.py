from tools.bench import recording


async def test_units_and_lists_are_measured(tmp_path):
    figures = await recording.measure(tmp_path, 12, 30)

    assert [one.count for one in figures.values()] == [12, 12, 1, 19]
    assert all(0 < one.p50_ms <= one.max_ms for one in figures.values())
