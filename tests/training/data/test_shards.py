import errno
import io
import json
import pickle
import tarfile
import warnings
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image

from training.data import DataError, load
from training.data.manifest import MANIFEST_FILE, ShardsManifest, read_manifest, write_manifest
from training.data.prepare.output import ShardWriter, part_of
from training.data.samples import UnavailableError
from training.data.shards import decode, scan

SHAPE = (3, 4, 5)


def png(number: int) -> bytes:
    """Return an image in which every pixel is `number`."""
    stream = io.BytesIO()
    Image.new("RGB", (SHAPE[2], SHAPE[1]), (number, number, number)).save(stream, "PNG")
    return stream.getvalue()


def write_shards(folder: Path, train: list[bytes], held_out: int = 3) -> ShardsManifest:
    """Write shards of four images each. The label of an image is its number modulo 5."""
    folder.mkdir(parents=True, exist_ok=True)
    splits = []
    for prefix, images in (("train", train), ("held-out", [png(n) for n in range(held_out)])):
        with ShardWriter(folder, prefix, limit=tarfile.RECORDSIZE) as writer:
            for number, image in enumerate(images):
                writer.add(image, "png", number % 5)
            splits.append(writer.close())
    manifest = ShardsManifest(
        shape=SHAPE, classes=tuple("abcde"), train=splits[0], held_out=splits[1]
    )
    write_manifest(folder, manifest)
    return manifest


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    write_shards(tmp_path / "shards", [png(number) for number in range(23)])
    return tmp_path / "shards"


def test_images_can_be_read_by_index_in_any_order(shards: Path) -> None:
    data = load("shards", shards.parent, None, seed=0)
    assert len(list(shards.glob("train-*.tar"))) == 6
    assert (len(data.train), len(data.held_out), data.shape) == (23, 3, SHAPE)
    assert (data.outputs, data.classes, data.train.divisor) == (5, tuple("abcde"), 255)
    some = np.array([22, 0, 7, 7, 13])
    pixels, labels = data.train.batch(some)
    assert (pixels.dtype, pixels.shape) == (np.uint8, (5, *SHAPE))
    assert np.array_equal(pixels, np.broadcast_to(some[:, None, None, None], pixels.shape))
    assert labels.tolist() == [2, 0, 2, 2, 3]


def test_epoch_contains_every_image_once_in_random_order(shards: Path) -> None:
    train = load("shards", shards.parent, None, seed=0).train
    order = train.order(np.random.default_rng(0))
    assert sorted(order) == list(range(23))
    assert order.tolist() != sorted(order)


def test_images_are_enlarged_to_the_input_size_of_the_model(shards: Path) -> None:
    data = load("shards", shards.parent, (3, 32, 32), seed=0)
    assert data.train.batch(np.array([9]))[0].max() == 9
    assert data.train.batch(np.array([9]))[0].shape == (1, 3, 32, 32)
    with pytest.raises(DataError, match="images of 3x4x5 do not fit"):
        load("shards", shards.parent, (3, 4, 4), seed=0)


def test_pickled_samples_read_the_same_images(shards: Path) -> None:
    train = load("shards", shards.parent, None, seed=0).train
    sent = pickle.loads(pickle.dumps(train))  # noqa: S301
    assert np.array_equal(sent.batch(np.array([4, 20]))[0], train.batch(np.array([4, 20]))[0])


