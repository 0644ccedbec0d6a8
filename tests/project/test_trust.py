"""What is read is data: no target is called that no file names; the cache's libraries are ours."""

from pathlib import Path

import pytest

from skipbench.config.build import check_targets
from skipbench.config.paths import private_folder
from skipbench.errors import SkipbenchError


def test_a_private_folder_is_closed_to_others(tmp_path: Path) -> None:
    (place := tmp_path / "cache" / "native").mkdir(parents=True)
    place.chmod(0o775)
    assert private_folder(place).stat().st_mode & 0o777 == 0o700
    assert private_folder(tmp_path / "new" / "native").parent.stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to(place)
    with pytest.raises(PermissionError, match="no folder of this user's own"):
        private_folder(tmp_path / "link")


@pytest.mark.parametrize(
    "node",
    [{"_target_": "os.system"}, {"a": [{"_target_": "pandas.read_pickle"}]}, {"b": "${oc.env:A}"},
     {"stop": {"_target_": ["skipbench"]}}],
)  # fmt: skip
def test_a_target_that_no_file_names_is_refused(node: dict[str, object]) -> None:
    with pytest.raises(SkipbenchError, match=r"_target_=|is an interpolation"):
        check_targets({"_target_": "known", **node}, {"known"})
