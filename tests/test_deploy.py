"""
What is in ``deploy/``: the unit, the image and the manifest say what a worker needs, and start one that ends as it should.

No systemd starts the unit here, no Docker builds the image and no cluster runs the manifest; docs/deploy.md says so.
"""

from __future__ import annotations

import configparser
import inspect
import io
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import psycopg
import pytest
import yaml
from dockerfile_parse import DockerfileParser

import forked
import outlast
from labor import Beside, wait_until
from outlast.cli import worker as command
from outlast.jobs import worker as working
from servers.program import find

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs" / "deploy.md").read_text()
UNIT = DEPLOY / "outlast-worker@.service"
OUTLAST = str(Path(sys.executable).parent / "outlast")
SYSTEMD = "install the package systemd (`make servers` does, as root)"

DRAIN = float(inspect.signature(command.worker).parameters["drain"].default.removesuffix("s"))
LONGEST = DRAIN + 3 * working.FAREWELL  # for code to clean up, for a store that is away, for the last try


def unit():
    """The unit's sections, with the keys as they are written."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read_string(UNIT.read_text())
    return parser


IMAGES = ("Dockerfile", "Dockerfile.project")


def dockerfile(name="Dockerfile"):
    return DockerfileParser(fileobj=io.BytesIO((DEPLOY / name).read_bytes()))


def manifests():
    """What is in the manifest, by kind."""
    return {one["kind"]: one for one in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}


def pod(kind):
    return manifests()[kind]["spec"]["template"]["spec"]


# --- each says what its reader knows ---


@pytest.fixture
def instance(tmp_path):
    """The unit as systemd sees it for an instance, with a program that is there."""
    folder = tmp_path / "units"
    folder.mkdir()
    path = folder / "outlast-worker@shop.service"
    path.write_text(UNIT.read_text().replace("/opt/%i/venv/bin/outlast", OUTLAST))
    return path


def systemd_analyze(*arguments):
    program = find("systemd-analyze", package=SYSTEMD)
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False)


def test_systemd_finds_nothing_wrong_with_the_unit(instance):
    """And what it may do is little: systemd's own figure for its exposure goes to 10."""
    verified = systemd_analyze("verify", "--man=no", instance)
    assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")
    instance.write_text(instance.read_text().replace("KillMode=mixed", "KillMode=mixt"))
    assert "kill mode" in systemd_analyze("verify", "--man=no", instance).stderr, "it would find a mistake"
    shown = systemd_analyze("security", "--offline=true", "--no-pager", instance).stdout
    assert float(re.search(r"Overall exposure level .*: ([\d.]+)", shown)[1]) <= 2.5


@pytest.mark.parametrize("kind", ["Secret", "Job", "Deployment", "PodDisruptionBudget"])
@pytest.mark.parametrize("version", ["1.27", "1.34"])
def test_kubernetes_knows_every_field_of_the_manifest(kind, version):
    """By the schemas of Kubernetes, strictly."""
    kubernetes_validate.validate(manifests()[kind], version, strict=True)


def test_the_schemas_of_kubernetes_find_a_mistake():
    wrong = manifests()["Deployment"]
    wrong["spec"]["template"]["spec"]["terminationGracePeriod"] = 5
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.34", strict=True)


# --- they wait for the end of a worker, and tell its end right ---


def test_each_waits_longer_than_a_worker_takes_to_end():
    """The drain, the time to clean up, and a store that is away; the page and the command name the numbers."""
    patience = {
        "systemd": float(unit()["Service"]["TimeoutStopSec"]),
        "Kubernetes": float(pod("Deployment")["terminationGracePeriodSeconds"]),
        "Docker": float(re.search(r"docker run .*--stop-timeout (\d+)", PAGE)[1]),
    }
    assert {name: seconds > LONGEST for name, seconds in patience.items()} == dict.fromkeys(patience, True)
    assert (DRAIN, working.FAREWELL) == (20.0, 5.0), "the page and the help name them"
    said = subprocess.run([OUTLAST, "worker", "--help"], capture_output=True, text=True, check=True).stdout
    assert "another 5 seconds" in " ".join(said.replace("│", " ").split())
    assert "20 seconds" in PAGE
    assert f"{LONGEST:.0f} seconds" in PAGE


def test_systemd_takes_no_end_by_a_signal_for_a_failure():
    """Nor does it start again what is wrong; a child that is killed for its memory does not take the worker with it."""
    service = unit()["Service"]
    assert service["SuccessExitStatus"].split() == ["130", "143"]
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("on-failure", "2")
    assert (service["KillSignal"], service["KillMode"], service["OOMPolicy"]) == ("SIGTERM", "mixed", "continue")