def test_webdataset_reads_the_shards(shards: Path) -> None:
    files = [str(path) for path in sorted(shards.glob("train-*.tar"))]
    with warnings.catch_warnings():
        # webdataset has an invalid escape sequence, and leaves files open for garbage collection.
        warnings.simplefilter("ignore", SyntaxWarning)
        warnings.simplefilter("ignore", ResourceWarning)
        import webdataset

        stream = webdataset.WebDataset(files, shardshuffle=False).decode("rgb8")
        samples = [(int(image[0, 0, 0]), label) for image, label in stream.to_tuple("png", "cls")]
    assert samples == [(number, number % 5) for number in range(23)]


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("train-00001.tar", lambda old: old[:-1], "train-00001.tar is damaged: .* bytes instead"),
        ("train-00001.tar", lambda old: old[:700] + b"?" + old[701:], "its sha256 differs from"),
        ("train-index.npy", lambda old: old[:-1] + b"?", "its sha256 differs from"),
        ("train-00001.tar", None, "train-00001.tar cannot be read: No such file"),
        (MANIFEST_FILE, None, "manifest.json is missing"),
        (MANIFEST_FILE, lambda old: old[:-9], "manifest.json is damaged: the document"),
        (MANIFEST_FILE, lambda _: b'{"kind": "zip"}', "manifest.json is damaged: the document"),
    ],
)
def test_damage_is_detected_before_training(
    file: str, damage: Callable[[bytes], bytes] | None, message: str, shards: Path
) -> None:
    path = shards / file
    path.unlink() if damage is None else path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=message) as caught:
        load("shards", shards.parent, None, seed=0)
    assert str(path) in str(caught.value)


def test_damage_that_was_not_checked_is_reported_when_the_image_is_read(shards: Path) -> None:
    path = shards / "train-00001.tar"
    content = path.read_bytes()
    path.write_bytes(content.replace(b"IDAT", b"IDOT"))
    train = load("shards", shards.parent, None, seed=0, verification=None).train
    train.batch(np.arange(4))
    with pytest.raises(DataError, match=r"train-00001.tar is damaged .* the image at byte 512"):
        train.batch(np.arange(5))
    path.write_bytes(content[:1000])
    with pytest.raises(DataError, match=r"train-00001.tar is damaged .* ends within the image"):
        train.batch(np.array([7]))
    path.unlink()
    with pytest.raises(DataError, match=r"train-00001.tar is damaged or cannot be read"):
        train.batch(np.array([5]))


def test_unavailable_storage_is_not_damage(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = load("shards", shards.parent, None, seed=0).train
    error = OSError(errno.EIO, "Input/output error")
    monkeypatch.setattr(Path, "open", Mock(side_effect=error))
    with pytest.raises(UnavailableError, match=r"train-00001\.tar .* Input/output error"):
        train.batch(np.array([5]))


def test_image_with_an_unexpected_size_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    stream = io.BytesIO()
    Image.new("RGB", (6000, 6000)).save(stream, "PNG")
    write_shards(tmp_path / "shards", [png(1), stream.getvalue()])
    train = load("shards", tmp_path, None, seed=0).train
    with pytest.raises(DataError, match=r"has shape \(3, 6000, 6000\), but the manifest states"):
        train.batch(np.array([1]))


@pytest.mark.parametrize("mode", ["P", "I;16", "1"])
def test_image_with_other_values_than_gray_levels_is_refused(mode: str) -> None:
    stream = io.BytesIO()
    Image.new(mode, (5, 4), 1).save(stream, "PNG")
    with pytest.raises(ValueError, match=f"has mode {mode}, but must be an 8-bit gray or RGB"):
        decode(stream.getvalue(), (1, 4, 5))


@pytest.mark.parametrize(
    "row", [(1, 512, 70, 0), (0, -1, 70, 0), (0, 512, 0, 0), (0, 2**40, 70, 0), (0, 512, 70, 5)]
)
def test_index_with_invalid_positions_is_refused(
    row: tuple[int, int, int, int], tmp_path: Path
) -> None:
    manifest = write_shards(tmp_path / "shards", [png(1)])
    path = tmp_path / "shards/train-index.npy"
    np.save(path, np.array([row], np.int64))
    train = manifest.train.model_copy(update={"index": part_of(path, 1)})
    write_manifest(tmp_path / "shards", manifest.model_copy(update={"train": train}))
    with pytest.raises(DataError, match=r"train-index.npy is damaged: it contains invalid values"):
        load("shards", tmp_path, None, seed=0)


@pytest.mark.parametrize("content", [np.array([{"a": 1}], object), np.zeros((1, 4)), np.zeros(4)])
def test_index_with_pickled_objects_or_a_wrong_shape_is_refused(
    content: np.ndarray, tmp_path: Path
) -> None:
    manifest = write_shards(tmp_path / "shards", [png(1)])
    path = tmp_path / "shards/train-index.npy"
    np.save(path, content, allow_pickle=True)
    train = manifest.train.model_copy(update={"index": part_of(path, 1)})
    write_manifest(tmp_path / "shards", manifest.model_copy(update={"train": train}))
    with pytest.raises(DataError, match=r"train-index.npy is (damaged|not an index of 1 images)"):
        load("shards", tmp_path, None, seed=0)


@pytest.mark.parametrize("file", ["../secret", "/etc/passwd", "a/b.tar", "..", ".hidden", ""])
def test_manifest_with_a_file_outside_its_directory_is_refused(file: str, shards: Path) -> None:
    document = json.loads((shards / MANIFEST_FILE).read_text())
    document["train"]["parts"][0]["file"] = file
    (shards / MANIFEST_FILE).write_text(json.dumps(document))
    with pytest.raises(DataError, match=r"manifest.json is damaged: shards.train.parts.0.file"):
        read_manifest(shards)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("format", 2, "shards.format"),
        ("shape", [3, 9999, 9999], "shards.shape"),
        ("shape", [2, 4, 5], "shards.shape"),
        ("classes", [], "shards.classes"),
        ("unexpected", 1, "shards.unexpected"),
    ],
)
def test_error_names_the_invalid_manifest_field(
    key: str, value: object, message: str, shards: Path
) -> None:
    document = json.loads((shards / MANIFEST_FILE).read_text())
    (shards / MANIFEST_FILE).write_text(json.dumps(document | {key: value}))
    with pytest.raises(DataError, match=f"manifest.json is damaged: {message}"):
        read_manifest(shards)


