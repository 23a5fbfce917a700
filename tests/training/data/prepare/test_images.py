import errno
import os
import random
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image

from tests.training.conftest import make_unavailable
from training.data import DataError, Images, check_prepared, load
from training.data.__main__ import main
from training.data.manifest import MANIFEST_FILE, ShardsManifest, read_manifest
from training.data.prepare import output
from training.data.prepare.images import Dropped, Picture, Source, from_dataset, prepare_images
from workload import exit_codes


def write_pictures(folder: Path, count: int = 20) -> None:
    """Write images of two classes, 40 x 50, and files that `prepare` must drop or ignore."""
    pixels = np.random.default_rng(0).integers(0, 256, (count, 40, 50, 3), dtype=np.uint8)
    for name in ("cat", "dog"):
        (folder / name / "deep").mkdir(parents=True)
    for number, image in enumerate(pixels):
        name = "cat" if number % 2 else "dog"
        directory = folder / name / ("deep" if number % 3 else "")
        Image.fromarray(image).save(directory / f"{number}.{'png' if number % 4 else 'bmp'}")
    Image.fromarray(pixels[0]).save(folder / "cat/again.png")
    Image.fromarray(pixels[1][:20]).save(folder / "dog/small.png")
    (folder / "dog/notes.txt").write_text("no image")
    (folder / "cat/cut.png").write_bytes((folder / "cat/again.png").read_bytes()[:900])
    (folder / "README").write_text("belongs to no class")
    (folder / "lost+found").mkdir()
    (folder / "cat/.hidden").write_text("")
    (folder / "cat/.snapshot").mkdir()
    (folder / "cat/.snapshot/old.png").write_text("")


def prepare(folder: Path, target: Path, *arguments: str) -> int:
    options = [f"--folder={folder}", "--size=32", "--held-out=0.3", *arguments]
    return main(["prepare", "images", *options, str(target)])


@pytest.mark.parametrize(
    ("number", "code"),
    [(errno.EIO, exit_codes.FAILED), (errno.EACCES, exit_codes.BAD_INPUT)],
)
@pytest.mark.parametrize("function", ["PIL.Image.open", "pathlib.Path.iterdir"])
def test_images_that_cannot_be_read_are_an_error(
    function: str,
    number: int,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_pictures(tmp_path / "pictures")
    error = OSError(number, os.strerror(number))
    monkeypatch.setattr(function, Mock(side_effect=error))
    assert prepare(tmp_path / "pictures", tmp_path / "shards") == code
    assert f"cannot be read: {error.strerror}" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["cat", "cat/again.png"])
