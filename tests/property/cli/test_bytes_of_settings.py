"""Commands on quotas, settings of brokers and directories show names, values and answers of any bytes."""

import os
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cli_harness import ENCODINGS, answering, tidelog
from cli_harness.names import check_table
from tidelog.wire.message import Message
from tidelog.wire.messages import describe_client_quotas as quotas
from tidelog.wire.messages import describe_configs as configs
from tidelog.wire.messages import describe_log_dirs as directories
from tidelog.wire.messages.metadata import MetadataResponse, MetadataResponseBroker

EXAMPLES = int(os.environ.get("TIDELOG_EXAMPLES", "12"))
any_bytes = st.binary(max_size=12) | st.sampled_from([b"\xff", b"a\0b", b"\xed\xa0\x80", b"\x1b[2J", b"", b"log.dirs"])
any_text = any_bytes.map(lambda data: data.decode("utf-8", "surrogateescape"))
int64 = st.integers(-1, 3) | st.integers(-(1 << 63), (1 << 63) - 1)
codes = st.sampled_from([0, 0, 0, 57, 9999])
entries = st.builds(
    quotas.EntryData,
    entity=st.lists(st.builds(quotas.EntityData, any_text, any_text | st.none()), min_size=1, max_size=2),
    values=st.lists(st.builds(quotas.ValueData, any_text, st.floats()), max_size=2),
)
given_settings = st.builds(
    configs.DescribeConfigsResourceResult,
    name=any_text,
    value=any_text | st.none(),
    config_source=st.integers(-1, 9),
    synonyms=st.lists(
        st.builds(configs.DescribeConfigsSynonym, any_text, any_text | st.none(), st.integers(-1, 9)), max_size=2
    ),
    config_type=st.integers(-1, 12),
    documentation=any_text | st.none(),
)
partitions = st.builds(directories.DescribeLogDirsPartition, st.integers(0, 3), int64, int64, st.booleans())
logs = st.builds(
    directories.DescribeLogDirsResult,
    error_code=codes,
    log_dir=any_text,
    topics=st.lists(
        st.builds(directories.DescribeLogDirsTopic, any_text, st.lists(partitions, max_size=2)), max_size=2
    ),
    total_bytes=int64,
    usable_bytes=int64,
)


@given(
    st.lists(entries, max_size=3),
    st.lists(given_settings, max_size=3),
    st.lists(logs, max_size=3),
    st.sampled_from(ENCODINGS),
)
@settings(max_examples=4 * EXAMPLES, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_answers_of_any_bytes(
    found: list[quotas.EntryData],
    altered: list[configs.DescribeConfigsResourceResult],
    described: list[directories.DescribeLogDirsResult],
    encoding: str,
) -> None:
    def settings_of(request: Any) -> Message:
        return configs.DescribeConfigsResponse(
            results=[
                configs.DescribeConfigsResult(0, None, resource.resource_type, resource.resource_name, altered)
                for resource in request.resources
            ]
        )

    answers = {
        "Metadata": lambda _: MetadataResponse(
            brokers=[MetadataResponseBroker(1, broker.host, broker.port)], controller_id=1
        ),
        "DescribeClientQuotas": lambda _: quotas.DescribeClientQuotasResponse(entries=found),
        "DescribeConfigs": settings_of,
        "DescribeLogDirs": lambda _: directories.DescribeLogDirsResponse(results=described),
    }
    with answering(answers) as broker:
        for command in (["quota", "list"], ["broker", "config", "describe"], ["log", "dirs"]):
            check_table(tidelog(*command, "-b", broker.bootstrap, encoding=encoding, code=None))
            ran = tidelog(*command, "--json", "-b", broker.bootstrap, encoding=encoding, code=None)
            check_table(ran)
            if ran.out:
                document = ran.json()
                assert "NaN" not in ran.text.replace('"NaN"', "")
                if command == ["quota", "list"]:
                    assert bool(document) == any(entry.values for entry in found)
