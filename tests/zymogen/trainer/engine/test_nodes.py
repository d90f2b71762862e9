"""Two nodes with disks of their own, here two launchers in two folders: each builds its store, and both must agree."""

import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from data.sources.synthetic import Families, write_corpus
from pretrain.__main__ import main
from support.launching import DDP, LIMIT_S, End, Launched, command, end_of, environment, largest_difference
from support.places import ROOT

pytestmark = [pytest.mark.launch, pytest.mark.xdist_group("nodes")]

LENGTH = "schedule.total_tokens=5_000"


def on_two_nodes(
    recipe: Path, folders: tuple[Path, Path], *overrides: str, config: Path = DDP, processes: int = 2
) -> list[Launched]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launchers = []
    for rank, folder in enumerate(folders):
        words = command([recipe, "data.store_dir=stores", LENGTH, *overrides], processes, config=config)
        at = words.index(str(config)) + 1
        place = ["--main_process_ip", "127.0.0.1", "--main_process_port", str(port)]
        words[at:at] = ["--num_machines", "2", "--machine_rank", str(rank), *place]
        piped = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        launchers.append(subprocess.Popen(words, cwd=folder, env=environment(), text=True, **piped))
    outputs = [process.communicate(timeout=LIMIT_S)[0] for process in launchers]
    return [Launched(process.returncode, output) for process, output in zip(launchers, outputs, strict=True)]


@pytest.fixture
def nodes(tmp_path: Path) -> tuple[Path, Path]:
    """The working folders, each with the same corpus under the same relative names."""
    folders = tmp_path / "a", tmp_path / "b"
    for folder in folders:
        write_corpus(folder, Families(num_families=40, members_per_family=4, mean_residues=60, max_residues=150))
    return folders


@pytest.fixture(scope="module")
def on_one_process(recipe_in, tmp_path_factory: pytest.TempPathFactory) -> End:
    """Where the same run ends without any launcher."""
    folder = tmp_path_factory.mktemp("one")
    assert main([str(recipe_in(folder)), LENGTH]) == 0
    return end_of(folder / "run")


LOCAL = ('data.sources=["families.fasta.gz"]', "data.clusters=clusters.tsv")


def test_each_node_builds_its_store_and_trains_the_same(
    recipe_in, tmp_path: Path, nodes: tuple[Path, Path], on_one_process: End
) -> None:
    for done in on_two_nodes(recipe_in(tmp_path / "two"), nodes, *LOCAL):
        assert done.status == 0, done.output
    assert [len(list(node.glob("stores/*/store.json"))) for node in nodes] == [1, 1]
    assert end_of(tmp_path / "two/run").chain == on_one_process.chain


def test_nodes_with_other_files_do_not_train(recipe_in, tmp_path: Path, nodes: tuple[Path, Path]) -> None:
    shutil.rmtree(nodes[1])
    write_corpus(nodes[1], Families(seed=1, num_families=40, members_per_family=4, mean_residues=60, max_residues=150))
    first, second = on_two_nodes(recipe_in(tmp_path), nodes, *LOCAL)
    assert first.status != 0
    assert second.status != 0
    assert "rank 1 has another corpus than rank 0" in first.errors()[0], first.output
    assert not (tmp_path / "run/checkpoints").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "processes", "overrides"),
    [
        pytest.param("hsdp", 4, (), marks=pytest.mark.prove),
        pytest.param("zero3", 2, (), marks=pytest.mark.prove),
        pytest.param("fsdp2", 4, ("parallel.context=2",), marks=pytest.mark.prove),
    ],
    ids=["hsdp", "zero3", "fsdp2-context"],
)
def test_engines_that_shard_go_over_two_nodes(
    recipe_in,
    tmp_path: Path,
    nodes: tuple[Path, Path],
    on_one_process: End,
    engine: str,
    processes: int,
    overrides: tuple[str, ...],
) -> None:
    """Copies on each node, shards over both, and groups that share batches inside of one."""
    config = ROOT / f"accelerate_configs/{engine}.yaml"
    recipe = recipe_in(tmp_path / "two")
    for done in on_two_nodes(recipe, nodes, *LOCAL, *overrides, config=config, processes=processes):
        assert done.status == 0, done.output
    end = end_of(tmp_path / "two/run")
    assert end.chain == on_one_process.chain
    assert largest_difference(end, on_one_process) < 2e-6  # what rounding amounts to; 8.4e-3 where something is wrong