def test_images_that_cannot_be_inspected_are_not_omitted(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_pictures(tmp_path / "pictures")
    make_unavailable(tmp_path / "pictures" / name, monkeypatch)
    assert prepare(tmp_path / "pictures", tmp_path / "shards") == exit_codes.FAILED
    assert f"pictures/{name} cannot be read: Stale file handle" in capsys.readouterr().err


def test_class_directories_are_converted_to_shards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_pictures(tmp_path / "pictures")
    assert prepare(tmp_path / "pictures", tmp_path / "shards") == 0
    captured = capsys.readouterr().out
    assert "dropped: 1 duplicate\ndropped: 1 too small\ndropped: 2 unreadable\n" in captured
    data = load("shards", tmp_path, None, seed=0)
    assert (data.shape, data.classes) == ((3, 32, 32), ("cat", "dog"))
    assert len(data.train) + len(data.held_out) == 20
    assert len(data.held_out) >= 2
    assert f"{len(data.train)} training images in 1 file\n" in captured
    manifest = read_manifest(tmp_path / "shards")
    assert manifest.settings == {"size": 32, "min_size": 32, "held_out": 0.3}


def test_a_class_whose_name_is_not_utf8_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_pictures(tmp_path / "pictures")
    (tmp_path / "pictures/dog").rename(tmp_path / "pictures/d\udcffg")
    assert prepare(tmp_path / "pictures", tmp_path / "shards") == exit_codes.BAD_INPUT
    assert "is not UTF-8: rename it" in capsys.readouterr().err


def test_shards_do_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    write_pictures(tmp_path / "pictures")
    assert prepare(tmp_path / "pictures", tmp_path / "one", "--workers=1") == 0
    assert prepare(tmp_path / "pictures", tmp_path / "many", "--workers=4") == 0
    one_worker, many_workers = (read_manifest(tmp_path / name) for name in ("one", "many"))
    assert one_worker == many_workers


def test_adding_images_keeps_the_earlier_held_out_images(tmp_path: Path) -> None:
    write_pictures(tmp_path / "few", 20)
    write_pictures(tmp_path / "more", 40)
    held_out = []
    for name in ("few", "more"):
        assert prepare(tmp_path / name, tmp_path / f"from-{name}/shards") == 0
        data = load("shards", tmp_path / f"from-{name}", None, seed=0)
        pixels, _ = data.held_out.batch(np.arange(len(data.held_out)))
        held_out.append({image.tobytes() for image in pixels})
    assert held_out[0] < held_out[1]


@pytest.mark.parametrize(
    ("suffix", "order"), [("png", "<"), ("tif", "<"), ("tif", ">"), ("pgm", "<")]
)
@pytest.mark.parametrize("options", [[], ["--grey"]])
def test_16_bit_images_are_converted_to_8_bits_per_channel(
    options: list[str], suffix: str, order: str, tmp_path: Path
) -> None:
    pixels = np.random.default_rng(0).integers(0, 2**16, (20, 32, 32), dtype=np.uint16)
    (tmp_path / "pictures/x-ray").mkdir(parents=True)
    for number, image in enumerate(pixels):
        path = tmp_path / f"pictures/x-ray/{number}.{suffix}"
        Image.fromarray(image.astype(f"{order}u2")).save(path)
    assert prepare(tmp_path / "pictures", tmp_path / "shards", *options) == 0
    data = load("shards", tmp_path, None, seed=0)
    red_channels = [
        part.batch(np.arange(len(part)))[0][:, 0] for part in (data.train, data.held_out)
    ]
    assert {each.tobytes() for each in np.concatenate(red_channels)} == {
        each.tobytes() for each in (pixels >> 8).astype(np.uint8)
    }


@pytest.mark.parametrize("type_", [3, 2], ids=["valid resolution", "resolution that is a string"])
def test_images_are_upright_whatever_their_other_exif_data_contain(
    type_: int, tmp_path: Path
) -> None:
    write_pictures(tmp_path / "pictures")
    entries = [(0x0112, 3, 1, 6), (0x011A, type_, 1, 1)]  # Orientation and XResolution
    content = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    exif = b"Exif\0\0II*\0" + struct.pack("<IH", 8, len(entries)) + content + bytes(4)
    pixels = np.zeros((32, 32, 3), np.uint8)
    pixels[:16] = 255  # This half is on the right after the rotation.
    Image.fromarray(pixels).save(tmp_path / "pictures/cat/turned.png", exif=exif)
    assert prepare(tmp_path / "pictures", tmp_path / "shards") == 0
    data = load("shards", tmp_path, None, seed=0)
    stored = [part.batch(np.arange(len(part)))[0] for part in (data.train, data.held_out)]
    upright = pixels[::-1].transpose(2, 1, 0).tobytes()
    assert upright in {image.tobytes() for image in np.concatenate(stored)}


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_32_bit_images_are_reported_as_unreadable(dtype: type[np.generic], tmp_path: Path) -> None:
    write_pictures(tmp_path / "pictures")
    pixels = np.arange(40 * 50).reshape(40, 50).astype(dtype)
    Image.fromarray(pixels).save(tmp_path / "pictures/cat/depth.tif")
    assert prepare(tmp_path / "pictures", tmp_path / "shards") == 0
    assert read_manifest(tmp_path / "shards").dropped["unreadable"] == 3


@pytest.mark.parametrize(
    "option", ["--grey", "--min-size=8", "--size=224", "--held-out=0.2", "--workers=2"]
)
def test_options_for_directories_are_refused_with_a_built_in_data_set(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["prepare", "images", "--dataset=digits", option, str(tmp_path / "shards")]
    assert main(options) == exit_codes.BAD_INPUT
    assert option.partition("=")[0] in capsys.readouterr().err
    assert not (tmp_path / "shards").exists()


def test_grayscale_conversion_and_a_smaller_minimum_size_can_be_requested(tmp_path: Path) -> None:
    write_pictures(tmp_path / "pictures")
    assert prepare(tmp_path / "pictures", tmp_path / "shards", "--grey", "--min-size=8") == 0
    data = load("shards", tmp_path, None, seed=0)
    assert data.shape == (1, 32, 32)
    assert read_manifest(tmp_path / "shards").dropped == {"duplicate": 1, "unreadable": 2}


def test_an_oversized_image_is_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pictures(tmp_path / "pictures")
    Image.new("L", (300, 300)).save(tmp_path / "pictures/cat/bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50_000)
    assert prepare(tmp_path / "pictures", tmp_path / "shards") == 0
    assert read_manifest(tmp_path / "shards").dropped["unreadable"] == 3


@pytest.fixture(scope="module")
def digit_shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which digits are split into several shards. Read-only."""
    folder = tmp_path_factory.mktemp("split")
    options = ["--dataset=digits", "--max-mib=1"]
    assert main(["prepare", "images", *options, str(folder / "shards")]) == 0
    return folder


def test_shards_have_a_limited_size(digit_shards: Path) -> None:
    manifest = check_prepared(digit_shards / "shards", print)
    assert len(manifest.train.parts) == 3
    assert all(part.size <= 2**20 for part in manifest.parts())


def test_built_in_data_sets_keep_their_size_and_held_out_samples(tmp_path: Path) -> None:
    target = tmp_path / "shards"
    assert main(["prepare", "images", "--dataset=digits", str(target)]) == 0
    packed = load("shards", tmp_path, None, seed=0)
    original = load("digits", tmp_path, None, seed=0)
    assert (packed.shape, packed.classes) == (original.shape, original.classes)
    assert isinstance(original.held_out, Images)
    pixels, labels = packed.held_out.batch(np.arange(360))
    expected = original.held_out.pixels.astype(np.uint16) * 255 // 16
    assert sorted(image.tobytes() for image in pixels) == sorted(
        image.astype(np.uint8).tobytes() for image in expected
    )
    assert np.array_equal(np.bincount(labels), np.bincount(original.held_out.labels))


def test_shard_contains_images_of_all_classes(digit_shards: Path) -> None:
    train = load("shards", digit_shards, None, seed=0).train
    assert set(train.batch(np.arange(100))[1]) == set(range(10))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda _: None, "cannot be read: No such file"),
        (lambda folder: folder.mkdir(), "has no images: it must contain one directory"),
        (
            lambda folder: (folder / "cat").mkdir(parents=True),
            "has no images: it must contain one directory",
        ),
    ],
)
def test_a_directory_without_images_is_rejected(
    make: object, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(make)
    make(tmp_path / "pictures")
    assert prepare(tmp_path / "pictures", tmp_path / "shards") == 64
    assert message in capsys.readouterr().err
    assert not (tmp_path / "shards").exists()


def test_class_directories_without_images_are_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_pictures(tmp_path / "pictures")
    for name in ("misplaced", "empty"):
        (tmp_path / "pictures" / name).mkdir()
    assert prepare(tmp_path / "pictures", tmp_path / "shards") == exit_codes.BAD_INPUT
    assert "no images of 'empty', 'misplaced': add images, or remove" in capsys.readouterr().err


def test_a_class_whose_images_are_all_dropped_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_pictures(tmp_path / "pictures")
    (tmp_path / "pictures/thumbnails").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "pictures/thumbnails/1.png")
    assert prepare(tmp_path / "pictures", tmp_path / "shards") == exit_codes.BAD_INPUT
    assert "all images of 'thumbnails' were dropped" in capsys.readouterr().err
    assert not (tmp_path / "shards").exists()


def test_images_outside_of_class_directories_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_pictures(tmp_path / "pictures")
    Image.new("RGB", (40, 40)).save(tmp_path / "pictures/unsorted.PNG")
    assert prepare(tmp_path / "pictures", tmp_path / "shards") == 0
    assert "dropped: 1 not in a class directory\n" in capsys.readouterr().out


def test_an_empty_training_set_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pictures/cat").mkdir(parents=True)
    (tmp_path / "pictures/cat/bad.png").write_text("no image")
    assert prepare(tmp_path / "pictures", tmp_path / "shards") == 64
    captured = capsys.readouterr().err
    assert "no images for training (read: 1, dropped: 1 unreadable): add images" in captured
    assert not (tmp_path / "shards").exists()


def prepare_source(source: Source, target: Path) -> ShardsManifest:
    return prepare_images(
        source, target, limit=2**18, force=False, settings={}, report=lambda _: None
    )


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> ShardsManifest:
    folder = tmp_path_factory.mktemp("uninterrupted")
    return prepare_source(from_dataset("digits", folder), folder / "shards")


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError("No space left on device")])
def test_interrupted_preparation_can_be_repeated(
    error: BaseException, uninterrupted: ShardsManifest, tmp_path: Path
) -> None:
    source = from_dataset("digits", tmp_path)

    def interrupted_pictures() -> Iterator[Picture | Dropped]:
        for _ in range(random.Random(0).randrange(400, 1500)):  # noqa: S311
            yield next(source.pictures)
        raise error

    target = tmp_path / "shards"
    with pytest.raises((KeyboardInterrupt, OSError)):
        prepare_source(replace(source, pictures=interrupted_pictures()), target)
    assert not target.exists()
    assert prepare_source(from_dataset("digits", tmp_path), target) == uninterrupted
    assert (target / MANIFEST_FILE).exists()


def test_preparation_killed_while_publishing_can_be_finished_only_with_the_same_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def raise_killed(_folder: Path) -> None:
        raise Killed

    def source(name: str, *classes: str) -> Source:
        pictures = [Picture(b"", b"a", 0, held_out=True), Picture(b"", b"b", 0, held_out=False)]
        return Source(tmp_path / name, classes, (1, 8, 8), len(pictures), iter(pictures))

    for name in ("same", "other-classes", "other-source"):
        monkeypatch.setattr(output, "sync_folder", raise_killed)
        with pytest.raises(Killed):
            prepare_source(source("one", "a"), tmp_path / name)
        monkeypatch.undo()
    assert prepare_source(source("one", "a"), tmp_path / "same") == read_manifest(tmp_path / "same")
    for name, other in ("other-classes", source("one", "b")), ("other-source", source("two", "a")):
        with pytest.raises(DataError, match="is not empty"):
            prepare_source(other, tmp_path / name)
        assert not (tmp_path / name / output.UNFINISHED).exists()


def test_image_that_is_in_two_classes_is_used_once(tmp_path: Path) -> None:
    picture = Picture(b"", b"same", 0, False)
    source = Source(tmp_path, ("a", "b"), (1, 8, 8), 2, iter([picture, picture]))
    with pytest.raises(
        DataError, match=r"no images for the held-out set \(read: 2, dropped: 1 duplicate\)"
    ):
        prepare_images(source, tmp_path, limit=9999, force=False, settings={}, report=print)
