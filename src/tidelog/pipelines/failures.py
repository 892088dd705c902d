"""Turns the errors of Spark into one line for people."""

import re

from tidelog.pipelines.declarations import PipelineError, TemporaryError

TOPIC_REMEDY = (
    ". With dead_letters='TOPIC' in the declaration, the pipeline writes such records to this topic and continues"
)
HTTP_REMEDY = (
    ". To separate such records from the others, leave out schema, and parse the column 'value' in the pipeline's"
    " function"
)
"""The ends of the errors that the parser of a source raises, in a worker, for a record that cannot be parsed (see
`topics` and `sources/http`)."""
RAISED = re.compile(
    rf"(pipeline [^\n]* cannot be parsed: [^\n]*?(?:{'|'.join(map(re.escape, (TOPIC_REMEDY, HTTP_REMEDY)))}))"
)
"""Such an error within the text of Spark's error."""
PYTHON_ERROR = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception|Loss|Batch|Partition|Requested)): (.+)$", re.MULTILINE)
"""The name and the text of a Python error, with or without a traceback. The name has one of the usual endings."""
TRACEBACK = re.compile(
    r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*(?:[\w.<>]+\.)?(\w+)(?:: (.+))?$", re.MULTILINE
)
"""A Python traceback: indented lines, and after them the name and the text of the error, whatever its name is."""
MALFORMED_LINE = re.compile(
    r"reading file (?P<file>[^\n]+?)\.\s+SQLSTATE.*?\[MALFORMED_RECORD_IN_PARSING(?P<rest>.*)", re.DOTALL
)
"""Spark's error for a file of JSON or CSV with a line that does not fit the schema."""
CAUSED_BY = re.compile(r"^Caused by: [\w.$]+: (.+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
NO_SESSION = "[SESSION_OR_CONTEXT_NOT_EXISTS]"
NO_SESSION_HINT = (
    "a function that runs in Spark's workers has no Spark session, so StructType.fromDDL and the functions of"
    " pyspark.sql cannot be called in it: call them outside, and use the result in the function"
)


def cause_text(error: BaseException) -> str:
    """Return the cause of a failure as one line."""
    if isinstance(error, PipelineError):
        return str(error)
    text = str(error)
    if raised := RAISED.search(text):
        return raised[1].strip()
    if malformed := MALFORMED_LINE.search(text):
        causes = CAUSED_BY.findall(malformed["rest"])
        detail = f": {causes[-1].strip()}" if causes else ""
        return (
            f"{malformed['file']}: a line is malformed{detail}. Correct the file, or let Spark read such lines as rows"
            ' of nulls: file(..., options={"mode": "PERMISSIVE"})'
        )
    python_errors = TRACEBACK.findall(text) or PYTHON_ERROR.findall(text)
    if python_errors:
        name, message = python_errors[-1]
        if message.startswith(NO_SESSION):
            return f"{name}: {message.strip()} ({NO_SESSION_HINT})"
        return f"{name}: {message.strip()}" if message.strip() else str(name)
    first = first_line(text)
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def first_line(text: str) -> str:
    """Return the first line that is not blank, without the blanks around it; empty if there is none."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def is_permanent(error: BaseException) -> bool:
    """Return whether another attempt would fail in the same way."""
    if isinstance(error, TemporaryError):
        return False
    text = str(error)
    return isinstance(error, PipelineError) or bool(RAISED.search(text) or MALFORMED_LINE.search(text))


def as_exception(error: BaseException) -> Exception:
    """Return the error itself if it is an Exception. Otherwise, for example after `sys.exit()`, return a PipelineError
    in its place, because code that handles failures catches only an Exception.
    """
    if isinstance(error, Exception):
        return error
    return PipelineError(f"{type(error).__name__} was raised (for example by sys.exit()): {error}")