def test_manifest_with_inconsistent_counts_or_duplicate_files_is_refused(shards: Path) -> None:
    document = json.loads((shards / MANIFEST_FILE).read_text())
    for change, message in (
        ({"count": 9}, "different counts"),
        ({"file": "train-00001.tar"}, "twice"),
    ):
        parts = [document["train"]["parts"][0] | change, *document["train"]["parts"][1:]]
        changed = document | {"train": document["train"] | {"parts": parts}}
        (shards / MANIFEST_FILE).write_text(json.dumps(changed))
        with pytest.raises(DataError, match=message):
            read_manifest(shards)


def test_another_type_of_data_set_is_rejected(shards: Path) -> None:
    shards.rename(shards.parent / "tokens")
    with pytest.raises(DataError, match="contains shards: set dataset to shards"):
        load("tokens", shards.parent, None, seed=0)


def test_a_data_set_without_held_out_images_is_refused(tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", [png(1)], held_out=0)
    with pytest.raises(DataError, match="contains no held-out image"):
        load("shards", tmp_path, None, seed=0)


Member = tuple[str, bytes, bytes]


def member(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE) -> Member:
    return name, content, kind


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([member("1.pickle"), member("1.cls")], "members 1.pickle and 1.cls are not an image"),
        ([member("1.png"), member("2.cls")], "members 1.png and 2.cls are not"),
        ([member("1.png")], "is not a shard of images: 1.png lacks its image or its label"),
        ([member("1.png"), member("1.cls", b"cat")], "invalid literal"),
        ([member("1.png"), member("1.cls", b"1" * 99)], "1.cls is not a regular file"),
        ([member("1.png", kind=tarfile.SYMTYPE), member("1.cls", b"1")], "is not a regular file"),
    ],
)
def test_shard_with_members_other_than_images_and_labels_is_refused(
    members: list[Member], message: str, tmp_path: Path
) -> None:
    with tarfile.open(tmp_path / "shard.tar", "w") as shard:
        for name, content, kind in members:
            info = tarfile.TarInfo(name)
            info.size, info.type = len(content), kind
            shard.addfile(info, io.BytesIO(content))
    with pytest.raises(DataError, match=message):
        scan(tmp_path / "shard.tar", 0)
