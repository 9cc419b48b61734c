"""The files in ``deploy/``: what they name exists, and every configuration in them is one that the broker accepts."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from metaq_broker.operate.config.configuration import BrokerConfig, load
from metaq_broker.operate.config.replication import PairConfig

from metaq.cli.commands import all_commands
from metaq.model import Address

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
MANIFEST = DEPLOY / "kubernetes" / "broker-pair.yaml"
COMPOSE = DEPLOY / "compose" / "compose.yaml"


def manifest() -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all(MANIFEST.read_text()))


def of_kind(kind: str) -> dict[str, Any]:
    [found] = [document for document in manifest() if document["kind"] == kind]
    return found


def services() -> dict[str, dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load(COMPOSE.read_text())["services"]


def commands_of(text: str) -> Iterator[list[str]]:
    for line in re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE):
        program, *arguments = line.split()
        yield [Path(program).name, *arguments]


def require_mirrored(one: BrokerConfig, two: BrokerConfig) -> None:
    """Check that two configurations are those of the members of one pair."""
    roles = one.role, two.role
    assert all(isinstance(role, PairConfig) for role in roles)
    others = [role.other for role in roles if isinstance(role, PairConfig)]
    assert others == [Address(each.system.host_name, each.system.server_port) for each in (two, one)]
    assert one.system.broker_id == two.system.broker_id
    assert one.zookeeper == two.zookeeper
    assert one.topics == two.topics


def test_the_members_of_the_compose_file_are_a_pair() -> None:
    one, two = (load(DEPLOY / "compose" / f"broker-{number}.ini") for number in (1, 2))
    require_mirrored(one, two)
    assert one.rocketmq is not None
    assert two.rocketmq is not None
    assert one.rocketmq.broker_name == two.rocketmq.broker_name


def test_the_members_of_the_manifest_are_a_pair(tmp_path: Path) -> None:
    files = of_kind("ConfigMap")["data"]
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    one, two = (load(tmp_path / name) for name in sorted(files))
    require_mirrored(one, two)


def test_each_pod_of_the_manifest_has_a_file_and_the_names_in_it() -> None:
    stateful, files = of_kind("StatefulSet"), of_kind("ConfigMap")["data"]
    name = stateful["metadata"]["name"]
    pods = [f"{name}-{index}" for index in range(stateful["spec"]["replicas"])]
    assert sorted(files) == [f"{pod}.ini" for pod in pods]
    service = of_kind("Service")["metadata"]["name"]
    assert stateful["spec"]["serviceName"] == service
    for pod in pods:
        assert f"hostName={pod}.{service}\n" in files[f"{pod}.ini"]


def test_the_ports_of_the_manifest_are_those_of_its_configuration(tmp_path: Path) -> None:
    [container] = of_kind("StatefulSet")["spec"]["template"]["spec"]["containers"]
    path = tmp_path / "server.ini"
    path.write_text(next(iter(of_kind("ConfigMap")["data"].values())))
    system = load(path).system
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"metaq": system.server_port, "metrics": system.metrics_port}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts["data"] == system.data_path


def test_the_labels_of_the_manifest_agree() -> None:
    label = of_kind("StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert of_kind("Service")["spec"]["selector"] == label
    assert of_kind("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == label
    assert of_kind("StatefulSet")["spec"]["selector"]["matchLabels"] == label


def test_the_files_that_the_compose_file_mounts_exist() -> None:
    mounted = [volume.split(":")[0] for service in services().values() for volume in service.get("volumes", ())]
    made_by_the_reader = {"./dashboard-token.txt"}
    for path in (path for path in mounted if path.startswith(".") and path not in made_by_the_reader):
        assert (COMPOSE.parent / path).exists(), path


def test_ports_of_the_compose_file_are_open_on_loopback_alone() -> None:
    ports = [port for service in services().values() for port in service.get("ports", ())]
    assert ports
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


def test_the_page_of_the_compose_file_is_a_command_with_these_options() -> None:
    service = services()["dashboard"]
    assert service["entrypoint"] == ["metaq", "dashboard"]
    options = {word.removeprefix("--") for word in service["command"] if word.startswith("--")}
    known = {name.removeprefix("--") for each in all_commands()["dashboard"].arguments for name in each.names}
    assert options - known == {"cluster"}  # which every command has


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_units_start_commands_of_the_package(unit: Path) -> None:
    [[program, *arguments]] = commands_of(unit.read_text())
    assert program in {"metaq", "metaq-broker", "metaq-namesrv"}
    if program == "metaq":
        [name] = [word for word in arguments if word in all_commands()]
        assert name == "dashboard"


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_accepts_the_units(unit: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not on this machine")
    # The program must exist where the unit names it: /bin/true stands in for it.
    copy = tmp_path / unit.name
    copy.write_text(re.sub(r"/opt/metaq/bin/[a-z-]+", "/bin/true", unit.read_text()))
    outcome = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, timeout=60)
    assert (outcome.returncode, [line for line in outcome.stderr.splitlines() if unit.name in line]) == (0, [])


def test_kubernetes_accepts_the_manifest() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate: make check-deploy")
    for document in manifest():
        validate.validate(document, "1.31", strict=True)


def test_hadolint_accepts_the_dockerfile() -> None:
    hadolint = shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("needs hadolint: make check-deploy")
    outcome = subprocess.run(
        [hadolint, str(DEPLOY / "Dockerfile")], capture_output=True, text=True, timeout=60, check=False
    )
    assert (outcome.returncode, outcome.stdout) == (0, "")


def test_yamllint_accepts_the_files() -> None:
    pytest.importorskip("yamllint", reason="needs yamllint: make check-deploy")
    off = ("document-start", "braces", "comments")
    left_out = ", ".join(f"{rule}: disable" for rule in off)
    rules = f"{{extends: default, rules: {{line-length: {{max: 140}}, {left_out}}}}}"
    command = [sys.executable, "-m", "yamllint", "-d", rules, str(DEPLOY)]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (outcome.returncode, outcome.stdout) == (0, "")
