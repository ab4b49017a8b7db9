from __future__ import annotations

from pathlib import Path

import pytest

from sglang_plug_backends.flashinfer import toolkit

NAMES = ("CUDA_HOME", "CUDA_PATH", "FLASHINFER_EXTRA_LDFLAGS", "FLASHINFER_EXTRA_CUDAFLAGS")


def make_toolkit(folder: Path, *headers: str) -> Path:
    """Create a toolkit's folder; return its compiler."""
    for name in ("bin/nvcc", *(f"include/{header}" for header in headers)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch(mode=0o755)
    return folder / "bin" / "nvcc"


def parts_of(machine: Path) -> toolkit.ToolkitParts:
    """Return the expected parts of the CUDA toolkit on ``machine``."""
    driver = machine / "driver" / "libcuda.so.580.159.04"
    return toolkit.ToolkitParts(
        home=machine / "cuda", libraries=(driver, Path("/lib/libcuda_like.so")), headers=machine / "packages"
    )


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Simulate a machine whose ``nvcc`` on the path is a script, and whose toolkit lacks cuRAND."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    make_toolkit(tmp_path / "local")
    make_toolkit(tmp_path / "cuda", "cuda_runtime.h")
    monkeypatch.setenv("PATH", str(tmp_path / "local" / "bin"))
    return tmp_path


def test_missing_parts_of_a_scattered_toolkit_are_linked(machine: Path) -> None:
    result = toolkit.complete_toolkit(machine / "links", parts_of(machine))
    assert result == {
        "CUDA_HOME": str(machine / "cuda"),
        "FLASHINFER_EXTRA_LDFLAGS": f"-L{machine / 'links'}",
        "FLASHINFER_EXTRA_CUDAFLAGS": f"-isystem {machine / 'packages'}",
    }
    assert (machine / "links" / "libcuda.so").readlink() == machine / "driver" / "libcuda.so.580.159.04"
    assert not (machine / "links" / "libcudart.so").exists()


def test_existing_variables_are_kept(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = make_toolkit(machine / "other", "cuda_runtime.h", toolkit.HEADER).parent.parent
    monkeypatch.setenv("CUDA_PATH", str(other))
    monkeypatch.setenv("FLASHINFER_EXTRA_LDFLAGS", "-lmine")
    result = toolkit.complete_toolkit(machine / "links", parts_of(machine))
    assert result == {"FLASHINFER_EXTRA_LDFLAGS": f"-lmine -L{machine / 'links'}"}
    monkeypatch.setenv("FLASHINFER_EXTRA_LDFLAGS", result["FLASHINFER_EXTRA_LDFLAGS"])
    assert toolkit.complete_toolkit(machine / "links", parts_of(machine)) == result  # the flag is not added twice


def test_home_behind_a_link(tmp_path: Path) -> None:
    compiler = make_toolkit(tmp_path / "cuda-13", "cuda_runtime.h")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").symlink_to(compiler)
    assert toolkit.toolkit_home({"PATH": str(tmp_path / "bin")}, tmp_path / "none") == tmp_path / "cuda-13"
    assert toolkit.toolkit_home({"PATH": str(tmp_path / "cuda-13")}, tmp_path / "none") is None


def test_loaded_libraries(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    lines = (
        "7f00-7f10 r--p 00000000 08:01 11 /usr/lib/libcuda.so.1\n",
        "7f10-7f20 r-xp 00001000 08:01 11 /usr/lib/libcuda.so.1\n",
        "7f30-7f40 rw-p 00000000 00:00 0 [heap]\n",
        "7f50-7f60 r--p 00000000 08:01 12 /usr/bin/python3\n",
    )
    maps.write_text("".join(lines))
    assert list(toolkit.loaded_libraries(maps)) == [Path("/usr/lib/libcuda.so.1")]
    assert list(toolkit.loaded_libraries(tmp_path / "none")) == []


def test_links_are_renewed_where_they_can_be(tmp_path: Path) -> None:
    folder = tmp_path / "links"
    for version in ("1", "2"):
        assert toolkit.link_libraries([tmp_path / f"libcudart.so.{version}"], folder) == folder
        assert (folder / "libcudart.so").readlink() == tmp_path / f"libcudart.so.{version}"
    assert [path.name for path in folder.iterdir()] == ["libcudart.so"]
    assert toolkit.link_libraries([tmp_path / "libc.so.6"], folder) is None
    (tmp_path / "file").touch()
    assert toolkit.link_libraries([tmp_path / "libcuda.so.1"], tmp_path / "file" / "links") is None
