"""``isthmus explain`` as a user runs it, and the tables of all backends."""

import json
import re

import pytest
from isthmus.cli.main import app
from isthmus.explain import general
from isthmus.registry import registry
from typer.testing import CliRunner

COMMANDS = {c.name or c.callback.__name__.replace("_", "-") for c in app.registered_commands}
TABLES = {"any": general(), **{name: registry().backend(name).explanations() for name in registry().names()}}
ROWS = [(backend, row) for backend, rows in TABLES.items() for row in rows]


def _explain(*arguments, **options):
    return CliRunner().invoke(app, ["explain", *arguments], **options)


def test_unknown_text_says_so_and_ends_with_1():
    result = _explain("all is well")
    assert result.exit_code == 1
    assert "nothing in this text is known" in result.stdout


def test_stdin_files_and_arguments_are_read_alike(tmp_path):
    line = "QNN graph execute error. Error code: 6031"
    log = tmp_path / "log"
    log.write_bytes(b"\xff\xfe noise\n" + line.encode() + b"\n")
    for result in (_explain(line), _explain("--file", str(log)), _explain(input=line), _explain("-", input=line)):
        assert result.exit_code == 0
        assert line in result.stdout
        assert "QNN 6031" in result.stdout


def test_json_holds_ranked_causes_and_the_vendors_line():
    result = _explain("--json", "error 5005\nrequires estimated allocation of 3 KB, limit is 2 KB")
    findings = json.loads(result.stdout)["findings"]
    assert next(f["id"] for f in findings if f["backend"] == "qnn_htp") == "graph-limit"
    assert findings[-1]["line"] == "error 5005"
    assert findings[-1]["causes"][0]["fix"].startswith("compile the artifact again")


def test_one_vendors_tables_alone():
    assert _explain("--backend", "ascend", "error 5005").exit_code == 1
    assert _explain("--backend", "qnn_htp", "error 5005").exit_code == 0


def test_a_file_that_is_not_there_is_bad_input(tmp_path):
    result = _explain("--file", str(tmp_path / "none"))
    assert type(result.exception).__name__ == "InputError"


def test_ids_are_unique_and_patterns_are_valid():
    for rows in TABLES.values():
        assert len({row.id for row in rows}) == len(rows)
        for row in rows:
            assert row.codes or row.symbols or row.pattern
            assert row.source
            re.compile(row.pattern)


@pytest.mark.parametrize("backend", TABLES)
def test_every_next_step_names_a_command_that_exists(backend):
    texts = [cause.fix for row in TABLES[backend] for cause in row.causes]
    named = {word for text in texts for word in re.findall(r"(?:^|[:;,] |\bby: )isthmus ([a-z]+)", text)}
    assert named <= COMMANDS, named - COMMANDS
