"""Prompt files with pictures: forms that are read, and rows that are refused with their place."""

import io
import json

import numpy as np
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

from envs.prompt_files import open_prompts, write_prompts
from envs.prompt_rows import PromptRow
from envs.question_pictures import PictureSource
from envs.text import message
from siirl.data_coordinator.prompts.index import question_number
from siirl.data_coordinator.prompts.prompt_loader import PromptLoader
from siirl.errors import ConfigError, InvariantError
from siirl.models.chat import ChatTokenizer
from siirl.models.tiny_lm import tiny_tokenizer
from siirl.models.tiny_vlm import tiny_seeing_tokenizer
from siirl.params.data_args import DataArguments

TRUTH = {"style": "rule", "ground_truth": "1"}


def png(seed: int = 0, *, side: int = 32, kind: str = "PNG") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, kind)
    return stream.getvalue()


def columns(images, text="<image>How many?"):
    return {
        "data_source": "dots",
        "prompt": [{"role": "user", "content": text}],
        "reward_model": TRUTH,
        "images": images,
    }


def parquet_of(path, *rows):
    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    return path


def jsonl_of(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def loader(path, *, tokenizer=None, **options):
    defaults = {"train_batch_size": 1, "max_prompt_length": 100, "heldout_share": 0.0}
    data = DataArguments(train_files=(str(path),), **{**defaults, **options})
    return PromptLoader.of(data, encode=(tokenizer or tiny_seeing_tokenizer()).encode_row)


def test_the_forms_of_the_hub_and_of_verl_are_read(tmp_path):
    (tmp_path / "one.png").write_bytes(png(1))
    forms = [
        [{"bytes": png(1), "path": None}],
        [{"bytes": None, "path": "one.png"}],
        {"bytes": png(1), "path": "of the Hub.png"},
    ]
    for number, form in enumerate(forms):
        path = parquet_of(tmp_path / f"{number}.parquet", columns(form))
        [picture] = open_prompts(path).row(0).images
        assert picture.contents() == png(1)
    path = jsonl_of(tmp_path / "paths.jsonl", columns(["one.png"]), columns("one.png"))
    assert [row.images[0].contents() for row in open_prompts(path).rows(0, 2)] == [png(1)] * 2


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_written_rows_are_read_back(ending, tmp_path):
    row = PromptRow.of(columns([png(2)]))
    write_prompts(tmp_path / f"rows.{ending}", [row])
    assert open_prompts(tmp_path / f"rows.{ending}").row(0) == row


def test_a_row_travels_as_json(tmp_path):
    row = PromptRow.of(columns([png(2)]))
    assert PromptRow.of(json.loads(json.dumps(row.as_columns()))) == row
    assert "images" not in PromptRow.of(columns([], text="No picture")).as_columns()


def test_one_question_about_two_pictures_is_two_questions():
    rows = [PromptRow.of(columns([png(seed)])) for seed in (1, 1, 2)]
    one, same, other = map(question_number, rows)
    assert one == same != other


@pytest.mark.parametrize(
    ("images", "text", "told"),
    [
        (["gone.png"], "<image>?", r"there is no file .*gone\.png"),
        ([{"bytes": "AAAA"}], "<image>?", "is not a readable picture; known formats: PNG"),
        ([{"bytes": "?"}], "<image>?", "not base64"),
        (["notes.txt"], "<image>?", r"notes\.txt is not a readable picture"),
        (["cut.png"], "<image>?", r"cut\.png is not a readable picture"),
        (["huge.png"], "<image>?", "has 9000 x 9000 pixels"),
        (["thin.png"], "<image>?", "does not accept the picture .*thin.png: absolute aspect ratio"),
        (["ok.png"], "<image> or <image>?", "<image> 2 times, but images has 1"),
        (["ok.png"], "How many?", "<image> 0 times, but images has 1"),
        ([], "<image>?", "<image> 1 times, but images has 0"),
        (["https://example.org/a.png"], "<image>?", "download the picture"),
        ([7], "<image>?", "a picture must be a path, bytes"),
        (["ok.png"], "<image>or<|image_pad|>?", "the model's own picture token"),
    ],
)
def test_a_hostile_row_is_refused_with_its_place_and_a_remedy(images, text, told, tmp_path):
    (tmp_path / "ok.png").write_bytes(png())
    (tmp_path / "cut.png").write_bytes(png()[:-600])
    (tmp_path / "notes.txt").write_text("no picture")
    Image.new("1", (9000, 9000)).save(tmp_path / "huge.png")
    Image.new("RGB", (2, 500)).save(tmp_path / "thin.png")
    path = jsonl_of(tmp_path / "rows.jsonl", columns(["ok.png"]), columns(images, text))
    with pytest.raises(ConfigError, match=told) as refused:
        loader(path)
    assert "data.train_files" in str(refused.value)
    assert f"{path}, line 2" in str(refused.value)
    assert "Correct or remove the row." in str(refused.value)


def test_a_model_without_vision_is_named(tmp_path):
    path = parquet_of(tmp_path / "rows.parquet", columns([{"bytes": png(), "path": None}]))
    with pytest.raises(ConfigError, match="reads text only"):
        loader(path, tokenizer=ChatTokenizer(tiny_tokenizer()))


def test_a_picture_counts_as_tokens_of_the_prompt(tmp_path):
    """64 x 64 pixels are 16 places of the tiny model: with its marks, 30 tokens in all."""
    path = parquet_of(
        tmp_path / "rows.parquet",
        columns([{"bytes": png(1, side=64), "path": None}]),
        columns([{"bytes": png(2, side=16), "path": None}]),
    )
    kept = loader(path, max_prompt_length=20)
    assert len(kept.dataset) == 1
    tokenizer = tiny_seeing_tokenizer()
    row = open_prompts(path).row(0)
    ids = tokenizer.encode_prompt(row.prompt, row.images)
    assert (len(ids), ids.count(tokenizer.reader.vision.token)) == (29, 16)


def test_a_picture_that_changes_during_a_run_stops_it(tmp_path):
    (tmp_path / "one.png").write_bytes(png(1))
    path = jsonl_of(tmp_path / "rows.jsonl", columns(["one.png"]))
    stream = loader(path)
    (tmp_path / "one.png").write_bytes(png(2))
    with pytest.raises(InvariantError, match="differs from the question"):
        stream.draw(1)


def test_grey_of_sixteen_bits_is_scaled():
    stream = io.BytesIO()
    Image.fromarray(np.array([[0, 20_000, 65_535]], np.uint16)).save(stream, "PNG")
    picture = PictureSource(data=stream.getvalue()).open()
    assert np.asarray(picture)[0].tolist() == [[0] * 3, [77] * 3, [255] * 3]


def test_a_photo_is_turned_upright_as_its_orientation_tag_says():
    photo, stream = Image.new("RGB", (8, 4)), io.BytesIO()
    photo.getexif()[0x0112] = 6  # the camera was turned by a quarter
    photo.save(stream, "JPEG", exif=photo.getexif())
    assert PictureSource(data=stream.getvalue()).open().size == (4, 8)


def test_white_is_behind_transparent_parts():
    stream = io.BytesIO()
    Image.new("RGBA", (4, 4), (255, 0, 0, 0)).save(stream, "PNG")
    assert PictureSource(data=stream.getvalue()).open().getpixel((0, 0)) == (255, 255, 255)


def without_the_column(path, **others):
    row = columns([], "An <image> tag") | others
    del row["images"]
    return jsonl_of(path, row)


def test_text_about_image_tags_stays_text_for_a_text_model(tmp_path):
    path = without_the_column(tmp_path / "rows.jsonl")
    assert open_prompts(path).row(0).prompt[0] == message("user", "An <image> tag")
    assert len(loader(path, tokenizer=ChatTokenizer(tiny_tokenizer())).dataset) == 1


def test_a_prompt_that_is_not_of_a_file_may_quote_the_placeholder():
    """An answer in a checker's prompt, or an environment's text: no column is missing."""
    assert tiny_seeing_tokenizer().encode_prompt([message("user", "I see <image> so 4")])


@pytest.mark.parametrize("others", [{}, {"image": ["ok.png"]}], ids=["missing", "misspelt"])
def test_a_placeholder_without_the_column_is_refused_for_a_model_that_sees(others, tmp_path):
    path = without_the_column(tmp_path / "rows.jsonl", **others)
    with pytest.raises(ConfigError, match="<image> 1 times, but the row has 0") as refused:
        loader(path)
    assert f"{path}, line 1" in str(refused.value)
    assert "in the column images" in str(refused.value)
