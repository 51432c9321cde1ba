"""Assets: stand-ins with a notice, a user's folder, and missing files of a folder."""

import shutil
import subprocess
import sys

import mujoco
import pytest

from envs.libero.assets import find_assets, missing_files
from envs.libero.folders import cache_folder
from envs.libero.stand_in.stand_ins import ARTICULATED_FIXTURES, FOLDERS, stand_in_files
from tests.envs.libero.local_hub import local_hub

STUDY = "scenes/libero_study_base_style.xml"


@pytest.fixture
def own_folder(stand_ins, tmp_path):
    """A complete folder of a user's own."""
    shutil.copytree(stand_ins.folder, tmp_path / "assets")
    return tmp_path / "assets"


def test_a_complete_folder_is_used_and_is_not_a_stand_in(own_folder):
    found = find_assets(str(own_folder))
    assert (found.folder, found.stand_in, found.label) == (own_folder, False, str(own_folder))


def test_stand_ins_are_marked(stand_ins):
    assert (stand_ins.stand_in, stand_ins.label) == (True, "stand-in")


def test_stand_ins_are_announced(repository):
    code = (
        "from envs.libero.assets import find_assets; find_assets('stand_in'); "
        "find_assets('stand_in')"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, check=True
    )
    assert result.stderr.count("NOT LIBERO scores") == 1


def test_automatic_choice_ends_with_stand_ins_where_nothing_else_is(repository, tmp_path):
    code = "from envs.libero.assets import find_assets; assert find_assets('auto').stand_in"
    environment = {"SIIRL_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1", "PATH": ""}
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=repository, env=environment, check=True
    )
    assert [path.name[:10] for path in (tmp_path / "libero").iterdir()] == ["stand-ins-"]


@pytest.fixture
def automatic_choice(repository, tmp_path):
    """The assets that `auto` chooses in a separate process with cache `tmp_path`, from its standard
    output.
    """
    code = "from envs.libero.assets import find_assets; print(find_assets('auto').label)"
    command, own = (
        [sys.executable, "-c", code],
        {"SIIRL_CACHE": str(tmp_path), "HOME": str(tmp_path), "PATH": ""},
    )
    return lambda **hub: subprocess.run(
        command, cwd=repository, env=own | hub, capture_output=True, text=True, check=True
    )


def test_automatic_choice_downloads_once_from_the_hub_and_then_takes_the_cache(
    own_folder, automatic_choice, tmp_path
):
    with local_hub(own_folder) as (address, sent):
        assert automatic_choice(HF_ENDPOINT=address).stdout == f"{tmp_path}/libero/assets\n"
    assert len(sent) == len(set(sent)) == len(list(stand_in_files()))
    assert automatic_choice(HF_HUB_OFFLINE="1").stdout == f"{tmp_path}/libero/assets\n"


def test_download_that_breaks_off_ends_with_stand_ins_and_is_reported(
    own_folder, automatic_choice, tmp_path
):
    with local_hub(own_folder, breaks_at=STUDY) as (address, _):
        broken = automatic_choice(HF_ENDPOINT=address)
    assert broken.stdout == "stand-in\n"
    assert (
        "LIBERO's assets could not be downloaded from the Hub (peer closed connection"
        in broken.stderr
    )
    later = automatic_choice(HF_HUB_OFFLINE="1")
    assert f"The folder {tmp_path}/libero/assets lacks {STUDY}" in later.stderr


def test_damaged_cache_ends_with_stand_ins_and_is_reported(own_folder, automatic_choice, tmp_path):
    cached = tmp_path / "libero/assets"
    shutil.copytree(own_folder, cached)
    (cached / STUDY).write_text("<mujoco>")
    found = automatic_choice(HF_HUB_OFFLINE="1")
    assert found.stdout == "stand-in\n"
    assert (
        f"The folder {cached} holds a damaged description, {STUDY} (no element found"
        in found.stderr
    )


def test_cache_that_cannot_be_made_is_reported(monkeypatch):
    monkeypatch.setenv("SIIRL_CACHE", "/dev/null/cache")
    with pytest.raises(
        RuntimeError,
        match=r"cache folder /dev/null/cache/libero cannot be created .*: set SIIRL_CACHE to a folder",
    ):
        cache_folder()


def test_missing_description_is_named(own_folder):
    (own_folder / "stable_hope_objects/ketchup/ketchup.xml").unlink()
    with pytest.raises(
        ValueError,
        match=r"lacks stable_hope_objects/ketchup/ketchup\.xml\. Get them by: hf download lerobot/libero-assets",
    ):
        find_assets(own_folder)


def test_missing_mesh_of_a_description_is_named(own_folder):
    description = own_folder / "stable_hope_objects/milk/milk.xml"
    description.write_text(
        description.read_text().replace(
            "<asset />", '<asset><mesh name="m" file="visual/milk.msh" /></asset>'
        )
    )
    assert missing_files(own_folder) == ["stable_hope_objects/milk/visual/milk.msh"]


def test_empty_file_is_missing(own_folder):
    (own_folder / "turbosquid_objects/wine_rack/wine_rack.xml").write_bytes(b"")
    assert missing_files(own_folder) == ["turbosquid_objects/wine_rack/wine_rack.xml"]


def test_many_missing_files_are_counted(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        ValueError,
        match=r"lacks stable_hope_objects/alphabet_soup/alphabet_soup\.xml, .* and 38 more",
    ):
        find_assets(tmp_path / "empty")


def test_damaged_description_is_refused(own_folder):
    (own_folder / STUDY).write_text("<mujoco>")
    with pytest.raises(
        ValueError,
        match=r"holds a damaged description, scenes/libero_study_base_style\.xml \(no element found.*Get them by",
    ):
        find_assets(own_folder)


def test_word_that_is_not_a_folder_is_refused():
    with pytest.raises(
        ValueError, match=r"env\.assets='stand-in' is not a folder; it may also be auto or stand_in"
    ):
        find_assets("stand-in")


def test_stand_ins_are_for_26_objects_7_fixtures_and_5_scenes():
    assert sum(len(things) for things in FOLDERS.values()) + len(ARTICULATED_FIXTURES) == 26 + 7
    assert sum(path.startswith("scenes/") for path, _ in stand_in_files()) == 5


def test_every_description_compiles(stand_ins):
    for path in stand_ins.folder.rglob("*.xml"):
        assert mujoco.MjModel.from_xml_path(str(path)).ngeom > 0


def test_weight_is_the_one_that_is_stated(stand_ins):
    for things in FOLDERS.values():
        for thing in things:
            model = mujoco.MjModel.from_xml_string(
                next(text for path, text in stand_in_files() if path.endswith(f"/{thing.name}.xml"))
            )
            assert model.body("object").mass[0] == pytest.approx(thing.mass, rel=1e-3)
