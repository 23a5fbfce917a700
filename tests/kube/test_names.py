import re
from pathlib import Path

import pytest

from kube.names import DATASETS_PATH, PROGRAM_PATH, USER_ID
from training.config import TrainingConfig

pytestmark = pytest.mark.unit
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("image", ["training", "inference", "recorder"])
def test_images_use_the_user_and_the_working_directory_of_the_pods(image: str) -> None:
    dockerfile = (ROOT / image / "Dockerfile").read_text()
    assert re.findall(r"^USER (.+)$", dockerfile, re.MULTILINE)[-1] == f"{USER_ID}:{USER_ID}"
    assert f"WORKDIR {PROGRAM_PATH}" in dockerfile


def test_default_data_directory_is_the_mount_path_of_the_datasets_claim() -> None:
    assert TrainingConfig.model_fields["data_dir"].get_default().as_posix() == DATASETS_PATH
