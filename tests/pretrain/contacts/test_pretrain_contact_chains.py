"""Chains of structures: letters, places and contacts, from files of every kind."""

import gzip
import itertools
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
from Bio.SeqIO.FastaIO import SimpleFastaParser

from pretrain.contacts.chains import CONTACT, Chain, chains_of, files_of
from pretrain.contacts.score import format_scores, score_contacts
from pretrain.contacts.split import filter_chains
from pretrain.model.initialization import initialise
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.presets import PRESETS
from support.inputs.structure_files import Atoms, pdb_text
from support.places import REAL

ROOM = REAL.parent / "structure"
needs_structures = pytest.mark.skipif(not ROOM.is_dir(), reason="no structures beside the project (shared/data)")

CAPSID = "MDIRQGPKEPFRDYVDRFYKTLRAEQASQEVKNWMTETLLVQNANPDCKTILKALGPGATLEEMMTACQG"
GB1 = "MQYKLILNGKTLKGETTTEAVDAATAEKVFKQYANDNGVDGEWTYDDATKTFTVTE"
AMYLOID = "LVFFAEDVGSNKGAIIGLMVGGVVIA"


def read(folder: Path, *models: list[Atoms], name: str = "made.pdb") -> list[Chain]:
    path = folder / name
    path.write_text(pdb_text(*models))
    return chains_of(path)


def bonded(names: list[str], first: int = 1, at: int = 0) -> list[Atoms]:
    """Residues on a line, each bonded to the next."""
    return [Atoms(name, first + place, (3.8 * (at + place), 0.0, 0.0)) for place, name in enumerate(names)]


# What is made here --------------------------------------------------------------------------------


def test_letters_and_places(tmp_path: Path) -> None:
    (chain,) = read(tmp_path, [*bonded(["ALA", "GLY", "TRP"]), Atoms("HOH", 9, (50.0, 0, 0), hetero=True)])
    assert (chain.name, chain.residues) == ("made_A", "AGW")
    expected = [[1.4, 1.5, 0], [3.8 + 1.4, 0, 0], [7.6 + 1.4, 1.5, 0]]  # CB, CA of glycine, CB
    assert chain.places == pytest.approx(np.array(expected), abs=2e-3)


def test_selenomethionine_is_methionine_and_ligands_are_not_read(tmp_path: Path) -> None:
    residues = bonded(["ALA", "MSE", "LEU"])
    residues[1] = residues[1]._replace(hetero=True)
    ligand = Atoms("ATP", 4, (11.4, 0.0, 0.0), hetero=True)
    nucleotide = Atoms("DA", 1, (90.0, 0, 0), chain="B")
    (chain,) = read(tmp_path, [*residues, ligand, nucleotide])
    assert chain.residues == "AML"
    assert chain.is_resolved.all()


@pytest.mark.parametrize(
    ("second", "at", "letters"),
    [
        (6, 40, "ALXXKV"),  # not bonded: two numbers are between
        (6, 2, "ALKV"),  # bonded, whatever the numbers say
        (4, 40, "ALKV"),  # not bonded, and no number is between
        (-9, 40, "ALKV"),  # numbers begin again
    ],
)
def test_a_gap_is_as_long_as_the_numbers_say(tmp_path: Path, second: int, at: int, letters: str) -> None:
    first = bonded(["ALA", "LEU"], first=2)
    (chain,) = read(tmp_path, [*first, *bonded(["LYS", "VAL"], first=second, at=at)])
    assert chain.residues == letters
    assert chain.is_resolved.tolist() == [letter != "X" for letter in letters]
    unknown = ~chain.is_resolved
    assert not chain.contacts[unknown].any()
    assert not chain.contacts[:, unknown].any()