def test_nobody_is_root():
    assert dict(unit()["Service"])["DynamicUser"] == "yes"
    users = [line["value"] for line in dockerfile().structure if line["instruction"] == "USER"]
    assert users == ["10001:10001"]
    for kind in ("Job", "Deployment"):
        found, (container,) = pod(kind), pod(kind)["containers"]
        assert (found["securityContext"]["runAsNonRoot"], found["securityContext"]["runAsUser"]) == (True, 10001)
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert not container["securityContext"]["allowPrivilegeEscalation"]
        assert container["envFrom"] == [{"secretRef": {"name": manifests()["Secret"]["metadata"]["name"]}}]


def test_the_image_has_what_it_copies_and_no_address():
    """Signals reach the program: no shell stands before it. Every source is in the repository, or named as the user's."""
    lines = dockerfile().structure
    by = {one["instruction"]: one["value"] for one in lines}
    assert json.loads(by["ENTRYPOINT"]) == ["outlast"]
    assert json.loads(by["CMD"])[0] == "worker"
    assert by["STOPSIGNAL"] == "SIGTERM"
    assert "ADD" not in by
    assert "://" not in dockerfile().content
    assert "index" not in dockerfile().content
    copied = [one["value"].split() for one in lines if one["instruction"] == "COPY" and "--from" not in one["value"]]
    assert {name for words in copied for name in words[:-1] if not (ROOT / name).exists()} == {"app"}
    extras = re.search(r"\[([\w,]+)\]", next(one["value"] for one in lines if "pip install" in one["value"]))[1]
    known = outlast_metadata()["optional-dependencies"]
    assert set(extras.split(",")) <= set(known)


def outlast_metadata():
    import tomllib

    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_command_that_makes_the_wheel_of_the_image_makes_one(tmp_path):
    """From what the image copies, and nothing else."""
    source, wheels = tmp_path / "source", tmp_path / "wheels"
    for one in dockerfile().structure:
        if one["instruction"] == "COPY" and one["value"].split()[0] in {"pyproject.toml", "src"}:
            *names, _ = one["value"].split()
            source.mkdir(exist_ok=True)
            subprocess.run(["cp", "-r", *(str(ROOT / name) for name in names), str(source)], check=True)
    (made,) = (json.loads(one["value"]) for one in dockerfile().structure if '"wheel"' in one["value"])
    here = [sys.executable if word == "python" else str(wheels) if word == "/wheels" else word for word in made]
    # The tools are in the environment of the tests: nothing is fetched.
    here += ["--no-build-isolation", "--no-index", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(here, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in wheels.iterdir()] == [f"outlast-{outlast_metadata()['version']}-py3-none-any.whl"]


# --- and a worker that is started as they say ends as they expect ---

SHOP = """
import pathlib
import threading

import outlast

app = outlast.App("shop")


@app.job
def hold() -> str:
    pathlib.Path("begun").touch()
    while not pathlib.Path("go").exists():
        threading.Event().wait(0.005)
    return "held"
"""


def by_systemd():
    words = shlex.split(unit()["Service"]["ExecStart"])
    words[0] = OUTLAST
    given = {"$WORKER_TARGET": ["shop.jobs:app"], "$WORKER_OPTIONS": ["--concurrency", "32"]}
    return [part for word in words for part in given.get(word, [word])]


def by_docker():
    """As process 1 of a namespace, as it is in a container."""
    by = {one["instruction"]: one["value"] for one in dockerfile().structure}
    program = [OUTLAST, *json.loads(by["ENTRYPOINT"])[1:], *json.loads(by["CMD"])]
    return ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *program]


def by_kubernetes():
    """With a port that is free here."""
    (container,) = pod("Deployment")["containers"]
    return [OUTLAST, *("0" if word == "9100" else word for word in container["args"])]


def probe():
    (container,) = pod("Deployment")["containers"]
    return container["startupProbe"]["exec"]["command"]


def test_nothing_restarts_a_worker_whose_store_is_away():
    """A probe that asks the store would: the only one is asked until a worker has begun. Neither image has a check."""
    (container,) = pod("Deployment")["containers"]
    assert [name for name in container if name.endswith("Probe")] == ["startupProbe"]
    for name in ("Dockerfile", "Dockerfile.project"):
        assert "HEALTHCHECK" not in {one["instruction"] for one in dockerfile(name).structure}


