"""
From a pipeline file to a manifest: YAML is read with its places, checked as a whole, and compiled. Nothing runs here.

    yaml        bytes to a tree with lines and columns, within limits; the only user of PyYAML
    mistakes    what is wrong, one line each
    keys        the format as tables: every key, its kind and its meaning
    references  ${params.x}, ${key}, ${steps.id.outputs.name}, pure
    params      what a file declares, and the value that each has, pure
    values      scalars, references and secrets of a file, each mistake at its place
    blocks      retry, timeout, circuit_breaker, limit and retry_budget, through settings
    model       the checked model of a file
    reading     from the tree to the model: its head; declaring: parameters; steps: one by one; linking: several at once
    parts       what steps say of circuits, limits and retry budgets that they share
    graph       which step comes after which, pure
    schedule    what a policy comes to in time, pure
    manifest    Manifest and ManifestStep: canonical JSON, fingerprints; shapes: what its parts look like, pure
    connections connections.yaml: what steps name as @family.alias
    compile     text to manifest, or all mistakes
    profiles    what is wrong under one of a file's profiles only, pure
    rules       what is allowed and rarely meant: warnings, as data
    plan        a manifest for people: tables and sentences, pure
    schema      the JSON Schema of a file, from the same tables as the checks
    diff        two manifests compared, in words, pure
"""