@pytest.mark.parametrize("numbers", [[1, 10_002], [1, 10_003], [1, 5_002, 10_005], [1, 30_000_000], [-99, 30_000]])
def test_residue_numbers_cannot_make_a_chain_of_any_length(tmp_path: Path, numbers: list[int]) -> None:
    """An mmCIF of a kilobyte could ask for a chain of gigabytes."""
    columns = ("group_PDB", "id", "type_symbol", "label_atom_id", "label_alt_id", "label_comp_id", "label_asym_id")
    columns += ("label_seq_id", "pdbx_PDB_ins_code", "Cartn_x", "Cartn_y", "Cartn_z", "occupancy", "B_iso_or_equiv")
    columns += ("auth_seq_id", "auth_comp_id", "auth_asym_id", "auth_atom_id", "pdbx_PDB_model_num")
    rows = [f"ATOM {n} C CA . ALA A {n} ? {40 * n} 0 0 1 0 {at} ALA A CA 1" for n, at in enumerate(numbers, 1)]
    path = tmp_path / "made.cif"
    path.write_text("\n".join(["data_made", "loop_", *(f"_atom_site.{name}" for name in columns), *rows, "#", ""]))
    missing = numbers[-1] - numbers[0] + 1 - len(numbers)
    if missing <= 10_000:
        (chain,) = chains_of(path)
        assert len(chain.residues) == len(numbers) + missing == 10_002
        return
    with pytest.raises(ValueError, match=rf"made.cif: chain 'A' lacks {missing:,} residues, .* renumber the chain"):
        chains_of(path)


def test_a_residue_without_its_atom_has_no_place(tmp_path: Path) -> None:
    residues = bonded(["ALA", "LEU", "SER"])
    residues[1] = residues[1]._replace(atoms=("N", "CA", "C"))
    (chain,) = read(tmp_path, [*residues])
    assert chain.residues == "ALS"
    assert chain.is_resolved.tolist() == [True, False, True]


def test_the_first_model_is_read(tmp_path: Path) -> None:
    moved = [each._replace(at=(each.at[0], 20.0, 0.0)) for each in bonded(["ALA", "LEU"])]
    (chain,) = read(tmp_path, moved, bonded(["ALA", "LEU", "SER"]))
    assert chain.residues == "AL"
    assert chain.places[:, 1] == pytest.approx([21.5, 21.5])


def test_contacts_are_nearer_than_8_angstrom() -> None:
    places = np.array([[0, 0, 0], [7.999, 0, 0], [8.0, 0, 0], [np.nan] * 3], np.float32)
    contacts = Chain("made", "AAAX", places).contacts
    assert contacts[0].tolist() == [True, True, False, False]
    assert (contacts == contacts.T).all()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", b"", r"a\.txt is no structure; its name must end in one of \.cif, \.ent, \.mmcif, \.pdb, also with"),
        ("a.pdb", b"", r"a\.pdb cannot be read as a structure: Empty file"),
        ("a.pdb", b"REMARK\n", r"a\.pdb holds no atoms; give a file"),
        ("a.pdb.gz", b"ATOM", r"a\.pdb\.gz cannot be read as a structure: Not a gzipped file"),
        ("a.cif", b"data_x\n", r"a\.cif cannot be read as a structure: "),
    ],
)
def test_what_is_no_structure_is_one_error(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=said):
        [chains_of(each) for each in files_of(path)]