def test_the_image_of_a_project_is_that_of_the_repository_with_another_source():
    """The same user, program, signal and extras; only what is the user's own is copied."""
    ours, theirs = ({one["instruction"]: one["value"] for one in dockerfile(name).structure} for name in IMAGES)
    for instruction in ("FROM", "ENV", "USER", "STOPSIGNAL", "ENTRYPOINT", "CMD"):
        assert ours[instruction] == theirs[instruction]
    extras = [re.search(r"\[([\w,]+)\]", dockerfile(name).content.partition("pip install")[2])[1] for name in IMAGES]
    assert extras == ["cli,cron,metrics,postgres"] * 2
    copied = [one["value"].split()[0] for one in dockerfile(IMAGES[1]).structure if one["instruction"] == "COPY"]
    assert copied == ["requirements.txt", "shop"]


def test_the_metrics_are_where_the_annotations_say():
    (container,) = pod("Deployment")["containers"]
    port = container["args"][container["args"].index("--metrics-port") + 1]
    told = manifests()["Deployment"]["spec"]["template"]["metadata"]["annotations"]
    assert (told["prometheus.io/port"], container["ports"][0]["containerPort"]) == (port, int(port))


def test_one_unit_serves_all_workers_of_an_app(tmp_path):
    """The command of the page makes it: systemd finds nothing wrong, and every number has the same folder and file."""
    (command,) = re.findall(r"^# (sed .*) > /etc/systemd/system/shop-worker@\.service$", PAGE, re.MULTILINE)
    made = subprocess.run(shlex.split(command), cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines = made.splitlines()
    assert [line for line in lines if "%" in line] == []
    assert {"EnvironmentFile=/etc/outlast/shop.env", "WorkingDirectory=/opt/shop"} <= set(lines)
    path = tmp_path / "shop-worker@2.service"
    path.write_text(made.replace("/opt/shop/venv/bin/outlast", OUTLAST))
    verified = systemd_analyze("verify", "--man=no", path)
    assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")
    assert PAGE.index("mkdir -p /etc/outlast && install -m 600") < PAGE.index("> /etc/outlast/shop.env")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("start", [by_systemd, by_docker, by_kubernetes])
def test_a_worker_that_is_started_so_drains_at_sigterm(start, tmp_path):
    """It registers, its probe says so, SIGTERM lets what runs end, and the exit code is 0; then the probe says that too."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "jobs.py").write_text(SHOP)
    environment = os.environ | {"OUTLAST_STORE": f"sqlite:///{tmp_path}/store.db", "PYTHONPATH": str(tmp_path)}
    first = probe()
    assert first == ["outlast", "jobs", "workers", "--here", "--json"]

    def run(*words):
        return forked.run([sys.executable, "-m", "outlast.cli", *words], cwd=tmp_path, env=environment)

    assert run("enqueue", "shop.jobs:hold").returncode == 0
    (migrate,) = pod("Job")["containers"]
    assert run(*migrate["args"]).returncode == 0
    none = run(*first[1:])
    assert (none.returncode, json.loads(none.stdout)) == (1, [])
    process = subprocess.Popen(start(), cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        wait_until((tmp_path / "begun").exists, "the job has begun")
        probed = run(*first[1:])
        assert probed.returncode == 0, probed.stderr
        (one,) = json.loads(probed.stdout)
        assert (one["alive"], one["process"].partition(",")[0]) == (True, socket.gethostname())
        os.kill(worker_of(process), signal.SIGTERM)
        (tmp_path / "go").touch()
        out, err = process.communicate(timeout=200)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert b"Ended by SIGTERM; all work is finished or given back." in out
    assert json.loads(run("jobs", "show", "1", "--json").stdout)["status"] == "succeeded"
    assert run(*first[1:]).returncode == 1


def worker_of(process):
    """The process of the worker itself."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(children[0]) if process.args[0] == "unshare" else process.pid


# --- how many connections ---


@pytest.mark.timeout(240)
def test_a_worker_has_no_more_connections_than_the_page_says(postgres_server):
    """However many of its jobs enqueue at once: one listens, one is for turns, eight are for everything else."""
    database = postgres_server.database("counted")
    app = outlast.App("counted", store=database.dsn)
    seen = set()

    @app.job
    async def after() -> None:
        return

    @app.job
    def before() -> None:
        after.enqueue()

    def look():
        with psycopg.connect(database.dsn, application_name="the test") as connection:
            others = "select count(*) from pg_stat_activity where datname = 'counted' and application_name <> 'the test' and backend_type = 'client backend'"
            seen.update(connection.execute(others).fetchone())
        return all(queue.queued == 0 and queue.processing == 0 for queue in app.jobs.stats())

    before.enqueue_many({} for _ in range(400))
    with Beside(app):
        wait_until(look, "all jobs are done")
    app.store.close()
    assert max(seen) <= int(re.search(r"at most (\d+) connections", PAGE)[1]) == 10
