"""The Python and the C definition of the format are the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from spark_jobs.logs import schema
from spark_jobs.logs.reader import LogReader
from spark_jobs.logs.schema import Kind, Wake
from spark_jobs.survey import survey

OFFSETS = """
#include "files/latency_log.h"
#include <stdio.h>
#define R(f) printf("record %s %zu %zu\\n", #f, offsetof(struct pn_latrec, f), \\
                    sizeof(((struct pn_latrec *)0)->f));
#define H(f) printf("header %s %zu %zu\\n", #f, offsetof(struct pn_latlog_header, f), \\
                    sizeof(((struct pn_latlog_header *)0)->f));
int main(void) { RECORD HEADER return 0; }
"""

WRITER = """
#include "base/hash.h"
#include "files/latency_log.h"
#include <string.h>
int main(int argc, char **argv)
{
    pn_latlog *log;
    uint32_t id, other;
    const char *name = "a channel with a name that takes more than one record";
    (void)argc;
    if (pn_latlog_open(argv[1], "the engine", 7, &log) < 0) return 1;
    id = pn_latlog_number(log, pn_channel_hash(42, name, strlen(name)), 42, name, strlen(name));
    other = pn_latlog_number(log, pn_channel_hash(43, "b", 1), 43, "b", 1);
    if (id == 0 || other == 0) return 1;
    for (uint64_t i = 0; i < 10000; i++) {
        struct pn_latrec r = {.ts = 100 + i, .ref_ts = 50, .commit_seq = i, .chan_seq = i,
                              .channel = i % 2 ? id : other, .bytes = 3, .kind = PN_LAT_RECV,
                              .wake = PN_LATWAKE_SIGNAL, .aux = i};
        pn_latlog_append(log, &r);
    }
    pn_latlog_close(log);
    return 0;
}
"""


def test_offsets_and_sizes_are_those_of_the_c_structs(run_native: Callable[..., str]) -> None:
    program = OFFSETS.replace("RECORD", " ".join(f"R({name})" for name in schema.RECORD.names))
    program = program.replace("HEADER", " ".join(f"H({name})" for name in schema.HEADER.names), 1)
    dtypes = {"record": schema.RECORD, "header": schema.HEADER}
    seen = 0
    for line in run_native(program).splitlines():
        struct, name, offset, size = line.split()
        field, at = dtypes[struct].fields[name][:2]
        assert (name, at, field.itemsize) == (name, int(offset), int(size))
        seen += 1
    assert seen == len(schema.RECORD.names) + len(schema.HEADER.names)


def test_a_log_of_the_c_writer_reads_back(tmp_path: Path, run_native: Callable[..., str]) -> None:
    run_native(WRITER, str(tmp_path / "logs"))
    found = survey([tmp_path / "logs"])
    (log,) = found.logs
    reader = LogReader(log)
    chunks = [(chunk.records.copy(), chunk.channel) for chunk in reader.chunks()]
    records = np.concatenate([records for records, _ in chunks])
    assert (log.engine, log.backend_id, log.closed, log.alive) == ("the engine", 7, True, False)
    assert len(log.files) == 2
    assert not found.unreadable
    assert not reader.incomplete
    assert np.array_equal(records["commit_seq"], np.arange(10000))
    assert np.array_equal(records["aux"] & np.uint64(0xFFFFFFFF), np.arange(10000))
    assert {name for name, _ in reader.channels} == {42, 43}
    names = np.array([name for _, name in reader.channels])
    channel = np.concatenate([channel for _, channel in chunks])
    assert set(names[channel[1::2]]) == {"a channel with a name that takes more than one record"}
    assert set(names[channel[::2]]) == {"b"}


def test_the_embedded_schema_says_the_same(tmp_path: Path, run_native: Callable[..., str]) -> None:
    run_native(WRITER, str(tmp_path / "logs"))
    raw = next((tmp_path / "logs").iterdir()).read_bytes()[: schema.HEADER_BYTES]
    head = np.frombuffer(raw, dtype=schema.HEADER)[0]
    text = json.loads(head["schema"][: head["schema_len"]])
    assert [tuple(field) for field in text["record"]] == schema.RECORD.descr
    assert text["kinds"] == {kind.name: kind for kind in Kind}
    assert text["wakes"] == {wake.name.lower(): wake for wake in Wake}

    names = ("header_crc", "anchors", "state", "dropped", "schema")
    assert text["header"] == {name: schema.HEADER.fields[name][1] for name in names}
    assert text["version"] == schema.VERSION