def test_files_of_a_folder(tmp_path: Path) -> None:
    for name in ("b.pdb.gz", "a.cif", "notes.txt", "C.ENT"):
        (tmp_path / name).touch()
    assert [path.name for path in files_of(tmp_path)] == ["C.ENT", "a.cif", "b.pdb.gz"]
    with pytest.raises(ValueError, match=r"absent does not exist; give a folder of structures"):
        files_of(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty holds no structure; "):
        files_of(tmp_path / "empty")


# Published structures -----------------------------------------------------------------------------


@needs_structures
def test_both_formats_of_1a8o_give_one_chain() -> None:
    (cif,), (pdb,) = chains_of(ROOM / "1A8O.cif"), chains_of(ROOM / "1A8O.pdb")
    assert cif.residues == pdb.residues == CAPSID  # its methionines are selenomethionine
    assert np.array_equal(cif.places, pdb.places, equal_nan=True)
    assert np.array_equal(cif.contacts, pdb.contacts)
    assert cif.is_resolved.all()
    assert cif.contacts.sum() > 400


@needs_structures
def test_contacts_of_gb1_are_those_of_a_plain_loop() -> None:
    """From the columns of the file, one pair at a time."""
    (chain,) = chains_of(ROOM / "2qmt_gb1.pdb")
    assert chain.residues == GB1
    places: dict[int, tuple[float, ...]] = {}
    for line in (ROOM / "2qmt_gb1.pdb").read_text().splitlines():
        if line.startswith("ATOM") and line[16] in " A":
            atom, residue, number = line[12:16].strip(), line[17:20], int(line[22:26])
            if atom == ("CA" if residue == "GLY" else "CB"):
                places[number] = tuple(float(line[at : at + 8]) for at in (30, 38, 46))
    assert len(places) == len(chain.residues)
    found = chain.contacts
    for i, j in itertools.product(range(len(places)), repeat=2):
        one, other = (np.array(places[sorted(places)[each]]) for each in (i, j))
        assert found[i, j] == (np.linalg.norm(one - other) < CONTACT)


@needs_structures
def test_several_models_and_packed_files() -> None:
    chains = chains_of(ROOM / "2BEG_nmr_multimodel.pdb.gz")
    assert [(chain.name[-2:], chain.residues) for chain in chains] == [(f"_{name}", AMYLOID) for name in "ABCDE"]
    with gzip.open(ROOM / "2BEG_nmr_multimodel.pdb.gz", "rt") as file:
        first = next(line for line in file if line.startswith("ATOM") and line[12:16] == " CB ")
    assert chains[0].places[0] == pytest.approx([float(first[at : at + 8]) for at in (30, 38, 46)], abs=1e-3)
    for name in ("4CUP.cif.gz", "5L33.pdb.gz"):
        (chain,) = chains_of(ROOM / name)
        assert len(chain.residues) > 90
        assert chain.is_resolved.sum() > 90


@pytest.fixture(scope="module")
def backbones(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of 460 chains."""
    folder = tmp_path_factory.mktemp("backbones")
    with tarfile.open(ROOM / "bm5_backbones.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "bm5"


@needs_structures
@pytest.mark.slow
def test_backbones_have_the_letters_of_their_sequences(backbones: Path) -> None:
    with gzip.open(ROOM / "bm5_sequences.fasta.gz", "rt") as file:
        sequences = dict(SimpleFastaParser(file))
    found = {path.stem: chains_of(path) for path in files_of(backbones)}
    assert found.keys() == sequences.keys()
    letters = {name: "".join(chain.residues for chain in chains).replace("X", "") for name, chains in found.items()}
    differing = [name for name in sequences if letters[name] != sequences[name].replace("X", "")]
    assert differing == []
    assert sum(map(len, sequences.values())) == 71_306
    assert all(len(chains) == 1 for chains in found.values())


@needs_structures
@pytest.mark.prove
@pytest.mark.skipif(shutil.which("mmseqs") is None, reason="no program 'mmseqs' (apt install mmseqs2)")
def test_random_weights_know_no_contacts_of_the_backbones(backbones: Path) -> None:
    """Fitted on 20 chains, scored on all that are no relatives of theirs."""
    chains, left_out = filter_chains((chain for path in files_of(backbones) for chain in chains_of(path)), 1022)
    model = MaskedLanguageModel(PRESETS["esm2_60k"]).eval()
    initialise(model, 7)
    found = score_contacts(model, "another seed", chains)
    print("\n".join(format_scores(found)), left_out)
    assert len(found.fitted_on) == 20
    assert len(found.chains) > 300
    assert len(set(found.clusters)) > 100
    chance = found.means["chance"]["chance"]
    assert 0.01 < chance.low < chance.mean < chance.high < 0.1
    for who in ("another seed", "random weights"):
        precision = found.means[who]["P@L"]
        assert precision.low < precision.mean < precision.high < 0.12
