"""
The components of steps, one file a family: what each needs and does, and the model of its config. Nothing runs here.

    config      Config, the base of all config models, and the kinds of values that several of them have
    python      python: a function of the project; pipeline: a pipeline over items
    files       files.reader, files.writer
    http        http.caller, and connections of the family http
    llm         llm.caller, and connections of the family llm
    postgres    postgres.extractor, postgres.writer, and connections of the family postgres
    s3          s3.reader, s3.writer, s3.deleter, and connections of the family s3
    rows        data.processor, schema.validator
    resource    resource.allocator, resource.deallocator
"""

from __future__ import annotations

# Where each description is. A file is loaded when a pipeline file uses one of its components.
OWN = {
    "python": "outlast.components.steps.python:PYTHON",
    "pipeline": "outlast.components.steps.python:PIPELINE",
    "files.reader": "outlast.components.steps.files:READER",
    "files.writer": "outlast.components.steps.files:WRITER",
    "http.caller": "outlast.components.steps.http:CALLER",
    "llm.caller": "outlast.components.steps.llm:CALLER",
    "postgres.extractor": "outlast.components.steps.postgres:EXTRACTOR",
    "postgres.writer": "outlast.components.steps.postgres:WRITER",
    "s3.reader": "outlast.components.steps.s3:READER",
    "s3.writer": "outlast.components.steps.s3:WRITER",
    "s3.deleter": "outlast.components.steps.s3:DELETER",
    "schema.validator": "outlast.components.steps.rows:VALIDATOR",
    "data.processor": "outlast.components.steps.rows:PROCESSOR",
    "resource.allocator": "outlast.components.steps.resource:ALLOCATOR",
    "resource.deallocator": "outlast.components.steps.resource:DEALLOCATOR",
}
# The same for families of connections.
OWN_FAMILIES = {
    "http": "outlast.components.steps.http:FAMILY",
    "llm": "outlast.components.steps.llm:FAMILY",
    "postgres": "outlast.components.steps.postgres:FAMILY",
    "s3": "outlast.components.steps.s3:FAMILY",
}
